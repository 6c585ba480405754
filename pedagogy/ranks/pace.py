"""Compute that takes a known time, so that a timeline on shared cores is worth looking at.

The problem
    Four ranks on two cores cannot compute at the same time. Their timeline shows who got a core,
    not how the schedule works.

How it works
    `Pace(seconds_per_unit)` pads each span of real compute to a fixed duration by sleeping. A
    sleeping process needs no core, so the ranks overlap as they would on machines of their own.
    The numbers stay real: the tensors are computed, the messages are sent, and the order and the
    waiting come from those messages. Only the length of the compute is set.

What it costs
    The unit must be longer than the slowest real span. A span that took longer than its duration
    is not padded, and is counted in `late`: where `late` is not 0 the unit was too short.

Every picture made with it says "paced".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Pace:
    """Pads compute to `units * seconds_per_unit` seconds.

    >>> pace = Pace(0.02)
    >>> with pace.span(units=2):
    ...     pass  # real compute; the block lasts 0.04 s

    **Raises** ValueError where `seconds_per_unit` is negative.
    """

    def __init__(self, seconds_per_unit: float) -> None:
        if seconds_per_unit < 0:
            raise ValueError(f"seconds_per_unit is {seconds_per_unit}; it must be 0 or more")
        self.seconds_per_unit = seconds_per_unit
        self.late = 0

    @contextmanager
    def span(self, units: float = 1.0) -> Iterator[None]:
        """The block lasts `units * seconds_per_unit`, or its compute's time if that is longer."""
        end = time.perf_counter() + units * self.seconds_per_unit
        yield
        left = end - time.perf_counter()
        if left > 0:
            time.sleep(left)
        elif self.seconds_per_unit > 0:
            self.late += 1
