"""Pictures of chapter 09: the artists say what the data say, and names do not overlap."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pedagogy.compression.frontier import Point
from pedagogy.plots import style
from pedagogy.plots.compression import error_figure, weight_histogram_figure
from pedagogy.plots.compression_bytes import file_sections_figure, training_bytes_figure
from pedagogy.plots.compression_frontier import COSTS, frontier_figure
from pedagogy.plots.compression_teacher import distillation_figure, gradient_size_figure
from pedagogy.plots.labels import labels_of

WEIGHT = torch.tensor([-4.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0])


def boxes(ax, gid):
    """Corners of the boxes of an artist: (left, right, low, high) of each."""
    found = [one for one in ax.collections if one.get_gid() == gid]
    corners = [box for c in found for p in c.get_paths() for box in p.vertices.reshape(-1, 5, 2)]
    return [(*np.sort(b[:, 0])[[0, -1]], *np.sort(b[:, 1])[[0, -1]]) for b in corners]


def line(ax, gid):
    (found,) = [one for one in ax.lines if one.get_gid() == gid]
    return found


def texts(owner, gid):
    return [text.get_text() for text in owner.texts if text.get_gid() == gid]


# --- weights and errors -----------------------------------------------------------------------


def test_bars_count_kept_and_removed_weights_and_leave_zeros_out():
    pruned = WEIGHT * (WEIGHT.abs() >= 2)
    figure = weight_histogram_figure({"before": WEIGHT, "pruned": pruned}, {"before": 1.5})
    before, after = figure.axes
    assert sum(high - low for *_, low, high in boxes(before, "kept")) == 4
    removed = boxes(before, "removed")
    assert sum(high - low for *_, low, high in removed) == 4
    assert all(left > -1.5 and right < 1.5 for left, right, *_ in removed)
    assert sum(high - low for *_, low, high in boxes(after, "kept")) == 4
    assert boxes(after, "removed") == []
    assert [one.get_xdata()[0] for one in before.lines] == [-1.5, 1.5]
    assert texts(before, "zeros") == []
    assert texts(after, "zeros") == ["50% are zero"]
    assert before.get_ylim() == after.get_ylim()
    # variances 47.5 / 8 - (5 / 8)^2 = 5.55 and 45 / 8 - (5 / 8)^2 = 5.23
    assert figure.get_label() == (
        "before: 8 weights, standard deviation 2.4, 50% below 1.5; pruned: 8 weights, standard "
        "deviation 2.3, 50% zero."
    )


def test_allowed_values_are_ticks_and_such_a_panel_has_its_own_scale():
    shared = torch.where(WEIGHT > 0, 2.0, -2.0)
    figure = weight_histogram_figure(
        {"before": WEIGHT, "shared": shared}, values={"shared": torch.tensor([-2.0, 2.0])}
    )
    assert list(line(figure.axes[1], "values").get_xdata()) == [-2, 2]
    assert figure.axes[0].get_ylim() != figure.axes[1].get_ylim()
    assert figure.get_label().endswith("2 values allowed.")
    with pytest.raises(ValueError, match=r"of \['after'\], but weights of \['before'\]"):
        weight_histogram_figure({"before": WEIGHT}, {"after": 1.0})
    with pytest.raises(ValueError, match=r"weights of \[\]"):
        weight_histogram_figure({})


def test_errors_stand_against_bits_and_ranks_with_the_break_even():
    bits, ranks = ([2, 4, 8], [0.5, 0.1, 0.0]), ([1, 2, 3, 4], [0.8, 0.4, 0.2, 0.0])
    figure = error_figure({"even": bits}, {"layer": ranks}, {"layer": 3})
    left, right = figure.axes
    assert np.isnan(line(left, "even").get_ydata()[-1])  # no logarithm of 0
    assert list(line(right, "layer").get_ydata()) == ranks[1]
    assert line(right, "break-even of layer").get_xdata()[0] == 3
    assert figure.get_label() == (
        "Relative errors: even 0 at 8 bits; layer 0.2 at its break-even rank 3."
    )
    (told,) = [text.get_text() for text in right.get_legend().get_texts()]
    assert told == "layer, 3"
    with pytest.raises(ValueError, match="other"):
        error_figure({"even": bits}, {"layer": ranks}, {"other": 3})


# --- the frontier -----------------------------------------------------------------------------


def point(method, setting, network, accuracies, size, flops):
    return Point(method, setting, network, accuracies, accuracies, size, flops, flops, 0)


POINTS = [
    point("full", "MLP", "MLP", [0.99, 0.98, 1.0], 1000, 500),
    point("pruned", "90 %", "MLP", [0.985, 0.98, 0.985], 120, 500),
    point("pruned", "95 %", "MLP", [0.90, 0.91, 0.92], 60, 500),
    point("low rank", "8", "MLP", [0.98, 0.99, 0.98], 200, 90),
    *[point("quantised", f"{bits} bits", "MLP", [0.98], 122 + bits, 500) for bits in (2, 4, 8)],
    point("full", "ConvNet", "ConvNet", [0.995], 300, 9000),
    point("channels", "50 %", "ConvNet", [0.95, 0.97], 90, 3000),
]


def test_marks_are_means_bars_are_all_seeds_and_a_level_is_the_full_net():
    figure = frontier_figure(POINTS)
    left, right = figure.axes
    pruned = line(left, "pruned, MLP")
    assert list(pruned.get_xdata()) == [60, 120]
    assert list(pruned.get_ydata()) == pytest.approx([0.91, 0.98333], rel=1e-4)
    assert list(line(right, "pruned, MLP").get_xdata()) == [500, 500]
    assert line(left, "level of full, MLP").get_ydata()[0] == pytest.approx(0.99)
    assert line(left, "level of full, ConvNet").get_ydata()[0] == pytest.approx(0.995)
    spans = [seg[:, 1].tolist() for c in left.collections for seg in c.get_segments()]
    assert pytest.approx([0.90, 0.92]) in spans
    assert line(left, "channels, ConvNet").get_markerfacecolor() == style.PAPER
    looks = {(one.get_marker(), one.get_color()) for one in left.lines if "MLP" in one.get_gid()}
    assert len(looks) == 4 + 1  # four methods, and the level's dashes
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told[:-1] == ["full", "pruned", "low rank", "quantised", "channels"]


def test_the_finding_is_the_smallest_and_the_fastest_within_a_point():
    assert frontier_figure(POINTS).get_label() == (
        "The full MLP has 99.0%, 1 kB; smallest file within a point of it: pruned, 90 %, 98.3%, "
        "8.3 times less; fewest FLOPs within a point of it: low rank, 8, 98.3%, 5.6 times less. "
        "The full ConvNet has 99.5%, 300 bytes; nothing else is within a point."
    )


def test_what_saves_no_flops_is_named_in_a_corner_and_not_at_its_mark():
    left, right = frontier_figure(POINTS).axes
    assert texts(right, "setting") == ["8", "50 %"]
    (note,) = texts(right, "same FLOPs")
    assert note.replace("\n", " ") == "as many FLOPs as the full net: pruned, quantised"
    assert texts(left, "same FLOPs") == []
    assert [left.get_xlabel(), right.get_xlabel()] == list(COSTS.values())


def test_settings_never_overlap_each_other_or_a_mark():
    crowd = [
        point("pruned", f"{i} %, in 5 steps", "MLP", [0.97 + 0.0005 * i], 100 + i, 500)
        for i in range(20)
    ]
    figure = frontier_figure([*POINTS, *crowd])
    left = figure.axes[0]
    renderer = FigureCanvasAgg(figure).get_renderer()
    written = [t.get_window_extent(renderer) for t in left.texts if t.get_gid() == "setting"]
    assert 0 < len(written) < len(crowd)  # some found no room
    assert not any(one.overlaps(other) for one, other in itertools.combinations(written, 2))
    marks = [xy for one in left.lines if one.get_marker() != "None" for xy in one.get_xydata()]
    for at in left.transData.transform(marks):
        assert not any(box.contains(*at) for box in written)


def test_each_network_needs_one_full_net():
    with pytest.raises(ValueError, match="0 points 'full' of network MLP"):
        frontier_figure(POINTS[1:3])
    with pytest.raises(ValueError, match="2 points 'full' of network MLP"):
        frontier_figure([*POINTS, POINTS[0]])
    with pytest.raises(ValueError, match="of network any"):
        frontier_figure([])


# --- bytes ------------------------------------------------------------------------------------


def test_sections_are_stacked_and_a_far_longer_bar_runs_out_of_the_picture():
    stages = {
        "dense": {"values": 1000},
        "pruned": {"values": 80, "gaps": 20},
        "Huffman": {"values": 40, "gaps": 10},
    }
    figure = file_sections_figure(stages)
    (ax,) = figure.axes
    assert ax.get_xlim() == (0, 130)
    spans = [(left, right) for left, right, *_ in boxes(ax, "gaps")]
    assert spans == [(80, 100), (40, 50)]
    assert ax.get_xlabel() == "bytes (dense is longer than the picture)"
    assert [text for text, _ in labels_of(ax, "totals")] == ["1 kB", "100 bytes", "50 bytes"]
    assert figure.get_label() == (
        "dense 1 kB; pruned 100 bytes (10.0 times smaller); Huffman 50 bytes (20.0 times smaller); "
        "the last is values 80%, gaps 20%."
    )
    whole = file_sections_figure({"a": {"x": 10}, "b": {"x": 9}}).axes[0]
    assert (whole.get_xlim()[1], whole.get_xlabel()) == (pytest.approx(11.7), "bytes")
    with pytest.raises(ValueError, match="at least 2"):
        file_sections_figure({"dense": {"values": 1}})


def test_training_bytes_stand_beside_the_files_and_the_finding_says_who_saves():
    full = {"parameters": 4, "gradients": 4, "optimizer_state": 8, "masks and indices": 0}
    methods = {
        "full": (full, 100),
        "pruned": ({**full, "masks and indices": 4}, 10),
        "low rank": ({"parameters": 1, "gradients": 1, "optimizer_state": 2}, 20),
        "student": ({"parameters": 1, "gradients": 1, "teacher": 4}, 5),
    }
    figure = training_bytes_figure(methods)
    training, file = figure.axes
    drawn = {(p.get_gid(), round(p.get_y() + 0.31, 6), p.get_width()) for p in training.patches}
    assert {("buffers", 1, 4), ("other", 3, 4)} <= drawn  # kind, row, bytes
    assert [p.get_width() for p in file.patches if p.get_gid() == "file"] == [100, 10, 20, 5]
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["parameters", "gradients", "optimizer state", "masks and indices", "teacher"]
    assert figure.get_label() == (
        "Of full's 16 bytes in training and 100 bytes in a file: pruned trains in 125% and stores "
        "in 10%; low rank trains in 25% and stores in 20%; student trains in 37.5% and stores in "
        "5%; smaller while training: low rank, student."
    )
    only = training_bytes_figure({name: methods[name] for name in ("full", "pruned")})
    assert only.get_label().endswith("smaller while training: none.")


# --- the teacher ------------------------------------------------------------------------------


def test_a_gain_is_told_apart_from_overlapping_seeds():
    runs = {
        50: {"alone": [0.80, 0.84], "T = 2": [0.83, 0.85], "T = 4": [0.90, 0.92]},
        300: {"alone": [0.96, 0.98], "T = 2": [0.95, 0.98], "T = 4": [0.95, 0.97]},
    }
    figure = distillation_figure(runs)
    (ax,) = figure.axes
    assert list(line(ax, "T = 4").get_ydata()) == pytest.approx([91, 96])
    assert list(ax.xaxis.get_majorticklocs()) == [50, 300]
    assert figure.get_label() == (
        "Median accuracies: 50 labels 82.0% alone, 91.0% with T = 4 (+9.0 points, every run above "
        "every run); 300 labels 97.0% alone, 96.5% with T = 2 (-0.5 points, ranges overlap)."
    )
    with pytest.raises(ValueError, match="alone"):
        distillation_figure({50: runs[50], 300: {"alone": [0.9]}})


def test_the_gradient_keeps_its_size_only_with_the_square():
    figure = gradient_size_figure([1, 4], {"times T squared": [0.4, 0.5], "without": [0.4, 0.03]})
    assert figure.get_label() == (
        "At T = 4 the gradient has times T squared 125% of its size at T = 1; without 7.5% of its "
        "size at T = 1."
    )
    assert list(line(figure.axes[0], "without").get_ydata()) == [0.4, 0.03]
