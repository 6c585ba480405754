"""A run that takes minutes, recorded: dense and mixture after equal numbers of steps.

Why it is recorded
------------------
A mixture pays where there is much to remember, and a small model comes to that late: in the first
hundreds of steps it learns which byte follows which. The chapter runs the beginning, by the same
function; the whole of it takes minutes on two cores. Its losses stand beside this module as a CSV
file, whose first line says how they were made. To make them again, on your machine:

    python -m pedagogy.moe.recorded

Another machine gives other digits: rounding differs, and training amplifies it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from pedagogy.measure import mean_of_each, read_recording, write_recording
from pedagogy.moe.training import equal_compute

RECORDED_STEPS = 2400
POINT_STEPS = 100  # a point is the mean loss of so many steps
_FILE = "recorded_equal_compute.csv"


def recorded_run() -> dict[str, Tensor]:
    """Mean loss of each 100 steps, in nats, by model: (seeds, points). See `provenance`."""
    found: dict[str, list[list[float]]] = {}
    for name, _, *losses in read_recording("pedagogy.moe", _FILE).rows:
        found.setdefault(name, []).append([float(loss) for loss in losses])
    return {name: torch.tensor(losses) for name, losses in found.items()}


def provenance() -> str:
    """How, when and on what the recorded run was made."""
    return read_recording("pedagogy.moe", _FILE).provenance


def points(losses: Tensor) -> Tensor:
    """The mean of each `POINT_STEPS` losses: (steps,) -> (steps / POINT_STEPS,)."""
    return mean_of_each(losses, POINT_STEPS)


def record(path: Path, seeds: Iterable[int] = (0, 1, 2), steps: int = RECORDED_STEPS) -> None:
    """Train again and write the file. It takes minutes."""
    seeds = list(seeds)
    rows = (
        [name, seed, *points(losses).tolist()]
        for name, by_seed in equal_compute(seeds, steps).items()
        for seed, losses in zip(seeds, by_seed, strict=True)
    )
    how = f"pedagogy.moe.equal_compute(seeds={seeds}, steps={steps})"
    write_recording(path, f"{how}, mean loss of each {POINT_STEPS} steps in nats", rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record(Path(__file__).with_name(_FILE))
