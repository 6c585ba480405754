"""The clock of a GPU's stream, for spans of compute.

A call that launches a kernel returns before the kernel has run: host time around it measures the
launch, not the work. CUDA events are recorded *in* the stream, between the kernels. A first event
is recorded when the stream is idle and the host's time is known; every later one is that time plus
what passed on the stream. The times are fetched when the run is over: nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pedagogy.ranks.trace import Event
from pedagogy.ranks.watch import Log


class StreamClock:
    """Logs spans of one GPU in a rank's `Log`. Touches no GPU before the first span."""

    def __init__(self, log: Log, device: torch.device) -> None:
        self.log, self.device = log, device
        self.base: torch.cuda.Event | None = None
        self.base_seconds = 0.0

    @contextmanager
    def span(self, kind: str, name: str) -> Iterator[None]:
        """Log the kernels that the block launches as one event."""
        if self.base is None:
            torch.cuda.synchronize(self.device)
            self.base = self._record()
            self.base_seconds = self.log.now()
        start = self._record()
        yield
        end = self._record()

        def event() -> Event:
            end.synchronize()
            return Event(self.log.rank, kind, name, self._seconds(start), self._seconds(end))

        self.log.unsettled.append(event)

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _seconds(self, event: torch.cuda.Event) -> float:
        assert self.base is not None
        return self.base_seconds + self.base.elapsed_time(event) / 1000  # milliseconds
