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

import csv
import datetime
import platform
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

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
    for name, _, *numbers in csv.reader(_lines(_REMOVALS)[1:]):
        by_row.setdefault(name, []).append([float(number) for number in numbers])
    found = {}
    for name, runs in by_row.items():
        skipped, zero, lost, *losses = (list(column) for column in zip(*runs, strict=True))
        found[name] = Recorded(torch.tensor(losses).T, [int(n) for n in skipped], zero, lost)
    return found


def recorded_large_batch() -> dict[str, Tensor]:
    """Loss of each step, in nats, by scheme: (steps,). See `provenance`."""
    rows = csv.reader(_lines(_LARGE)[1:])
    return {name: torch.tensor([float(loss) for loss in losses]) for name, *losses in rows}


def provenance() -> str:
    """How, when and on what the recorded runs were made, a line each."""
    return "\n".join(_lines(name)[0].removeprefix("# ") for name in (_REMOVALS, _LARGE))


def points(losses: Tensor) -> Tensor:
    """The mean of each `POINT_STEPS` losses: (steps,) -> (steps / POINT_STEPS,)."""
    return losses.view(-1, POINT_STEPS).mean(1)


def record_removals(
    path: Path, seeds: Iterable[int] = (0, 1, 2), steps: int = RECORDED_STEPS
) -> None:
    """Train again and write the file. It takes minutes."""
    seeds = list(seeds)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(_made_by(f"removed(row, seed, steps={steps}), seeds {seeds}", POINT_STEPS))
        writer = csv.writer(file, lineterminator="\n")
        for name in ROWS:
            for seed in seeds:
                run = removed(name, seed, steps)
                seen = (run.num_skipped, f"{run.zero_share:.4f}", f"{run.lost_share:.4f}")
                losses = (f"{x:.4f}" for x in points(run.losses).tolist())
                writer.writerow([name, seed, *seen, *losses])
                file.flush()


def record_large_batch(path: Path, tokens: int = LARGE_TOKENS, steps: int = LARGE_STEPS) -> None:
    """Train again and write the file. It takes minutes."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(_made_by(f"large_batch(scheme, tokens={tokens}, steps={steps})", 1))
        writer = csv.writer(file, lineterminator="\n")
        for scheme in LARGE_SCHEMES:
            losses = large_batch(scheme, tokens, steps).losses
            writer.writerow([scheme, *(f"{x:.4f}" for x in losses.tolist())])
            file.flush()


def _made_by(call: str, steps: int) -> str:
    mean = "loss of each step" if steps == 1 else f"mean loss of each {steps} steps"
    return (
        f"# pedagogy.precision.evidence.{call}: {mean} in nats; one thread; "
        f"torch {torch.__version__}, {platform.machine()}, {datetime.date.today().isoformat()}\n"
    )


def _lines(name: str) -> list[str]:
    return (files("pedagogy.precision") / name).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    torch.set_num_threads(1)
    record_removals(Path(__file__).with_name(_REMOVALS))
    record_large_batch(Path(__file__).with_name(_LARGE))
