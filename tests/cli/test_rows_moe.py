"""The row of chapter 04 compares the same training, in two ways of running the experts."""

from __future__ import annotations

import sys

import cloudpickle
import torch

from pedagogy.cli import bench, rows_moe
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def weights_of_both_sides(group):
    """The weights after two steps of each side, and before them, at a small size."""
    rows_moe.TOKENS, rows_moe.HIDDEN, rows_moe.NUM_EXPERTS = 40, 8, 16
    made, make_layer = [], rows_moe._layer

    def noted():
        made.append(make_layer())
        return made[-1]

    rows_moe._layer = noted
    (row,) = rows_moe.ROWS
    for side in (row.ours, row.twin):
        step = side(group)
        step()
        step()
    made.append(make_layer())
    return [[parameter.detach() for parameter in layer.parameters()] for layer in made]


def test_both_sides_of_the_row_train_the_same_weights():
    for ours, twins, before in launch(weights_of_both_sides, 2):
        torch.testing.assert_close(ours, twins, rtol=1e-5, atol=1e-7)
        moved = [(a - b).abs().max().item() for a, b in zip(ours, before, strict=True)]
        assert max(moved) > 1e-5


def test_the_row_can_be_asked_for_by_name():
    assert [row.name for row in bench.rows(["moe_layer_step"])] == ["moe_layer_step"]
