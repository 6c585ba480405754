"""Shard maps, memory, bars, curves: artists say what the data say."""

import numpy as np
import pytest

from pedagogy.plots.bars import bars_figure
from pedagogy.plots.curves import curves_figure, histograms_figure, spread
from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.memory import memory_bars_figure, memory_figure
from pedagogy.plots.shards import ShardMap, cell_text, shards_figure


def boxes_of(ax, gid):
    return sum(
        len(path.vertices) // 5
        for collection in ax.collections
        if collection.get_gid() == gid
        for path in collection.get_paths()
    )


def test_a_shard_map_has_a_filled_slot_for_each_contribution():
    state = [[{0}, {0, 1}, {0, 1, 2}], [{1}, set(), {1}], [{2}, {2}, {0, 1, 2}]]
    ax = shards_figure([ShardMap(state)], "Two cells are complete.").axes[0]
    assert boxes_of(ax, "slots") == (1 + 2 + 3) + (1 + 0 + 1) + (1 + 1 + 3)
    assert boxes_of(ax, "full") == 2
    written = {(at[1], at[0]): text for text, at in labels_of(ax, "held")}
    assert written == {
        (0, 0): "0",
        (0, 1): "0+1",
        (0, 2): "all",
        (1, 0): "1",
        (1, 2): "1",
        (2, 0): "2",
        (2, 1): "2",
        (2, 2): "all",
    }


def test_a_contribution_has_the_same_place_in_every_cell():
    ax = shards_figure([ShardMap([[{0}, {1}], [{0, 1}, set()]])], "Places.").axes[0]
    left_edges = {(row, round(start, 6)) for row, start, _ in blocks(ax, "slots")}
    # A cell is 0.88 wide: it starts 0.44 before its column, and its second slot in the middle.
    assert left_edges == {(0, -0.44), (0, 1.0), (1, -0.44), (1, 0.0)}


def test_moves_are_arrows_and_what_each_rank_sent_stands_beside_its_row():
    state = [[{0}, {0}], [{1}, {1}]]
    moving = ShardMap(state, moves=[(0, 1, 0, "reduce_scatter"), (1, 0, 1, "reduce_scatter")])
    left, _, sent = shards_figure(
        [moving, ShardMap(state)], "A step.", sent=[0.5, 0.25], limit=1
    ).axes
    assert sum(patch.get_gid() == "move" for patch in left.patches) == 2
    assert labels_of(sent, "amounts")[0][0] == "0.5"
    widths = [
        path.vertices.reshape(-1, 5, 2)[:, :, 0].max(axis=1)
        for path in sent.collections[0].get_paths()
    ]
    assert np.concatenate(widths).tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    ("held", "text"), [(set(), ""), ({2}, "2"), ({0, 3}, "0+3"), ({0, 1, 2, 4}, "4 of 8")]
)
def test_a_cell_names_the_ranks_in_it_or_counts_them(held, text):
    assert cell_text(held, 8) == text


def test_memory_over_time_is_stacked_and_its_peak_is_named():
    curve = [
        (0.0, {"parameters": 10e6, "activations": 0}),
        (1.0, {"parameters": 10e6, "activations": 30e6}),
        (2.0, {"parameters": 10e6, "activations": 5e6}),
    ]
    ax = memory_figure(curve, "Activations make the peak.").axes[0]
    assert [area.get_gid() for area in ax.collections] == ["parameters", "activations"]
    assert ax.collections[1].get_paths()[0].vertices[:, 1].max() == 40e6
    assert ax.texts[0].get_text() == "peak 40 MB"
    (peak,) = [line for line in ax.lines if line.get_gid() == "peak"]
    assert peak.get_xydata().tolist() == [[1.0, 40e6]]


def test_predicted_and_measured_memory_are_stacked_bars_with_their_totals():
    bars = {
        "predicted": {"parameters": 4e6, "gradients": 4e6},
        "measured": {"gradients": 4e6, "parameters": 4e6, "buffers": 1e6},
    }
    ax = memory_bars_figure(bars, "One megabyte of buffers was not predicted.").axes[0]
    widths = {}
    for patch in ax.patches:
        widths.setdefault(patch.get_gid(), []).append(patch.get_width())
    assert widths == {"parameters": [4e6, 4e6], "gradients": [4e6, 4e6], "buffers": [0, 1e6]}
    assert [text.get_text() for text in ax.texts] == ["8 MB", "9 MB"]


def test_bars_carry_their_numbers_and_differ_by_hatch():
    groups = {
        "ring": {"predicted": 1.5, "measured": 1.5},
        "tree": {"predicted": 2, "measured": 2.25},
    }
    ax = bars_figure(groups, "Measured equals predicted.", limit=2).axes[0]
    assert {patch.get_gid(): patch.get_hatch() for patch in ax.patches} == {
        "predicted": "",
        "measured": "//",
    }
    assert [text.get_text() for text in ax.texts] == ["1.5", "2", "1.5", "2.25"]
    with pytest.raises(ValueError, match=r"'tree' holds \['b'\], the first one \['a'\]"):
        bars_figure({"ring": {"a": 1}, "tree": {"b": 1}}, "Never.")


def test_a_curve_over_several_seeds_is_their_median_in_a_band_from_lowest_to_highest():
    runs = [[1, 2, 9], [2, 4, 5], [3, 3, 7]]
    ax = curves_figure({"4 workers": ([0, 1, 2], runs)}, "Seeds spread.").axes[0]
    assert ax.lines[0].get_ydata().tolist() == [2, 3, 7]
    band = ax.collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band.tolist()} >= {
        (0, 1),
        (0, 3),
        (1, 2),
        (1, 4),
        (2, 5),
        (2, 9),
    }


def test_lines_are_named_at_their_ends_and_names_do_not_overlap():
    curves = {name: ([0, 1], [0, 1 + i / 1000]) for i, name in enumerate("abc")}
    ax = curves_figure(curves, "Three lines end together.", y_scale="linear").axes[0]
    heights = [text.xy[1] * ax.bbox.height for text in ax.texts]
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c"]
    assert np.diff(heights).min() >= 12 * 100 / 72 - 0.01


def test_names_that_are_far_apart_are_not_moved():
    assert spread([10.0, 100.0, 50.0], 12.0) == [10.0, 100.0, 50.0]


def test_histograms_share_bins_and_axes():
    panels = {
        "before averaging": {"rank 0": [-1.0, 0.0, 1.0], "rank 1": [0.0, 0.0, 2.0]},
        "after averaging": {"every rank": [-0.5, 0.0, 1.5]},
    }
    figure = histograms_figure(panels, "Averaging narrows the distribution.", num_bins=4)
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    edges = [patch.get_data().edges.tolist() for ax in figure.axes for patch in ax.patches]
    assert edges[0] == edges[1] == edges[2]
    assert left.patches[1].get_data().values.sum() >= 2
