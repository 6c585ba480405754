"""Policies, segments, slots, tensors and timelines of recomputation: artists say what data say."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from pedagogy.plots import style
from pedagogy.plots.beside import name_beside, overlaps
from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.recompute import Point, frontier, policy_figure
from pedagogy.plots.recompute_curves import segments_figure, slots_figure
from pedagogy.plots.recompute_lifetimes import lifetime_figure
from pedagogy.plots.recompute_lives import held_over_time, lives, turn_of
from pedagogy.plots.recompute_ranking import kinds_of_tensors, ranking_figure
from pedagogy.plots.recompute_timeline import (
    as_measured,
    layer_of,
    merged,
    policies_timeline_figure,
)
from pedagogy.ranks import Event

POINTS = {
    "keep": Point((1.0, 100), (1.1, 100)),
    "drop": Point((1.3, 60), (1.32, 62)),
    "both": Point((1.2, 50), None),
    "swap": Point(None, (2.2, 80)),
}


class Saved(NamedTuple):
    nbytes: int
    asks: tuple


def drawn(ax, gid):
    """The points of all lines with this gid."""
    lines = [line for line in ax.lines if line.get_gid() == gid]
    return [
        tuple(map(float, spot))
        for line in lines
        for spot in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def tiny():
    """Three operations, of which the last keeps nothing; what they made is asked for backwards.

    Forward takes 1 s each, backward 2 s each; (0, 0) goes to the host, (1, 0) is made again.
    """
    names = {0: "layers.0 mm", 1: "layers.1 relu", 2: "head sum"}
    profile = SimpleNamespace(
        operations=[SimpleNamespace(name=name.split()[1]) for name in names.values()],
        saved={(0, 0): Saved(100, (1, 2)), (1, 0): Saved(300, (0,))},
        asked=((1, 0), (0, 0), (0, 0)),
        name=lambda key: names[key[0]],
        repeats=lambda key: key != (0, 0),
        seconds=10.0,
    )
    prediction = SimpleNamespace(
        events=[
            *(Event(0, "F", names[i], float(i), i + 1.0) for i in range(3)),
            Event(2, "to_host", names[0], 1.0, 1.5, 100),
            Event(0, "B", "0", 3.0, 3.0),
            Event(0, "R", names[1], 3.0, 4.0),
            Event(0, "B", "1", 4.0, 6.0),
            Event(1, "to_device", names[0], 4.0, 7.0, 100),
            Event(0, "B", "2", 7.0, 9.0),
            Event(0, "B", "3", 9.0, 11.0),
        ],
        moves=(
            (1.5, (0, 0), False),
            (3.0, (1, 0), False),
            (4.0, (1, 0), True),
            (4.0, (0, 0), True),
        ),
        peak=400,
        seconds=11.0,
        extra_seconds=1.0,
        stall=1.0,
    )
    return profile, prediction, {(0, 0): "swap", (1, 0): "recompute"}


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


def test_tensors_are_ranked_by_bytes_for_a_second_and_what_cannot_be_made_comes_last():
    profile, *_ = tiny()
    profile.saved[(2, 0)] = Saved(200, (0,))
    seconds = {(1, 0): 3.0, (2, 0): 1.0}
    relu, mm = kinds_of_tensors(profile, {**seconds, (2, 0): 10.0})[::2]
    assert (relu.name, relu.nbytes, relu.rates, relu.count) == ("relu", 300, (100.0,), 1)
    assert (mm.name, mm.rates) == ("mm", ())
    assert [kind.name for kind in kinds_of_tensors(profile, seconds)] == ["sum", "relu", "mm"]
    figure = ranking_figure(profile, seconds)
    held, rates = figure.axes
    assert [bar.get_width() for bar in held.patches] == [200, 300, 100]
    assert drawn(rates, "median") == [(200.0, 0), (100.0, 1)]
    assert rates.get_xscale() == "log"
    assert [text.get_text() for text in rates.texts] == ["cannot be made again"]
    assert figure.get_label() == (
        "sum, relu hold 83% of the 600 bytes saved and take 40% of an iteration to make again; "
        "bytes for each second of recomputation: from sum 200 bytes to relu 100 bytes."
    )
    profile.saved.clear()
    with pytest.raises(ValueError, match="0 saved tensors"):
        ranking_figure(profile, {})


def test_small_tensors_share_a_row_at_the_bottom():
    profile, *_ = tiny()
    profile.saved[(2, 0)] = Saved(1, (0,))
    kinds = kinds_of_tensors(profile, {(1, 0): 1.0, (2, 0): 1e-9})
    assert [kind.name for kind in kinds] == ["relu", "mm", "all others"]


def test_a_tensors_life_is_on_the_device_in_host_memory_or_nowhere():
    profile, prediction, actions = tiny()
    first, second = lives(profile, prediction, actions)
    assert first == (
        *("layers.0 mm", 100),
        ((1.0, 1.5, "on the device"), (1.5, 4.0, "in host memory"), (4.0, 11.0, "on the device")),
    )
    assert second.spans == (
        *((2.0, 3.0, "on the device"), (3.0, 4.0, "nowhere")),
        (4.0, 6.0, "on the device"),
    )
    assert turn_of(prediction) == 3.0
    assert held_over_time([first, second]) == [
        *((0.0, 0), (1.0, 100), (1.5, 0), (2.0, 300), (3.0, 0)),
        *((4.0, 400), (6.0, 100), (11.0, 0)),
    ]


def test_lives_are_bars_hatched_bars_and_marks_over_a_strip():
    profile, prediction, actions = tiny()
    figure = lifetime_figure(profile, prediction, actions)
    rows, strip = figure.axes
    assert blocks(rows, "on the device") == [(0, 1, 1.5), (0, 4, 11), (1, 2, 3), (1, 4, 6)]
    assert blocks(rows, "in host memory") == [(0, 1.5, 4)]
    assert drawn(rows, "nowhere")[:2] == [(3.0, 1.0), (4.0, 1.0)]
    assert drawn(rows, "again") == [(4.0, 1.0)]
    assert {spot[0] for spot in drawn(strip, "turn")} == {3.0}
    assert drawn(strip, "peak") == [(4.0, 400)]
    assert [text for text, _ in labels_of(rows, "tensors")] == ["layers.0 mm", "layers.1 relu"]
    assert [text for text, _ in labels_of(rows, "halves")] == ["forward", "backward"]
    assert figure.get_label() == (
        "2 saved tensors of 400 bytes; 1 (25% of the bytes) are away in host memory; 1 (75% of the "
        "bytes) are dropped and made again; at most 400 bytes lie on the device at once."
    )
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["on the device", "in host memory", "nowhere", "made again"]


def test_small_tensors_have_no_row_and_nothing_saved_is_refused():
    profile, prediction, actions = tiny()
    profile.saved[(2, 0)] = Saved(4, (0,))
    assert len(lives(profile, prediction, actions)) == 2
    profile.saved.clear()
    with pytest.raises(ValueError, match="0 saved tensors"):
        lifetime_figure(profile, prediction, actions)


@pytest.mark.parametrize(
    ("name", "layer"),
    [("blocks.3.attention softmax", "3"), ("features.12 relu", "12"), ("add", ""), ("head mm", "")],
)
def test_the_layer_of_an_operation_is_the_first_number_of_its_place(name, layer):
    assert layer_of(name) == layer


def test_neighbours_of_a_layer_are_one_block_with_its_recomputation_first():
    profile, prediction, _ = tiny()
    prediction.events += [  # backward of layer 0 goes on: computes, recomputes, computes
        Event(0, "R", "layers.0 mm", 11.0, 12.0),
        Event(0, "B", "3", 12.0, 13.0),
    ]
    found = [(e.rank, e.kind, e.name, e.start, e.end) for e in merged(profile, prediction)]
    assert found == [
        *((0, "F", "0", 0.0, 1.0), (0, "F", "1", 1.0, 2.0), (2, "to_host", "0", 1.0, 1.5)),
        *((0, "F", "", 2.0, 3.0), (0, "R", "1", 3.0, 4.0), (0, "B", "1", 4.0, 6.0)),
        *((1, "to_device", "0", 4.0, 7.0), (0, "R", "0", 7.0, 8.0), (0, "B", "0", 8.0, 13.0)),
    ]


def test_timelines_of_policies_say_seconds_waiting_and_peaks():
    profile, prediction, _ = tiny()
    copies = [Event(2, "to_host", "", 101.0, 102.0, 100), Event(2, "to_host", "", 300.0, 301.0, 9)]
    measured = {"both": as_measured(copies, 100.0, 104.0, 112.0)}
    figure = policies_timeline_figure(profile, {"both": prediction}, measured=measured)
    (ax,) = figure.axes
    assert blocks(ax, "recompute") == [(0, 3.0, 4.0)]
    assert blocks(ax, "forward measured") == [(0, 0.0, 4.0)]
    assert blocks(ax, "to host measured") == [(2, 1.0, 2.0)]
    titles = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    assert titles[0] == "both  ·  peak 400 bytes"
    assert figure.get_label() == (
        "both: 11 s, of which 1 s forward once more and 1 s waiting, peak 400 bytes "
        "(measured 12 s). The fastest is both."
    )
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "forward once more" in told
    with pytest.raises(ValueError, match="not in order"):
        as_measured([], 1.0, 1.0, 2.0)
