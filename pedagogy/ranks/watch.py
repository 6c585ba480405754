"""What a rank is doing at this moment, so that a hang can be explained instead of suffered.

The problem
    A rank that waits for a message that nobody will send looks like a rank that is busy. Nothing
    in the program is wrong locally, and the usual time-out, half an hour later, names no culprit.

How it works
    Before a rank blocks it writes down what it waits for, and what a peer must have done for the
    wait to end: a *need*, such as "rank 2 must have entered collective number 5 of this group", or
    "rank 0 must have sent me message number 3". Each rank counts what it entered, sent and
    received. From the counts of all ranks it follows exactly, with no guess about time,

    - that a rank which has returned will never fulfil a need (it left early), and
    - that all ranks wait for each other (a dead-lock): each has a need that a waiting rank has not
      fulfilled.

What it costs
    A few microseconds for each communication. The worker's line is not recorded: a second thread
    reads it from the stack when somebody asks.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch.distributed

from pedagogy.ranks.trace import Event

PACKAGE = str(Path(__file__).resolve().parents[1])
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
TORCH_DISTRIBUTED = str(Path(torch.distributed.__file__).parent)
WATCHDOG = "pedagogy-watchdog"  # the name of a thread that ends a worker and sends nothing
Key = tuple  # ("collective", group) or ("send" | "recv", group, from, to)


class Need(NamedTuple):
    """Peer `peer` must have counted `key` at least `count` times."""

    peer: int
    key: Key
    count: int


class Wait(NamedTuple):
    """A wait under way. Where `any_peer` is set, one fulfilled need is enough to end it."""

    kind: str
    peers: tuple[int, ...]
    start: float
    needs: tuple[Need, ...]
    any_peer: bool
    thread: int


class Log:
    """One rank's events, counts and waits; shared by all groups that the rank belongs to."""

    def __init__(self, rank: int, zero: float | None = None) -> None:
        self.rank = rank
        self.zero = time.perf_counter() if zero is None else zero
        self.events: list[Event] = []
        self.counts: Counter[Key] = Counter()
        self.waits: list[Wait] = []
        self._num_groups: Counter[tuple] = Counter()
        self.under_way: set[object] = set()  # handles that nobody waited for: kept, or gloo cancels
        self.unsettled: list[Callable[[], Event]] = []  # events whose times a GPU still knows alone
        self._raw: tuple[types.FrameType, int, float] | None = None
        self.main_thread = threading.get_ident()

    def now(self) -> float:
        """Seconds since all ranks were ready."""
        return time.perf_counter() - self.zero

    def add(
        self, kind: str, name: str, start: float, nbytes: int = 0, peers: tuple[int, ...] = ()
    ) -> None:
        """Log an event that ends now."""
        self.events.append(Event(self.rank, kind, name, start, self.now(), nbytes, peers))

    def _raw_wait(self) -> Wait | None:
        """A wait inside torch.distributed itself, called without a `Group`; it has no needs.

        Two answers in a row from the same call are taken for one wait, since the first of them.
        """
        frame = sys._current_frames().get(self.main_thread)
        if frame is None or not frame.f_code.co_filename.startswith(TORCH_DISTRIBUTED):
            self._raw = None
            return None
        if self._raw is None or self._raw[0] is not frame or self._raw[1] != frame.f_lasti:
            self._raw = (frame, frame.f_lasti, self.now())  # the frame itself: a number is reused
        kind = f"torch.distributed {frame.f_code.co_name}"
        return Wait(kind, (), self._raw[2], (), False, self.main_thread)

    def alone(self) -> bool:
        """Whether no thread but the worker's and the one that talks to the launcher could send."""
        threads = [t for t in threading.enumerate() if t.name != WATCHDOG]
        return len(threads) <= 2

    def number_group(self, name: str, ranks: tuple[int, ...]) -> int:
        """How many groups of this name and these ranks this rank made before; the same on all."""
        self._num_groups[name, ranks] += 1
        return self._num_groups[name, ranks] - 1

    def settle(self) -> None:
        """Fetch the times of spans that ran on a GPU."""
        while self.unsettled:
            self.events.append(self.unsettled.pop(0)())

    @contextmanager
    def waiting(
        self, kind: str, peers: tuple[int, ...], needs: tuple[Need, ...], any_peer: bool = False
    ) -> Iterator[None]:
        """While the block runs, this rank counts as waiting for `needs`."""
        wait = Wait(kind, peers, self.now(), needs, any_peer, threading.get_ident())
        self.waits.append(wait)
        try:
            yield
        finally:
            self.waits.remove(wait)

    def status(self) -> dict:
        """A snapshot for the launcher, taken by another thread than the worker's."""
        waits = list(self.waits)
        wait = waits[0] if waits else self._raw_wait()
        return {
            "now": self.now(),
            "wait": wait,
            "alone": self.alone() and len(waits) <= 1,  # nobody else in this rank could help
            "counts": dict(self.counts),
            "line": worker_line(wait.thread if wait else self.main_thread),
        }


def worker_line(thread: int) -> str:
    """The line on which a thread of this process is, in the first frame outside this package.

    Format: `file:line in function: source`. Empty where there is no such frame.
    """
    frame: types.FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((PACKAGE, *LIBRARIES, "<frozen", "<string>")):
            source = linecache.getline(name, frame.f_lineno).strip()
            return f"{short_file(name)}:{frame.f_lineno} in {frame.f_code.co_name}: {source}"
        frame = frame.f_back
    return ""


def short_file(name: str) -> str:
    """`cell` for a notebook's cell, the file's name for a file."""
    return "cell" if "ipykernel_" in name or name.startswith("<ipython") else Path(name).name


def fulfilled(wait: Wait, counts: dict[int, dict[Key, int]]) -> list[bool]:
    """For each need of `wait`: whether the peer's counts (global rank -> counts) fulfil it."""
    return [counts.get(need.peer, {}).get(need.key, 0) >= need.count for need in wait.needs]


def blocked_by(wait: Wait, counts: dict[int, dict[Key, int]]) -> tuple[int, ...]:
    """The peers whose next step `wait` depends on; empty where it can end by itself."""
    met = fulfilled(wait, counts)
    if not met or all(met) or (wait.any_peer and any(met)):
        return ()
    return tuple(need.peer for need, done in zip(wait.needs, met, strict=True) if not done)
