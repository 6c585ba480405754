"""Policies, names, segments and slots of recomputation: the artists say what the data say."""

import numpy as np
import pytest

from pedagogy.plots import style
from pedagogy.plots.beside import name_beside, overlaps
from pedagogy.plots.recompute import Point, frontier, policy_figure
from pedagogy.plots.recompute_curves import segments_figure, slots_figure

POINTS = {
    "keep": Point((1.0, 100), (1.1, 100)),
    "drop": Point((1.3, 60), (1.32, 62)),
    "both": Point((1.2, 50), None),
    "swap": Point(None, (2.2, 80)),
}


def drawn(ax, gid):
    """The points of all lines with this gid."""
    lines = [line for line in ax.lines if line.get_gid() == gid]
    return [
        tuple(map(float, spot))
        for line in lines
        for spot in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def test_policies_are_points_predicted_and_measured_against_a_budget():
    figure = policy_figure(POINTS, budget=70)
    (ax,) = figure.axes
    assert drawn(ax, "predicted") == [(1.0, 100), (1.3, 60), (1.2, 50)]
    assert drawn(ax, "measured") == [(1.1, 100), (1.32, 62), (2.2, 80)]
    assert drawn(ax, "joined") == [(1.0, 100), (1.1, 100), (1.3, 60), (1.32, 62)]
    assert {spot[1] for spot in drawn(ax, "budget")} == {70}
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
    assert drawn(ax, "frontier") == [(1.1, y1), (1.1, 100), (1.2, 50), (x1, 50)]
    assert x0 < 1.0 < 2.2 < x1 and y0 < 50 < 100 < y1  # noqa: PT018
    names = [text.get_text() for text in ax.texts if text.get_gid() == "name"]
    assert sorted(names) == sorted(POINTS)
    notes = {text.get_text() for text in ax.texts if text.get_gid() == "note"}
    assert notes == {
        *("100 bytes, 1.1 s", "62% of the bytes, +20% time"),
        *("50% of the bytes, +9% time", "80% of the bytes, +100% time"),
    }
    assert figure.get_label() == (
        "keep: 100 bytes, 1.1 s; drop: 62% of the bytes, +20% time; both: 50% of the bytes, +9% "
        "time; swap: 80% of the bytes, +100% time. Beaten by none: keep, both. The fastest within "
        "70 bytes is both."
    )


def test_predicted_points_are_hollow_and_markers_differ():
    (ax,) = policy_figure(POINTS).axes
    hollow = [line for line in ax.lines if line.get_gid() == "predicted"]
    filled = [line for line in ax.lines if line.get_gid() == "measured"]
    assert {line.get_markerfacecolor() for line in hollow} == {style.PAPER}
    assert style.PAPER not in {line.get_markerfacecolor() for line in filled}
    assert len({line.get_marker() for line in hollow}) == len(hollow)
    assert not [line for line in ax.lines if line.get_gid() == "budget"]


def test_the_frontier_is_what_none_beats():
    assert frontier(POINTS) == ["keep", "both"]
    alike = {"one": Point((1, 5)), "two": Point((1, 4)), "three": Point((2, 4))}
    assert frontier(alike) == ["two"]


def test_policies_on_one_spot_share_a_name_and_none_may_be_empty():
    points = {"keep": Point((1, 9)), "a": Point((2, 5)), "b": Point((2, 5))}
    (ax,) = policy_figure(points, budget=1).axes
    assert "a = b" in [text.get_text() for text in ax.texts]
    assert policy_figure(points, budget=1).get_label().endswith("None fits the budget of 1 bytes.")
    with pytest.raises(ValueError, match=r"2 policies, of which without any point: \['c'\]"):
        policy_figure({"a": Point((1, 1)), "c": Point()})
    with pytest.raises(ValueError, match="0 policies"):
        policy_figure({})


@pytest.mark.parametrize("seed", range(5))
def test_names_of_crowded_points_lie_on_nothing(seed):
    spots = np.random.default_rng(seed).normal(0.5, 0.09, (9, 2))
    figure = style.new_figure(style.WIDTH, 5.0)
    ax = style.add_axes(figure, 0.9, 0.6, 8.0, 4.0)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    names = {f"policy {i}": tuple(spot) for i, spot in enumerate(spots)}
    boxes = name_beside(ax, names, notes=dict.fromkeys(names, "60% of the bytes, +9% time"))
    assert overlaps(boxes) == []
    (x0, y0), (x1, y1) = (ax.transAxes.transform(corner) * 0.72 for corner in ((0, 0), (1, 1)))
    for left, bottom, right, top in boxes.values():
        assert x0 <= left < right <= x1
        assert y0 <= bottom < top <= y1
        for spot in spots:
            x, y = ax.transData.transform(spot) * 0.72
            assert not (left < x < right and bottom < y < top)


def test_a_name_that_finds_no_place_near_its_point_is_tied_to_it():
    figure = style.new_figure(style.WIDTH, 5.0)
    ax = style.add_axes(figure, 0.9, 0.6, 8.0, 4.0)
    name_beside(ax, {"alone": (0.5, 0.5)})
    assert not [line for line in ax.lines if line.get_gid() == "tie"]
    crowd = [(0.5 + dx / 30, 0.5 + dy / 20) for dx in range(-3, 4) for dy in range(-3, 4)]
    name_beside(ax, {"crowded": (0.5, 0.5)}, avoid=crowd)
    assert [line for line in ax.lines if line.get_gid() == "tie"]


def test_a_name_that_lies_nearer_to_another_point_is_tied_to_its_own():
    names = {f"{i}{j}": (0.4 + i / 30, 0.4 + j / 20) for i in range(3) for j in range(3)}
    notes = dict.fromkeys(names, "59% of the bytes, +5% time")
    figure = style.new_figure(9.0, 5.0)
    ax = style.add_axes(figure, 0.9, 0.6, 8.0, 4.0)
    boxes = name_beside(ax, names, notes=notes)
    points = {
        name: tuple(ax.transData.transform(at) * 72 / figure.dpi) for name, at in names.items()
    }

    def gap(name, box):
        x, y = points[name]
        return max(0, box[0] - x, x - box[2], box[1] - y, y - box[3])

    loose = [
        name
        for name, box in boxes.items()
        if gap(name, box) > 20
        or any(gap(other, box) <= gap(name, box) for other in names if other != name)
    ]
    assert loose
    assert len([line for line in ax.lines if line.get_gid() == "tie"]) == len(loose)


def test_segments_mark_the_least_and_say_how_many_points_lie_on_the_line():
    predicted = {1: 16e3, 2: 9e3, 4: 7e3, 16: 16e3}
    figure = segments_figure(predicted, {4: 7e3, 16: 15e3})
    (ax,) = figure.axes
    assert drawn(ax, "predicted") == sorted(predicted.items())
    assert drawn(ax, "measured") == [(4, 7e3), (16, 15e3)]
    assert drawn(ax, "least") == [(4, 7e3)]
    assert figure.get_label() == (
        "Least: 4 segments, 7 kB, 44% of what 1 keeps. "
        "1 of 2 measured points lie on the line exactly."
    )
    assert all(tick == int(tick) for tick in ax.get_xticks())
    alone = segments_figure(predicted).get_label()
    assert alone == "Least: 4 segments, 7 kB, 44% of what 1 keeps."
    with pytest.raises(ValueError, match="0 numbers of segments"):
        segments_figure({})


def test_slots_have_a_line_for_each_chain_and_its_executed_points():
    closed = {4: {1: 6, 2: 4}, 8: {1: 28, 2: 14}}
    figure = slots_figure(closed, {8: {2: 14}})
    (ax,) = figure.axes
    assert drawn(ax, "4 layers") == [(1, 6), (2, 4)]
    assert drawn(ax, "8 layers executed") == [(2, 14)]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert figure.get_label() == (
        "4 layers: 6 with 1 slot, 4 with 2; 8 layers: 28 with 1 slot, 14 with 2. "
        "1 of 1 executed points lie on the line exactly."
    )
    with pytest.raises(ValueError, match=r"chains of \[5\] layers executed, forms for \[4, 8\]"):
        slots_figure(closed, {5: {1: 10}})
