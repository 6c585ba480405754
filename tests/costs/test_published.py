"""Published tables: they are there, they parse, and they say where they come from."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pedagogy.costs import published


def test_every_table_names_its_source_and_has_full_rows():
    assert len(published.names()) >= 6
    for name in published.names():
        table = published.table(name)
        assert len(table.provenance) > 20
        assert not table.provenance.startswith("#")
        assert table.rows
        for row in table.rows:
            assert None not in row  # a cell beyond the header
            assert None not in row.values()  # a missing cell


def test_numbers_are_numbers_and_text_is_text():
    row = published.table("megatron_models").rows[1]
    assert (row["params"], row["layers"], row["days_per_epoch"]) == ("2.5B", 54, 2.27)
    assert published.table("goyal2017_table1").rows[1]["top1_err"] == 23.74


@pytest.mark.parametrize(
    ("cell", "value"), [("2.5B", 2.5e9), ("355M", 355e6), ("~90%", 0.9), (7, 7.0), ("1.5", 1.5)]
)
def test_printed_quantities_become_numbers(cell, value):
    assert published.quantity(cell) == pytest.approx(value)


@pytest.mark.parametrize("cell", ["near-linear", "", "B"])
def test_words_are_no_quantities(cell):
    with pytest.raises(ValueError, match="not a quantity"):
        published.quantity(cell)


def test_an_unknown_table_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match="megatron_models"):
        published.table("nonsense")


def test_costs_need_no_torch():
    code = "import sys, pedagogy.costs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
