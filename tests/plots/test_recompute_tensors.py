"""Saved tensors of a profile: ranked, over time, and on a timeline; by hand-written predictions."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest

from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
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
    assert titles[1] == "11 s  ·  stall 1 s, 9%  ·  measured 12 s"
    assert figure.get_label() == (
        "both: 11 s, of which 1 s forward once more and 1 s waiting, peak 400 bytes "
        "(measured 12 s). The fastest is both."
    )
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "forward once more" in told
    with pytest.raises(ValueError, match="not in order"):
        as_measured([], 1.0, 1.0, 2.0)
