"""Runs that take minutes, kept as files: read by a chapter, made again by whoever doubts them.

A recording is a CSV file beside the module that made it. Its first line, after "# ", says how it
was made, with which torch, on what, and when; each other line is a run: its name, then numbers.
Another machine gives other digits: rounding differs, and training amplifies it.
"""

from __future__ import annotations

import csv
import datetime
import platform
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor


class Recording(NamedTuple):
    """How, when and on what the runs were made; and a row of text for each run."""

    provenance: str
    rows: list[list[str]]


def read_recording(package: str, name: str) -> Recording:
    """The file `name` that travels with a package such as "pedagogy.moe"."""
    first, *lines = (files(package) / name).read_text(encoding="utf-8").splitlines()
    return Recording(first.removeprefix("# "), list(csv.reader(lines)))


def write_recording(path: Path, how: str, rows: Iterable[Sequence[object]]) -> None:
    """Write the file, each row as soon as it is there; floats with four decimals."""
    today = datetime.date.today().isoformat()
    made = f"one thread; torch {torch.__version__}, {platform.machine()}, {today}"
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {how}; {made}\n")
        writer = csv.writer(file, lineterminator="\n")
        for row in rows:
            writer.writerow([f"{x:.4f}" if isinstance(x, float) else x for x in row])
            file.flush()


def mean_of_each(losses: Tensor, steps: int) -> Tensor:
    """The mean of each `steps` losses: (n,) -> (n / steps,)."""
    return losses.view(-1, steps).mean(1)
