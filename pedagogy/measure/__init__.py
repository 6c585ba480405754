"""What a run costs, measured: live bytes by kind, a limit that is enforced, FLOPs; and the state
of the random generators, saved and restored.

Closed forms (`pedagogy.costs`) say what a technique should cost; this package says what it did
cost, so that the two can be compared to the byte.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pedagogy.measure.budget import BudgetExceeded, DeviceBudget
    from pedagogy.measure.closeness import all_close
    from pedagogy.measure.counter import count_flops
    from pedagogy.measure.meter import KINDS, MemoryMeter, memory_meter
    from pedagogy.measure.phases import PHASES, phase_seconds
    from pedagogy.measure.random_state import restore_rng_state, rng_state
    from pedagogy.measure.recordings import (
        Recording,
        mean_of_each,
        read_recording,
        write_recording,
    )
    from pedagogy.measure.written import bytes_written, written_by

__all__ = [
    "KINDS",
    "PHASES",
    "BudgetExceeded",
    "DeviceBudget",
    "MemoryMeter",
    "Recording",
    "all_close",
    "bytes_written",
    "count_flops",
    "mean_of_each",
    "memory_meter",
    "phase_seconds",
    "read_recording",
    "restore_rng_state",
    "rng_state",
    "write_recording",
    "written_by",
]

_HOMES = {
    "budget": ("BudgetExceeded", "DeviceBudget"),
    "closeness": ("all_close",),
    "counter": ("count_flops",),
    "meter": ("KINDS", "MemoryMeter", "memory_meter"),
    "phases": ("PHASES", "phase_seconds"),
    "random_state": ("restore_rng_state", "rng_state"),
    "recordings": ("Recording", "mean_of_each", "read_recording", "write_recording"),
    "written": ("bytes_written", "written_by"),
}


def __getattr__(name: str) -> object:
    """Import a measuring file when it is first asked for (torch is heavy)."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
