"""Stragglers on paper: who computes, who waits and what is thrown away, with clocks alone.

Why it exists
    Three ways to live with a slow worker differ in one thing, what the others do meanwhile. That
    needs no model: a gradient takes 1 unit of time (a straggler's takes more), messages are free,
    and what follows can be drawn at once, for any number of workers.

        synchronous     the step ends with the slowest gradient; the others wait
        backup workers  the step ends with the first N of N + b; the late ones are dropped
        asynchronous    each gradient is applied when it comes; nobody waits, unless a bound on
                        staleness holds the fast ones back

How it works
    Each function follows the server of the real thing, decision by decision (`synchronous.py`,
    `backup_workers.py`, `asynchronous.py`), with a heap of finishing times in the place of
    messages. Gradients that finish together are taken in the order of the workers.

What it leaves out
    Messages, and the server, which in a real run is a queue of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from pedagogy.ranks import Event


class Applied(NamedTuple):
    """One update: whose gradients, the version that they were computed at, and when it was made."""

    workers: tuple[int, ...]
    read_version: int
    time: float


class Simulation(NamedTuple):
    """Spans of the workers ("compute", "wait", "dropped"), and the updates in their order."""

    events: list[Event]
    updates: list[Applied]

    @property
    def staleness(self) -> list[int]:
        """For each update, the versions that were made between reading and applying."""
        return [version - update.read_version for version, update in enumerate(self.updates)]

    def updates_per_unit(self, end: float) -> float:
        """Updates of the weights in each unit of time, up to `end`."""
        return sum(update.time <= end for update in self.updates) / end

    def gradients_per_unit(self, end: float) -> float:
        """Gradients that were used (not dropped) in each unit of time, up to `end`."""
        return sum(len(u.workers) for u in self.updates if u.time <= end) / end


def simulate_synchronous(slowdown: Sequence[float], end: float) -> Simulation:
    """Steps up to time `end`: each lasts as long as its slowest gradient.

    `slowdown` holds the units that a gradient takes on each worker; workers are counted from 1.
    **Raises** ValueError without a worker, or for a duration that is not positive.
    """
    return simulate_backup_workers(slowdown, 0, end)


def simulate_backup_workers(slowdown: Sequence[float], num_backups: int, end: float) -> Simulation:
    """Steps up to `end`, of which each ends with the first gradients: all but `num_backups`.

    A late worker's gradient is dropped, and it joins the step that is under way.
    **Raises** ValueError as `simulate_synchronous`, or where no worker is left to wait for.
    """
    _check(slowdown, end)
    if not 0 <= num_backups < len(slowdown):
        raise ValueError(
            f"num_backups is {num_backups} of {len(slowdown)} workers; "
            f"it can be 0 to {len(slowdown) - 1}"
        )
    events: list[Event] = []
    updates: list[Applied] = []
    busy = [(units, worker, 0, 0.0) for worker, units in enumerate(slowdown, 1)]
    heapq.heapify(busy)
    arrived: list[tuple[int, float]] = []
    while busy[0][0] <= end:
        time, worker, step, start = heapq.heappop(busy)
        if step < len(updates):  # too late: its step is over
            events.append(Event(worker, "dropped", "dropped", start, time))
            restarted = (time + slowdown[worker - 1], worker, len(updates), time)
            heapq.heappush(busy, restarted)
            continue
        events.append(Event(worker, "compute", f"{step}", start, time))
        arrived.append((worker, time))
        if len(arrived) == len(slowdown) - num_backups:
            updates.append(Applied(tuple(one for one, _ in arrived), step, time))
            for waited, since in arrived:
                _wait(events, waited, since, time)
                heapq.heappush(busy, (time + slowdown[waited - 1], waited, len(updates), time))
            arrived = []
    _finish(events, busy, dict(arrived), end, len(updates))
    return Simulation(events, updates)


def simulate_asynchronous(
    slowdown: Sequence[float], staleness_bound: int | None, end: float
) -> Simulation:
    """Updates up to `end`: each gradient is applied when it is finished.

    A worker that is more than `staleness_bound` gradients ahead of the slowest one waits for its
    weights; without a bound nobody waits.
    **Raises** ValueError as `simulate_synchronous`, or for a negative bound.
    """
    _check(slowdown, end)
    if staleness_bound is not None and staleness_bound < 0:
        raise ValueError(f"staleness_bound is {staleness_bound}; it must be 0 or more, or None")
    events: list[Event] = []
    updates: list[Applied] = []
    clocks = dict.fromkeys(range(1, len(slowdown) + 1), 0)
    waiting = dict.fromkeys(clocks, 0.0)
    busy: list[tuple[float, int, int, float]] = []
    time = 0.0
    while True:
        slowest = min(clocks.values())
        for worker in sorted(waiting):
            if staleness_bound is None or clocks[worker] - slowest <= staleness_bound:
                _wait(events, worker, waiting.pop(worker), time)
                finish = time + slowdown[worker - 1]
                heapq.heappush(busy, (finish, worker, len(updates), time))
        if busy[0][0] > end:
            _finish(events, busy, waiting, end, 0)
            return Simulation(events, updates)
        time, worker, version, start = heapq.heappop(busy)
        events.append(Event(worker, "compute", f"{version}", start, time))
        updates.append(Applied((worker,), version, time))
        clocks[worker] += 1
        waiting[worker] = time


def _wait(events: list[Event], worker: int, since: float, time: float) -> None:
    if time > since:
        events.append(Event(worker, "wait", "", since, time))


def _finish(
    events: list[Event],
    busy: Sequence[tuple[float, int, int, float]],
    waiting: dict[int, float],
    end: float,
    version: int,
) -> None:
    """What is under way at `end` is cut there."""
    for _, worker, read, start in busy:
        kind = "dropped" if read < version else "compute"
        if end > start:
            events.append(
                Event(worker, kind, "dropped" if read < version else f"{read}", start, end)
            )
    for worker, since in waiting.items():
        _wait(events, worker, since, end)
    events.sort(key=lambda event: (event.start, event.rank))


def _check(slowdown: Sequence[float], end: float) -> None:
    if not slowdown or min(slowdown) <= 0 or end <= 0:
        raise ValueError(
            f"slowdown {tuple(slowdown)} up to {end}: needs at least one worker, and positive times"
        )
