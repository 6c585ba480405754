"""Overlap, curves and bars of offloading: the artists say what the data say."""

import pytest

from pedagogy.offload import simulate_offload
from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.offload import as_step, overlap_figure, stall_of
from pedagogy.plots.offload_memory import device_bytes_figure, offload_memory_figure
from pedagogy.ranks import Event

WAITS = [  # one layer: copied in 2 s, forward 1 s, backward 2 s, its gradient 1 s
    Event(1, "to_device", "0", 0.0, 2.0),
    Event(0, "F", "0", 2.0, 3.0),
    Event(0, "B", "0", 3.0, 5.0),
]
TRACE = [  # the same as it was measured, on a clock that began at 100; the copy in two pieces
    Event(1, "to_device", "layer 0", 100.0, 101.5, 60),
    Event(1, "to_device", "layer 0", 101.5, 102.0, 20),
    Event(0, "F", "0", 102.0, 103.0),
    Event(0, "B", "0", 103.0, 105.5),
    Event(2, "to_host", "gradient", 105.5, 106.5, 80),
]
CURVE = [(0.0, {"parameters": 4}), (1.0, {"parameters": 4, "activations": 6}), (2.0, {})]


def titles(figure):
    return [text.get_text() for text in figure.texts if text.get_gid() == "title"]


def limits(ax):
    return [line for line in ax.lines if line.get_gid() == "limit"]


def test_uses_in_a_row_become_forward_and_backward_of_their_layers():
    events = as_step(simulate_offload([1, 1, 2, 2], [1, 1, 0, 1], 1).events, 2)
    compute = [event.kind + event.name for event in events if event.rank == 0]
    assert compute == ["F0", "F1", "B1", "B0"]
    assert [(e.kind, e.name) for e in events if e.rank == 1] == [
        *[("to_device", "0"), ("to_device", "1")],
        ("to_device", "0"),
    ]
    with pytest.raises(ValueError, match="use 2 of a step of 1 layers: there are 2"):
        as_step(simulate_offload([1, 1, 2], [1, 1, 1], 1).events, 1)


def test_the_stall_is_what_is_not_compute():
    assert stall_of(WAITS) == (5.0, 2.0)
    assert stall_of(TRACE) == (5.5, 2.0)  # the gradient's way is not compute's
    simulated = simulate_offload([1, 2, 3], [2, 2, 0], 1)
    assert stall_of(simulated.events) == (simulated.makespan, simulated.stall)


def test_lanes_hold_compute_and_copies_and_the_title_names_the_stall():
    figure = overlap_figure({"prefetch 0": WAITS}, paced=True)
    (ax,) = figure.axes
    assert blocks(ax, "forward") == [(0, 2.0, 3.0)]
    assert blocks(ax, "backward") == [(0, 3.0, 5.0)]
    assert blocks(ax, "to device") == [(1, 0.0, 2.0)]
    assert [text for text, _ in labels_of(ax, "to device names")] == ["0"]
    assert [text for text, _ in labels_of(ax, "lanes")] == ["compute", "to device"]
    assert titles(figure) == ["prefetch 0", "5 s  ·  stall 2 s, 40%  ·  paced"]
    assert figure.get_label() == "prefetch 0: 5 s, stall 2 s, 40%."


def test_what_was_measured_is_thin_from_zero_and_pieces_of_a_layer_are_one_block():
    figure = overlap_figure({"one": WAITS, "two": WAITS}, measured={"two": TRACE})
    first, second = figure.axes
    assert blocks(first, "to device measured") == []
    assert blocks(second, "to device measured") == [(1, 0.0, 2.0)]
    assert blocks(second, "forward measured") == [(0, 2.0, 3.0)]
    assert blocks(second, "to host measured") == [(2, 5.5, 6.5)]
    assert [text for text, _ in labels_of(second, "lanes")] == ["compute", "to device", "to host"]
    assert first.get_xlim() == second.get_xlim()
    assert titles(figure)[3] == "5 s  ·  stall 2 s, 40%  ·  measured 5.5 s, stall 2 s, 36%"
    assert figure.get_label().endswith("two: 5 s, stall 2 s, 40% (measured 5.5 s).")
    (legend,) = figure.legends
    told = [text.get_text() for text in legend.get_texts()]
    assert told[2:] == ["copy to device", "copy to host", "empty: idle", "thin: measured"]


def test_runs_without_compute_and_unknown_titles_are_refused():
    with pytest.raises(ValueError, match="'one' has no compute"):
        overlap_figure({"one": WAITS[:1]})
    with pytest.raises(ValueError, match=r"measured \['b'\], but runs \['a'\]"):
        overlap_figure({"a": WAITS}, measured={"b": TRACE})
    with pytest.raises(ValueError, match="runs"):
        overlap_figure({})


def test_curves_share_one_scale_and_the_finding_says_what_fits():
    small = [(time, {kind: held / 2 for kind, held in one.items()}) for time, one in CURVE]
    figure = offload_memory_figure({"all": CURVE, "less": small}, limit=7)
    assert [ax.get_ylim() for ax in figure.axes] == [(0, 1.14 * 10)] * 2
    assert [limits(ax)[0].get_ydata()[0] for ax in figure.axes] == [7, 7]
    assert figure.get_label() == "all: 10 bytes; less: 5 bytes (50%). In 7 bytes fits: less."
    assert not limits(offload_memory_figure({"all": CURVE}).axes[0])
    with pytest.raises(ValueError, match=r"curves of \[3, 0\] readings"):
        offload_memory_figure({"all": CURVE, "none": []})


def test_bars_are_stacked_by_kind_against_what_the_device_has():
    bars = {"nothing": {"parameters": 4, "activations": 6}, "all": {"parameters": 1}}
    figure = device_bytes_figure(bars, limit=0.5)
    (ax,) = figure.axes
    drawn = {(p.get_gid(), p.get_x(), p.get_width()) for p in ax.patches if p.get_width()}
    assert drawn == {("parameters", 0, 4), ("activations", 4, 6), ("parameters", 0, 1)}
    assert limits(ax)[0].get_xdata()[0] == 0.5
    assert figure.get_label() == (
        "nothing: 10 bytes; all: 1 bytes (10%). In 0 bytes fits: none of them."
    )
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["parameters", "activations", "the device has 0 bytes"]
    assert device_bytes_figure(bars).get_label() == "nothing: 10 bytes; all: 1 bytes (10%)."
