"""Runs that take minutes, recorded: each technique removed in turn, and a batch of 262,144 tokens.

Why they are recorded
---------------------
fp16 has no fast matrix product on a CPU, and a sum that is rounded after each term has none
anywhere. The chapter runs the beginning, by the same functions; the whole takes minutes. Losses
stand beside this module in two CSV files, whose first lines say how they were made. To make them
again, on your machine:

    python -m pedagogy.precision.recorded

Another machine gives other digits: rounding differs, and training amplifies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pedagogy.measure import mean_of_each, read_recording, write_recording
from pedagogy.precision.evidence import ROWS, large_batch, removed

RECORDED_STEPS, POINT_STEPS = 400, 40  # a point is the mean loss of so many steps
LARGE_STEPS, LARGE_TOKENS = 20, 262_144
LARGE_SCHEMES = ("fp32", "fp16", "no loss scaling")
_REMOVALS, _LARGE = "recorded_removals.csv", "recorded_large_batch.csv"


class Recorded(NamedTuple):
    """One row over its seeds: losses (seeds, points) in nats, and what `SchemeRun` counted."""

    losses: Tensor
    num_skipped: list[int]
    zero_share: list[float]
    lost_share: list[float]

    @property
    def final(self) -> list[float]:
        """The last point of each seed."""
        return self.losses[:, -1].tolist()


def recorded_removals() -> dict[str, Recorded]:
    """The rows of `evidence.ROWS`, over three seeds. See `provenance`."""
    by_row: dict[str, list[list[float]]] = {}
    for name, _, *numbers in read_recording("pedagogy.precision", _REMOVALS).rows:
        by_row.setdefault(name, []).append([float(number) for number in numbers])
    found = {}
    for name, runs in by_row.items():
        skipped, zero, lost, *losses = (list(column) for column in zip(*runs, strict=True))
        found[name] = Recorded(torch.tensor(losses).T, [int(n) for n in skipped], zero, lost)
    return found


def recorded_large_batch() -> dict[str, Tensor]:
    """Loss of each step, in nats, by scheme: (steps,). See `provenance`."""
    rows = read_recording("pedagogy.precision", _LARGE).rows
    return {name: torch.tensor([float(loss) for loss in losses]) for name, *losses in rows}


def provenance() -> str:
    """How, when and on what the recorded runs were made, a line each."""
    recordings = (read_recording("pedagogy.precision", name) for name in (_REMOVALS, _LARGE))
    return "\n".join(recording.provenance for recording in recordings)


def points(losses: Tensor) -> Tensor:
    """The mean of each `POINT_STEPS` losses: (steps,) -> (steps / POINT_STEPS,)."""
    return mean_of_each(losses, POINT_STEPS)


def record_removals(
    path: Path, seeds: Iterable[int] = (0, 1, 2), steps: int = RECORDED_STEPS
) -> None:
    """Train again and write the file. It takes minutes."""
    seeds = list(seeds)

    def rows() -> Iterator[list]:
        for name in ROWS:
            for seed in seeds:
                run = removed(name, seed, steps)
                seen = (run.num_skipped, run.zero_share, run.lost_share)
                yield [name, seed, *seen, *points(run.losses).tolist()]

    how = f"pedagogy.precision.evidence.removed(row, seed, steps={steps}), seeds {seeds}"
    write_recording(path, f"{how}: mean loss of each {POINT_STEPS} steps in nats", rows())


def record_large_batch(path: Path, tokens: int = LARGE_TOKENS, steps: int = LARGE_STEPS) -> None:
    """Train again and write the file. It takes minutes."""
    rows = ([s, *large_batch(s, tokens, steps).losses.tolist()] for s in LARGE_SCHEMES)
    how = f"pedagogy.precision.evidence.large_batch(scheme, tokens={tokens}, steps={steps})"
    write_recording(path, f"{how}: loss of each step in nats", rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record_removals(Path(__file__).with_name(_REMOVALS))
    record_large_batch(Path(__file__).with_name(_LARGE))
