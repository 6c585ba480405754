"""A cut model is drawn layer by layer, and what sets the pace is marked."""

import pytest

from pedagogy.plots.labels import labels_of
from pedagogy.plots.partition import CutStage, milliseconds, partition_figure, period

SECONDS = [0.001, 0.004, 0.002, 0.003]
EVEN = [CutStage(0, 2, 1, 0.005, 0.002), CutStage(2, 4, 1, 0.005)]
UNEVEN = [CutStage(0, 1, 1, 0.001, 0.007), CutStage(1, 4, 3, 0.003)]


def figure_of(**cuts):
    return partition_figure(SECONDS, cuts, "Two cuts.", facts=["a"] * len(cuts))


def boxes(ax, gid):
    (found,) = [c for c in ax.collections if c.get_gid() == gid]
    corners = [path.vertices.reshape(-1, 5, 2) for path in found.get_paths()]
    return [(round(box[0, 0] + 0.4), box[1, 1]) for group in corners for box in group]


def test_each_stage_holds_its_layers_and_a_bars_height_is_its_time():
    (ax,) = figure_of(even=EVEN).axes
    assert boxes(ax, "stage 0") == [(0, 0.001), (1, 0.004)]
    assert boxes(ax, "stage 1") == [(2, 0.002), (3, 0.003)]


def test_neighbouring_stages_differ_without_their_colours():
    (ax,) = figure_of(even=EVEN).axes
    hatches = {c.get_gid(): c.get_hatch() for c in ax.collections}
    assert hatches["stage 0"] != hatches["stage 1"]


def test_the_period_is_the_slowest_stages_or_cuts():
    assert period(EVEN) == 0.005
    assert period(UNEVEN) == 0.007


def test_the_slowest_stages_are_marked():
    (ax,) = figure_of(even=EVEN).axes
    assert [text for text, _ in labels_of(ax, "slowest")] == ["5", "5"]
    assert labels_of(ax, "slowest cut") == []


def test_a_cut_that_sets_the_pace_is_marked_and_the_stages_are_not():
    (ax,) = figure_of(uneven=UNEVEN).axes
    assert [text for text, _ in labels_of(ax, "slowest cut")] == ["7 ms to send"]
    assert labels_of(ax, "slowest") == []
    assert [text for text, _ in labels_of(ax, "stages")] == ["1", "3"]
    assert [line.get_xdata()[0] for line in ax.lines if line.get_gid() == "cut"] == [0.5]


def test_several_machines_stand_over_their_stage():
    (ax,) = figure_of(uneven=UNEVEN).axes
    ((text, (x, _)),) = labels_of(ax, "stages machines")
    assert (text, x) == ("on 3", 2.0)


@pytest.mark.parametrize("rows", [1, 3])
def test_every_cut_gets_axes_and_a_title(rows):
    figure = figure_of(**{f"cut {i}": EVEN for i in range(rows)})
    assert len(figure.axes) == rows
    titles = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    assert titles[::2] == [f"cut {i}" for i in range(rows)]
    tops = [ax.get_position().y1 for ax in figure.axes]
    assert tops == sorted(tops, reverse=True)


def test_layers_are_named_and_the_scale_is_a_round_number_of_milliseconds():
    kinds = ["conv", "pool", "conv", "dense"]
    (ax,) = partition_figure(SECONDS, {"even": EVEN}, "A cut.", kinds=kinds).axes
    assert [(text, round(x)) for text, (x, _) in labels_of(ax, "kinds")] == [
        (kind, i) for i, kind in enumerate(kinds)
    ]
    ((text, (_, height)),) = labels_of(ax, "scale")
    assert (text, height) == ("2 ms", 0.002)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000197, "0.197"), (0.0888, "88.8"), (0.9996, "1000"), (1.6437, "1640"), (0.0, "0")],
)
def test_times_are_written_with_three_digits_and_no_exponent(seconds, text):
    assert milliseconds(seconds) == text
