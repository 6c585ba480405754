"""The rows of chapters 05, 06, 08 and 10 compare the same training, done by ours and by torch's."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch

from pedagogy.cli import (
    bench,
    rows_accumulation,
    rows_optimizers,
    rows_precision,
    rows_recompute,
)
from pedagogy.ranks import launch
from pedagogy.workloads import gpt

cloudpickle.register_pickle_by_value(sys.modules[__name__])
SMALL = {"layers": 1, "hidden": 8, "heads": 2, "sequence": 4}


def weights_of_both_sides(group, rows):
    """The weights after two steps of each side, and before them, at a small size."""
    rows.GPT_SIZES = SMALL
    made, init = [], gpt.GPT.__init__

    def noted(self, *arguments, **sizes):
        init(self, *arguments, **sizes)
        made.append(self)

    gpt.GPT.__init__ = noted
    try:
        (row,) = rows.ROWS
        for side in (row.ours, row.twin):
            step = side(group)
            step()
            step()
        torch.manual_seed(0)
        gpt.GPT(**SMALL)
    finally:
        gpt.GPT.__init__ = init
    return [[parameter.detach() for parameter in model.parameters()] for model in made]


ROWS = [rows_precision, rows_accumulation, rows_recompute, rows_optimizers]


@pytest.mark.parametrize("rows", ROWS)
def test_both_sides_of_a_row_train_the_same_weights(rows):
    for ours, twins, before in launch(weights_of_both_sides, rows.ROWS[0].world_size, rows):
        torch.testing.assert_close(ours, twins, rtol=1e-5, atol=1e-7)
        moved = [(a - b).abs().max().item() for a, b in zip(ours, before, strict=True)]
        assert max(moved) > 1e-5


def test_the_rows_can_be_asked_for_by_name():
    names = ["loss_scaler_step", "accumulation_window", "checkpoint_step", "adafactor_step"]
    assert [row.name for row in bench.rows(names)] == names
