"""`launch`: run a function on several ranks, each a real process, from any cell or script.

    run = launch(worker, 4)        # worker(group) runs on ranks 0 to 3
    run[2]                         # what it returned on rank 2
    run.trace                      # every communication of every rank

On one machine `launch` starts the processes, collects what they return and print, reports what goes
wrong, and leaves nothing running. Under torchrun the processes exist already, on one machine or on
several: there `launch` starts nothing and joins them. The worker is the same.

Sources: torch.distributed.elastic (torchrun); Python's multiprocessing, whose forkserver inspired
`server.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pedagogy.ranks import pickling
from pedagogy.ranks.machine import Placement, check_memory, place
from pedagogy.ranks.process import Job, shorten
from pedagogy.ranks.starting import search_path, start_method
from pedagogy.ranks.supervisor import Cancelled, Supervisor
from pedagogy.ranks.trace import Trace

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
MAX_OUTPUT = 1_000_000  # characters of one rank's output that are kept

_one_at_a_time = threading.Lock()


class Run(Sequence):
    """What a launch brought back: the workers' results by rank, and what was seen on the way.

    `trace` holds all ranks' events, `output` what each rank printed, `device` and `backend` where
    and how the ranks talked. Tensors are on the CPU.
    """

    def __init__(
        self, results: list, trace: Trace, output: list[str], placement: Placement
    ) -> None:
        self._results = list(results)
        self.trace = trace
        self.output = output
        self.device = placement.device_type
        self.backend = placement.backend

    def __getitem__(self, rank):
        return self._results[rank]

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"Run({len(self)} ranks on {self.device} over {self.backend}: {self._results!r})"


def launch(
    worker: Callable[..., Any],
    world_size: int,
    *args: Any,
    device: str = "auto",
    timeout: float = 60.0,
    **kwargs: Any,
) -> Run:
    """Run `worker(group, *args, **kwargs)` on `world_size` ranks and return their results.

    The worker may be defined in a notebook cell; it travels by value. Each rank is seeded with a
    fixed base plus its rank. What the ranks print is printed here once, in the order of ranks.
    `timeout` is the longest wait of one communication in seconds, not a limit on the run.

    **Raises** ValueError for a `world_size`, `device` or `timeout` that cannot be, or a worker that
    cannot travel, before any process starts; RankError where a rank raised or died; HangError where
    ranks wait for what cannot come, or for longer than `timeout`.
    """
    _check(worker, world_size, timeout)
    world_size = int(world_size)
    if dist.is_torchelastic_launched():
        from pedagogy.ranks.torchrun import join_and_run

        return join_and_run(worker, world_size, args, kwargs, device, timeout)
    placement = place(world_size, device)
    check_memory(world_size)
    start_method()
    payload = _pack(worker, args, kwargs)
    folder = tempfile.mkdtemp(prefix="pedagogy-")
    cancel = threading.Event()
    outcome: dict[str, Any] = {}
    try:
        jobs = _jobs(world_size, folder, payload, placement, timeout)
        _run_apart(Supervisor(jobs, cancel), outcome, cancel)
    finally:
        output = _read_output(folder, world_size)
        shutil.rmtree(folder, ignore_errors=True)
        if text := "".join(output):
            print(text, end="" if text.endswith("\n") else "\n")
    if "error" in outcome:
        raise outcome["error"] from None
    ranks = outcome["ranks"]
    events = [event for rank in ranks for event in rank.events]
    return Run([rank.result for rank in ranks], Trace(events), output, placement)


def _check(worker: object, world_size: object, timeout: float) -> None:
    if not callable(worker):
        raise ValueError(f"worker is {worker!r}; it must be a function worker(group, ...)")
    whole = isinstance(world_size, Integral) and not isinstance(world_size, bool)
    if not whole or world_size < 1:
        raise ValueError(f"world_size is {world_size!r}; it must be a whole number, 1 or more")
    if not isinstance(timeout, Real) or not 0 < timeout < 10**8:
        raise ValueError(f"timeout is {timeout!r} s; it must be more than 0, and finite")


def _run_apart(supervisor: Supervisor, outcome: dict, cancel: threading.Event) -> None:
    """Run the supervisor on a thread; an interrupt cancels it, waits for it, and goes on."""

    def body() -> None:
        try:
            while not _one_at_a_time.acquire(timeout=0.1):
                if cancel.is_set():
                    return
            try:
                outcome["ranks"] = supervisor.run()
            finally:
                _one_at_a_time.release()
        except Cancelled:
            pass
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=body, name="launch")
    interrupt: BaseException | None = None
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
    except BaseException as error:
        interrupt = error
    cancel.set()
    while thread.is_alive():  # at most a few seconds; a second interrupt does not cut it short
        try:
            thread.join(0.1)
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _pack(worker: Callable, args: tuple, kwargs: dict) -> bytes:
    try:
        return pickling.dump_job((worker, args, kwargs))
    except Exception as error:
        name = getattr(worker, "__name__", repr(worker))
        raise ValueError(
            f"worker {name!r} or one of its arguments cannot travel to other processes: "
            f"{type(error).__name__}: {error}. Create such an object inside the worker instead"
        ) from error


def _jobs(
    world_size: int, folder: str, payload: bytes, placement: Placement, timeout: float
) -> list[Job]:
    environment = dict(os.environ)
    environment["GLOO_SOCKET_IFNAME"] = LOOPBACK.get(sys.platform, "lo")
    sources = pickling.cell_sources()
    path, directory = search_path(), os.getcwd()
    shared = (
        world_size,
        folder,
        payload,
        placement,
        timeout,
        environment,
        path,
        directory,
        sources,
    )
    return [Job(rank, *shared) for rank in range(world_size)]


def _read_output(folder: str, world_size: int) -> list[str]:
    texts = []
    for rank in range(world_size):
        file = Path(folder) / f"rank{rank}.output"
        text = file.read_bytes().decode(errors="replace") if file.exists() else ""
        texts.append(shorten(text, MAX_OUTPUT))
    return texts
