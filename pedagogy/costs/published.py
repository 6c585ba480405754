"""What the papers printed, as data.

Why it exists
-------------
A chapter that claims "our formula gives Megatron's sizes" needs Megatron's sizes, with a note of
where they come from and how far they can be trusted. Each table is a CSV file beside this module;
its first line is that note and travels with the rows as `provenance`. Rows whose status says that
they were written from memory illustrate, they prove nothing: no test takes them as the truth.

>>> models = table("megatron_models")
>>> models.rows[1]["params"], models.rows[1]["layers"]
('2.5B', 54)
"""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import NamedTuple

Cell = int | float | str


class Table(NamedTuple):
    """A published table: its name, where it comes from, and its rows by column name."""

    name: str
    provenance: str
    rows: list[dict[str, Cell]]


def names() -> list[str]:
    """The names of all tables."""
    folder = files("pedagogy.costs") / "tables"
    return sorted(f.name.removesuffix(".csv") for f in folder.iterdir() if f.name.endswith(".csv"))


def table(name: str) -> Table:
    """One table; cells that look like numbers are numbers, all others are text.

    **Raises** ValueError that lists the names there are.
    """
    if name not in names():
        raise ValueError(f"no table {name!r}: choose one of {', '.join(names())}")
    text = (files("pedagogy.costs") / "tables" / f"{name}.csv").read_text(encoding="utf-8")
    provenance, *lines = text.splitlines()
    rows = [
        {column: _cell(value) for column, value in row.items()} for row in csv.DictReader(lines)
    ]
    return Table(name, provenance.removeprefix("#").strip(), rows)


def quantity(cell: Cell) -> float:
    """A printed quantity as a number: "2.5B" is 2.5e9, "355M" is 355e6, "~90%" is 0.9.

    **Raises** ValueError if it is none.
    """
    if not isinstance(cell, str):
        return float(cell)
    text = cell.strip().removeprefix("~")
    scales = {"T": 1e12, "B": 1e9, "M": 1e6, "K": 1e3, "%": 0.01}
    try:
        return float(text[:-1]) * scales[text[-1]] if text[-1:] in scales else float(text)
    except ValueError:
        raise ValueError(f"{cell!r} is not a quantity such as 2.5B, 355M or 90%") from None


def _cell(value: str) -> Cell:
    """An int if it reads as one, else a float, else the text."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
