"""The row of chapter 09 trains two networks: one is the other without half its channels."""

from __future__ import annotations

import sys

import cloudpickle
import torch

from pedagogy.cli import bench, rows_compression
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def widths_and_moves(group):
    """Of each side: the convolutions' channels, and how far two steps moved its weights."""
    rows_compression.CHANNELS = 4
    made, (row,) = [], rows_compression.ROWS
    init = torch.optim.SGD.__init__

    def noted(self, parameters, **options):
        parameters = list(parameters)
        made.append((parameters, [p.detach().clone() for p in parameters]))
        init(self, parameters, **options)

    torch.optim.SGD.__init__ = noted
    try:
        for side in (row.ours, row.twin):
            step = side(group)
            step()
            step()
    finally:
        torch.optim.SGD.__init__ = init
    return [
        (
            [tuple(p.shape[:2]) for p in now if p.dim() == 4],
            [(a - b).abs().max().item() for a, b in zip(now, before, strict=True)],
        )
        for now, before in made
    ]


def test_both_sides_train_and_one_has_half_of_the_channels():
    (sides,) = launch(widths_and_moves, 1)
    (thin, thin_moved), (full, full_moved) = sides
    assert full == [(4, 1), (8, 4), (8, 8)]
    assert thin == [(2, 1), (4, 2), (4, 4)]
    assert min(max(thin_moved), max(full_moved)) > 1e-5


def test_the_row_can_be_asked_for_by_name():
    assert [row.name for row in bench.rows(["channel_pruned_step"])] == ["channel_pruned_step"]
