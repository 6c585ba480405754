"""The forkserver: a process that has imported torch once and forks a rank in milliseconds.

Run as a program by `starting.ForkServer`, never imported: it must not import this package, so that
an edit of `pedagogy` (or of a reader's module) is seen by the very next launch.

The problem
    Starting Python and importing torch costs more than a second for each rank. A plain fork of the
    notebook would be fast, but inherits its threads, its locks and its CUDA context, and a CUDA
    context does not survive a fork.

How it works
    This process imports the heavy third-party modules, owns no threads and no CUDA context, and
    waits. A request carries one end of a socket pair; the forked child becomes a rank and talks to
    the notebook over it. The server reaps its children and reports how each ended. When the
    notebook is gone, however it went, the request socket closes: the server kills the ranks that
    are left, removes their folder and exits.

What real systems do differently
    multiprocessing's own forkserver re-imports the caller's `__main__` in each child, and keeps
    the environment that it was started with.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys

PRELOAD = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch._dynamo",  # the first optimizer of a process imports it, a second of work
    "cloudpickle",
)

LATER = ("sklearn.datasets", "torch.utils.checkpoint")  # what many ranks need, imported when idle
IDLE_SECONDS = 0.05


def preload(names: tuple[str, ...]) -> None:
    """Import what every rank needs; what is not installed is left out."""
    for name in names:
        with contextlib.suppress(ImportError):
            __import__(name)


def become_rank(request: dict, fd: int, inherited: list) -> None:
    """The child's half of a fork: never returns."""
    os.setsid()  # its own children are in its group, and end with it
    for closable in inherited:
        closable.close()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        sys.path[:] = request["path"]
        from pedagogy.ranks.process import run_rank

        code = run_rank(fd)
    finally:
        os._exit(code)


def fork_rank(request: dict, fd: int, inherited: list) -> int:
    """Fork a child that becomes the rank `request` describes; returns its pid."""
    pid = os.fork()
    if pid == 0:
        become_rank(request, fd, inherited)
    os.close(fd)
    return pid


def reap(control: socket.socket, children: set[int]) -> None:
    """Report each child that ended."""
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        children.discard(pid)
        message = {"exit": pid, "code": os.waitstatus_to_exitcode(status)}
        control.send(json.dumps(message).encode())


def serve(control: socket.socket) -> None:
    """Answer requests until the notebook is gone."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    later = LATER
    children: set[int] = set()
    folders: set[str] = set()
    try:
        while True:
            idle = later and not children
            if not any(select.select([control, woken], [], [], IDLE_SECONDS if idle else None)):
                preload(later)
                later = ()
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)
            reap(control, children)
            if not select.select([control], [], [], 0)[0]:
                continue
            data, fds, _, _ = socket.recv_fds(control, 1 << 20, 1)
            if not data:
                return
            request = json.loads(data)
            folders = {request["folder"]}
            pid = fork_rank(request, fds[0], [control, woken, waker])
            children.add(pid)
            control.send(json.dumps({"rank": request["rank"], "pid": pid}).encode())
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    preload(PRELOAD)
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        serve(socket.socket(fileno=int(sys.argv[1])))
