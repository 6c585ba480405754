"""Start the processes of a launch: forked from a server on Linux, fresh interpreters elsewhere.

Both ways give the same thing: for each rank a connection, and a process that says hello on it. On
macOS a process that has imported torch must not be forked (its system libraries forbid it), so each
rank is an interpreter of its own there; it costs about two seconds a launch. PEDAGOGY_START=spawn
chooses that way on Linux too. Windows has neither; WSL 2 does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")
RUN_SERVER = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]);"
    "exec(compile(open(sys.argv[3]).read(), sys.argv[3], 'exec'))"
)
RUN_RANK = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]);"
    "from pedagogy.ranks.process import run_rank; sys.exit(run_rank(int(sys.argv[1])))"
)


class ServerError(RuntimeError):
    """The forkserver could not be started, or died while it was needed."""


def search_path() -> list[str]:
    """`sys.path` as another process can use it: the empty entry becomes the working directory."""
    return [os.path.abspath(entry) if entry == "" else entry for entry in sys.path]


def connection_pair() -> tuple[Connection, socket.socket]:
    """A connection for this process, and the socket that its other end is."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), theirs


class ForkServer:
    """The parent's side of `server.py`. Used by one thread at a time (`launch` sees to it)."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the server lives)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN_SERVER, str(theirs.fileno()),
                 json.dumps(search_path()), str(SERVER)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt of the notebook's group must not reach it
            )  # fmt: skip
        self.control = ours
        self.owner = os.getpid()
        self.exits: dict[int, int] = {}

    def alive(self) -> bool:
        """Whether this process started it and it still runs."""
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self, rank: int, folder: str, theirs: socket.socket) -> int:
        """Fork one rank, connected over `theirs`; returns its pid."""
        request = {"rank": rank, "folder": folder, "path": search_path()}
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], [theirs.fileno()])
            while True:
                message = self._receive()
                if message is None:
                    raise ServerError(self._death())
                if message.get("rank") == rank:
                    self.exits.pop(message["pid"], None)  # of an earlier process with this number
                    return message["pid"]
        except OSError as error:
            raise ServerError(self._death()) from error

    def collect(self) -> None:
        """Read the exits that the server reported."""
        with contextlib.suppress(OSError):
            while wait([self.control], 0) and self._receive() is not None:
                pass

    def close(self) -> None:
        """End the server, and with it every rank that it started. A second call does nothing."""
        atexit.unregister(self.close)
        self.control.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def _receive(self) -> dict | None:
        data = self.control.recv(1 << 16)
        if not data:
            return None
        message = json.loads(data)
        if "exit" in message:
            self.exits[message["exit"]] = message["code"]
        return message

    def _death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")[-4000:]
        return f"the server that starts ranks ended (exit code {self.process.poll()})\n{text}"


class Forked:
    """A rank that the server forked."""

    def __init__(self, server: ForkServer, rank: int, folder: str) -> None:
        self.connection, theirs = connection_pair()
        self.server = server
        try:
            with theirs:
                self.pid = server.fork(rank, folder, theirs)
        except BaseException:
            self.connection.close()  # a rank that was forked all the same ends when it sees this
            raise

    def exit_code(self) -> int | None:
        """The code it ended with (negative: the signal that killed it); None while it runs."""
        self.server.collect()
        code = self.server.exits.get(self.pid)
        if code is None and not self.server.alive() and not _exists(self.pid):
            return 0  # nobody is left to tell
        return code

    def kill(self) -> None:
        """End it at once, and whatever it has started."""
        end_group(self.pid)


class Spawned:
    """A rank in a fresh interpreter."""

    def __init__(self, rank: int, folder: str) -> None:
        self.connection, theirs = connection_pair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN_RANK, str(theirs.fileno()), json.dumps(search_path())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self.pid = self.process.pid

    def exit_code(self) -> int | None:
        """The code it ended with (negative: the signal that killed it); None while it runs."""
        return self.process.poll()

    def kill(self) -> None:
        """End it at once, and whatever it has started."""
        end_group(self.pid)


def end_group(pid: int) -> None:
    """Kill the processes of the group that `pid` leads; also what outlived its leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def start_method() -> str:
    """`fork` where a server can fork ranks, else `spawn`.

    **Raises** RuntimeError on Windows, which has neither.
    """
    if sys.platform == "win32":
        raise RuntimeError(
            "ranks do not start on Windows itself; run the workbook in WSL 2, where they do"
        )
    default = "fork" if sys.platform == "linux" else "spawn"
    return os.environ.get("PEDAGOGY_START", default)


_server: ForkServer | None = None


def the_server() -> ForkServer:
    """This process's forkserver, started (or started again, if it died) on demand."""
    global _server
    if _server is None or not _server.alive():
        if _server is not None:
            _server.close()
        _server = ForkServer()
        atexit.register(_server.close)
    return _server


def start_rank(rank: int, folder: str) -> Forked | Spawned:
    """Start the process of one rank."""
    if start_method() == "spawn":
        return Spawned(rank, folder)
    return Forked(the_server(), rank, folder)


def end_all(processes: list, seconds: float = 5.0) -> list[int]:
    """Kill what still runs and wait until it is gone; returns the pids that did not go."""
    for process in processes:
        process.kill()
    deadline = time.monotonic() + seconds
    left = [process for process in processes if process.exit_code() is None]
    while left and time.monotonic() < deadline:
        time.sleep(0.005)
        left = [process for process in left if process.exit_code() is None]
    for process in processes:
        process.connection.close()
    return [process.pid for process in left]
