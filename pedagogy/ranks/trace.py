"""What happened on every rank, as plain data.

A technique's code does not draw and does not time itself. The seams through which it works log
what passed: `Group` logs each communication, and the few interpreters (a pipeline's executor, a
data-parallel wrapper) log the spans that they compute. Everything that the workbook shows about a
run, a timeline, the bytes sent, the order of messages, is read from this list afterwards.

How it works
    Each rank appends `Event`s to a list of its own. When the workers return, `launch` merges the
    lists into one `Trace`, sorted by start. All ranks of one machine share a clock that starts
    when all of them are ready, so the events of different ranks can be laid side by side.

What it costs
    One tuple for each communication; nothing is written while a message is under way.

What real systems do differently
    PyTorch's profiler (Kineto) records every operator and kernel, at a price of gigabytes a minute.
    Its traces open in the same viewer as those that `Trace.save_perfetto` writes.

Sources: the "Trace Event Format" of Chromium, read by https://ui.perfetto.dev.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, overload


class Event(NamedTuple):
    """One span of time on one rank: a communication, or a piece of compute.

    `rank` and `peers` are global ranks. `start` and `end` are seconds since all ranks were ready.
    `nbytes` is what this rank handed to the transport during the span (0 for compute, and for a
    rank that only received).
    """

    rank: int
    kind: str
    name: str
    start: float
    end: float
    nbytes: int = 0
    peers: tuple[int, ...] = ()


class Trace(Sequence[Event]):
    """The events of a run, sorted by their start."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = sorted(events, key=lambda event: (event.start, event.rank))

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Trace: ...
    def __getitem__(self, index: int | slice) -> Event | Trace:
        found = self._events[index]
        return Trace(found) if isinstance(index, slice) else found

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        kinds = sorted({event.kind for event in self})
        return f"Trace({len(self)} events: {', '.join(kinds)})"

    def of(
        self, kind: str | None = None, rank: int | None = None, name: str | None = None
    ) -> Trace:
        """The events of one kind, one rank, one name; `None` leaves that choice open."""
        return Trace(
            event
            for event in self
            if (kind is None or event.kind == kind)
            and (rank is None or event.rank == rank)
            and (name is None or event.name == name)
        )

    def since(self, start: float) -> Trace:
        """The events that start then or later, on a clock that is 0 at `start`."""
        return Trace(
            event._replace(start=event.start - start, end=event.end - start)
            for event in self
            if event.start >= start
        )

    def bytes_sent(self, rank: int | None = None, kind: str | None = None) -> int:
        """Bytes handed to the transport, by one rank (or by all) in one kind (or in all)."""
        return sum(event.nbytes for event in self.of(kind=kind, rank=rank))

    def save_perfetto(self, path: str | Path) -> Path:
        """Write the trace as JSON that https://ui.perfetto.dev opens; one track for each rank.

        **Returns** the path written.
        """
        named = [
            {
                "ph": "M",
                "name": "thread_name",
                "pid": 0,
                "tid": rank,
                "args": {"name": f"rank {rank}"},
            }
            for rank in sorted({event.rank for event in self})
        ]
        spans = [
            {
                "ph": "X",
                "name": event.name or event.kind,
                "cat": event.kind,
                "pid": 0,
                "tid": event.rank,
                "ts": event.start * 1e6,  # microseconds
                "dur": (event.end - event.start) * 1e6,
                "args": {"nbytes": event.nbytes, "peers": list(event.peers)},
            }
            for event in self
        ]
        path = Path(path)
        path.write_text(json.dumps({"traceEvents": named + spans, "displayTimeUnit": "ms"}))
        return path
