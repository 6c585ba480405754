"""What runs in the process of a rank, from its first message to its last.

    hello -> job -> join the group -> ready -> the worker -> result -> released -> leave

Two threads: the first runs the worker, the second talks to the launcher. The second is also the
rank's lifeline: when its connection closes, the launcher is gone, and the process ends itself. A
rank whose worker has returned does not leave before all have: its sockets stay open, so that the
others see no "connection closed by peer" that would hide the real reason.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import linecache
import os
import pickle
import random
import shutil
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist

from pedagogy.ranks import pickling
from pedagogy.ranks.group import Group
from pedagogy.ranks.machine import Placement
from pedagogy.ranks.watch import LIBRARIES, PACKAGE, Log

BASE_SEED = 20_211  # fixed; each rank adds its rank, since equal seeds hide a missing broadcast
MAX_TEXT = 8_000  # characters of a traceback that travel: its beginning and its end


@dataclass
class Job:
    """What a rank is told to do."""

    rank: int
    world_size: int
    folder: str
    payload: bytes  # (worker, args, kwargs), pickled by value
    placement: Placement
    timeout: float
    environment: dict[str, str]
    path: list[str]
    directory: str
    sources: dict[str, tuple] = field(default_factory=dict)


@dataclass
class Failure:
    """An exception of a worker, as text."""

    rank: int
    kind: str
    message: str
    trace: str
    when: float  # seconds on the machine's monotonic clock


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """`text`, or its first and last parts where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = limit // 4, limit - limit // 4
    return f"{text[:head]}\n... ({len(text) - limit} characters left out) ...\n{text[-tail:]}"


def failure_of(error: BaseException, rank: int) -> Failure:
    """Describe an exception: its own frames, with the source lines of the notebook's cells."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, f in enumerate(frames) if not f.filename.startswith((PACKAGE, *LIBRARIES))]
    shown = _skip(error.__traceback__, own[0] if own else 0)
    try:
        trace = "".join(traceback.format_exception(type(error), error, shown))
        message = str(error)
    except Exception as problem:  # an exception whose own __str__ raises
        trace, message = f"{type(error).__name__} (its text could not be made: {problem!r})", ""
    return Failure(
        rank, type(error).__name__, shorten(message, 1500), shorten(trace), time.monotonic()
    )


def _skip(trace: Any, count: int) -> Any:
    for _ in range(count):
        trace = trace.tb_next
    return trace


class Line:
    """The rank's end of the connection to the launcher; used by both threads."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.released = threading.Event()
        self._lock = threading.Lock()
        self.folder = ""  # on rank 0 the launch's: nobody else may be left to remove it

    def tell(self, kind: str, value: Any = None) -> None:
        """Send one message; a launcher that is gone is the lifeline's business."""
        with self._lock, contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps((kind, value)))

    def listen(self, log: Log) -> None:
        """Answer the launcher until it is gone; then end this process."""
        try:
            while True:
                question = self.connection.recv()
                if question == "status":
                    self.tell("status", log.status())
                elif question == "release":
                    self.released.set()
        except (EOFError, OSError):
            if self.folder:
                time.sleep(0.5)  # torch waits for a store that is gone: the other ranks end first
                shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(1)


def capture_output(path: Path) -> None:
    """From here on everything that this process writes, C++ included, goes to the file."""
    with open(path, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = io.TextIOWrapper(
        os.fdopen(1, "wb", 0, closefd=False), encoding="utf-8", write_through=True
    )
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", 0, closefd=False), encoding="utf-8", write_through=True
    )
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr


def prepare(job: Job) -> torch.device:
    """Make this process a rank: environment, search path, seeds, threads, device."""
    os.environ.clear()
    os.environ.update(job.environment)
    sys.path[:] = job.path
    sys.argv[:] = [""]
    with contextlib.suppress(OSError):
        os.chdir(job.directory)
    linecache.cache.update(job.sources)
    seed_everything(BASE_SEED + job.rank)
    torch.set_num_threads(job.placement.threads)
    device = job.placement.device_of(job.rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before anything else touches a GPU
    return device


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and random."""
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def join(job: Job, device: torch.device, log: Log) -> Group:
    """Join the process group of all ranks; the clock starts when all have.

    The meeting point is a file in the launch's own folder: no port to collide on. The process
    group's own time-out lies above the launcher's, so that its report comes first.
    """
    store = dist.FileStore(str(Path(job.folder) / "store"), job.world_size)
    dist.init_process_group(
        job.placement.backend,
        store=store,
        rank=job.rank,
        world_size=job.world_size,
        timeout=datetime.timedelta(seconds=2 * job.timeout + 60),
    )
    dist.barrier()
    if job.rank == 0:
        store.set("zero", repr(time.perf_counter()))
    log.zero = float(store.get("zero"))
    return Group(dist.group.WORLD, range(job.world_size), log, device, staged=job.placement.staged)


def run_rank(fd: int) -> int:
    """Be a rank: serve one job that arrives on the connection `fd`; returns the exit code."""
    connection = Connection(fd)
    line = Line(connection)
    try:
        job: Job = pickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        return 1
    capture_output(Path(job.folder) / f"rank{job.rank}.output")
    log, line.folder = Log(job.rank), job.folder if job.rank == 0 else ""
    threading.Thread(target=line.listen, args=(log,), daemon=True).start()
    try:
        device = prepare(job)
        worker, args, kwargs = pickling.load(job.payload)
        group = join(job, device, log)
        line.tell("ready")
        result = worker(group, *args, **kwargs)
        _flush()
        log.settle()
        line.tell(
            "result", (pickling.dump_result(result), log.events, dict(log.counts), log.alone())
        )
    except BaseException as error:
        _flush()
        line.tell("failure", failure_of(error, job.rank))
        line.released.wait()  # with open sockets, until the launcher ends this process
        return 1
    line.released.wait()
    dist.destroy_process_group()
    return 0


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
