"""The house figure draws what the events say: lengths, numbers, lanes, peaks."""

import pytest
from matplotlib.collections import PathCollection

from pedagogy.plots import style
from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import BOTTOM, FLOOR, blocks, look_of, microbatch_of
from pedagogy.plots.timeline import Panel, timeline_figure
from pedagogy.ranks.trace import Event

#          time   0  1  2  3  4  5  6  7  8
#          rank 0 F0 F1          B0 B0 B1 B1      (two stages, two micro-batches, GPipe)
#          rank 1    F0 F1 B0 B0 B1 B1
EVENTS = [
    Event(0, "F", "F0", 0, 1),
    Event(0, "F", "F1", 1, 2),
    Event(1, "F", "F0", 1, 2),
    Event(1, "F", "F1", 2, 3),
    Event(1, "B", "B0", 3, 5),
    Event(0, "B", "B0", 5, 7),
    Event(1, "B", "B1", 5, 7),
    Event(0, "B", "B1", 7, 9),
]
MEMORY = {0: [(0, 1), (1, 2), (7, 1), (9, 0)], 1: [(0, 0), (1, 1), (2, 2), (5, 1), (7, 0)]}


def figure_of(panel, **options):
    return timeline_figure(panel, "GPipe holds every micro-batch.", **options)


def texts(figure):
    return [text.get_text() for text in figure.texts]


def test_a_blocks_length_is_its_events_duration():
    lanes = figure_of(Panel(EVENTS)).axes[0]
    for look, kind in (("forward", "F"), ("backward", "B")):
        expected = sorted((e.rank, e.start, e.end) for e in EVENTS if e.kind == kind)
        assert blocks(lanes, look) == expected


def test_a_bubble_is_an_empty_lane():
    lanes = figure_of(Panel(EVENTS)).axes[0]
    busy = [(start, end) for rank, start, end in blocks(lanes, "forward") if rank == 1]
    assert min(busy)[0] == 1
    assert [(rank, start) for rank, start, _ in blocks(lanes, "lane")] == [(0, 0.0), (1, 0.0)]


def test_every_block_that_is_wide_enough_carries_the_number_of_its_micro_batch():
    lanes = figure_of(Panel(EVENTS)).axes[0]
    written = {(text, round(y), x) for text, (x, y) in labels_of(lanes, "forward names")}
    assert written == {("0", 0, 0.5), ("1", 0, 1.5), ("0", 1, 1.5), ("1", 1, 2.5)}
    assert [text for text, _ in labels_of(lanes, "backward names")] == ["0", "0", "1", "1"]


def test_N18_backward_wears_a_bar_and_forward_does_not():
    lanes = figure_of(Panel(EVENTS)).axes[0]
    assert blocks(lanes, "backward bar") == blocks(lanes, "backward")
    assert blocks(lanes, "forward bar") == []


def test_measured_events_are_drawn_alike_in_thin_rows():
    measured = [e._replace(start=e.start + 0.25, end=e.end + 0.5) for e in EVENTS]
    lanes = figure_of(Panel(EVENTS, measured=measured)).axes[0]
    expected = sorted((e.rank, e.start, e.end) for e in measured if e.kind == "B")
    assert blocks(lanes, "backward measured") == expected
    assert lanes.get_xlim()[1] >= 9.5


def test_measured_events_alone_make_lanes_of_their_own():
    lanes = figure_of(Panel([], measured=EVENTS)).axes[0]
    assert len(blocks(lanes, "backward measured")) == 4


def test_communication_lies_under_compute_and_a_send_leads_to_its_receiver():
    events = [
        Event(0, "forward", "", 0, 4),
        Event(1, "forward", "", 0, 4),
        Event(0, "send", "", 1, 2, 1000, (1,)),
        Event(1, "all_reduce", "", 2, 3, 8, (0, 1)),
    ]
    lanes = figure_of(Panel(events)).axes[0]
    assert blocks(lanes, "send") == [(0, 1.0, 2.0)]
    assert blocks(lanes, "all_reduce") == [(1, 2.0, 3.0)]
    (arrows,) = [line for line in lanes.lines if line.get_gid() == "arrows"]
    start, end, _ = arrows.get_xydata()
    assert (start[0], round(start[1])) == (1, 0)
    assert (end[0], round(end[1])) == (2, 1)
    forward = next(c for c in lanes.collections if c.get_gid() == "forward")
    assert forward.get_paths()[0].vertices[:, 1].max() == pytest.approx(1 + FLOOR)
    assert FLOOR < BOTTOM


def test_waits_are_hatched():
    lanes = figure_of(Panel([Event(0, "F", "F0", 0, 1), Event(0, "wait", "", 1, 2)])).axes[0]
    (waits,) = [c for c in lanes.collections if c.get_gid() == "wait"]
    assert waits.get_hatch() == "////"
    assert blocks(lanes, "wait") == [(0, 1.0, 2.0)]


def test_strips_share_the_time_axis_and_name_the_peaks():
    again = {**MEMORY, 0: [*MEMORY[0][:-1], (8, 2), (9, 0)]}
    figure = figure_of(Panel(EVENTS, memory=again))
    lanes, strips = figure.axes
    assert lanes.get_xlim() == strips.get_xlim()
    assert [text for text, _ in labels_of(strips, "peaks")] == ["2", "2"]
    (peaks,) = [line.get_xdata().tolist() for line in strips.lines if line.get_gid() == "peak"]
    assert peaks == [1, 2], "the peak is marked where it is first reached"


def test_panels_share_one_scale_of_time_and_memory():
    half = {rank: [(t, value / 2) for t, value in curve] for rank, curve in MEMORY.items()}
    shorter = [e for e in EVENTS if e.end <= 7]
    panels = [Panel(EVENTS, memory=MEMORY), Panel(shorter, memory=half)]
    _, upper, _, lower = timeline_figure(panels, "One scale.").axes
    tops = [
        min(c.get_paths()[0].vertices[:, 1]) for c in (upper.collections[0], lower.collections[0])
    ]
    assert [0.4 - top for top in tops] == pytest.approx([0.78, 0.39])
    assert upper.get_xlim() == lower.get_xlim()


def test_bytes_by_kind_are_stacked_and_their_peak_is_written_in_bytes():
    curve = [
        (0, {"parameters": 2e9, "activations": 0}),
        (2, {"parameters": 2e9, "activations": 3e9}),
    ]
    figure = figure_of(Panel(EVENTS, memory={0: curve}), number=style.bytes_text)
    strips = figure.axes[1]
    assert [text for text, _ in labels_of(strips, "peaks")] == ["5 GB"]
    assert len([c for c in strips.collections if isinstance(c, PathCollection)]) == 2


def test_the_title_line_holds_the_facts_and_a_paced_picture_says_so():
    panel = Panel(EVENTS, "GPipe", ("bubble_fraction 0.333", "step 9"))
    assert texts(figure_of(panel))[:2] == ["GPipe", "bubble_fraction 0.333  ·  step 9"]
    assert texts(figure_of(panel, paced=True))[1].endswith("paced")


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_up_to_8_ranks_and_32_micro_batches_keep_1000_pixels_and_their_numbers(ranks):
    events = [
        Event(rank, kind, f"{kind}{i}", start, start + length)
        for rank in range(ranks)
        for i in range(32)
        for kind, start, length in (("F", 3 * i + rank, 1), ("B", 3 * i + rank + 1, 2))
    ]
    figure = figure_of(Panel(events))
    assert round(figure.get_size_inches()[0] * figure.dpi) == 1000
    assert [text for text, (_, y) in labels_of(figure.axes[0], "backward names") if y < 0.5] == [
        str(i) for i in range(32)
    ]


def test_an_empty_timeline_is_refused():
    with pytest.raises(ValueError, match="at least one event"):
        figure_of(Panel([]))


@pytest.mark.parametrize(
    ("event", "look", "number"),
    [
        (Event(0, "F", "F3", 0, 1), "forward", 3),
        (Event(0, "backward", "", 0, 1), "backward", None),
        (Event(0, "all_reduce", "bucket 12", 0, 1), "all_reduce", 12),
        (Event(0, "compute", "", 0, 1), "other", None),
        (Event(0, "stall", "", 0, 1), "wait", None),
    ],
)
def test_an_event_gets_its_look_from_its_kind_and_its_number_from_its_name(event, look, number):
    assert look_of(event) == look
    assert microbatch_of(event) == number


def test_the_legend_names_other_compute_by_its_kind():
    events = [Event(0, "compute", "", 0.0, 1.0), Event(1, "lookup", "", 1.0, 2.0)]
    figure = timeline_figure(Panel(events, "two kinds"), "Two kinds of compute.")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["compute, lookup"]
