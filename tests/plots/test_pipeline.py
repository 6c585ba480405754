"""Schedules are drawn as they were simulated: every look, every chunk, every bubble."""

import pytest
from matplotlib.collections import PathCollection

from pedagogy.pipeline import (
    gpipe,
    gpipe_recomputing,
    interleaved,
    one_f_one_b,
    pipedream,
    simulate,
    zero_bubble_h1,
)
from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.pipeline import (
    hide_after,
    mark_wait,
    schedule_blocks,
    schedule_figure,
    schedule_panel,
)
from pedagogy.plots.timeline import Panel, timeline_figure
from pedagogy.ranks.trace import Event


def figure_of(schedule, **costs):
    return schedule_figure({"one": simulate(schedule, **costs)}, "A schedule.")


def heights(ax, gid):
    """The (top, bottom) of each box of a look, from the top of its lane."""
    (found,) = [c for c in ax.collections if c.get_gid() == gid]
    corners = [p.vertices.reshape(-1, 5, 2)[:, :, 1] for p in found.get_paths()]
    tops = [(min(box) % 1, max(box) % 1) for group in corners for box in group.tolist()]
    return {(round(top, 3), round(bottom, 3)) for top, bottom in tops}


@pytest.mark.parametrize(
    ("schedule", "looks"),
    [
        (gpipe(2, 3), {"F": "forward", "B": "backward"}),
        (gpipe_recomputing(2, 3), {"F": "forward", "B": "backward", "R": "recompute"}),
        (zero_bubble_h1(3, 4), {"F": "forward", "B": "backward", "W": "weight"}),
        (interleaved(2, 4, 2), {"F": "forward", "B": "backward"}),
    ],
)
def test_every_action_is_a_block_of_its_look(schedule, looks):
    simulation = simulate(schedule)
    lanes = schedule_figure({"one": simulation}, "A schedule.").axes[0]
    for kind, look in looks.items():
        expected = sorted(
            (rank, simulation.start[action], simulation.end[action])
            for rank, actions in enumerate(schedule)
            for action in actions
            if action.kind == kind
        )
        assert blocks(lanes, look) == expected


def test_the_halves_of_a_backward_differ_without_their_colours():
    lanes = figure_of(zero_bubble_h1(3, 4)).axes[0]
    assert blocks(lanes, "backward bar") == blocks(lanes, "backward")
    assert blocks(lanes, "weight bar") == blocks(lanes, "weight")
    ((_, lowest),) = heights(lanes, "weight")
    assert {bottom for _, bottom in heights(lanes, "weight bar")} == {lowest}
    assert {bottom for _, bottom in heights(lanes, "backward bar")} != {lowest}


def test_a_forward_that_is_recomputed_is_hatched():
    lanes = figure_of(gpipe_recomputing(2, 3)).axes[0]
    hatches = {c.get_gid(): c.get_hatch() for c in lanes.collections}
    assert hatches["recompute"]
    assert not hatches["forward"]


def test_an_update_is_a_mark_at_the_end_of_its_backward():
    simulation = simulate(pipedream(3, 4))
    lanes = schedule_figure({"one": simulation}, "A schedule.").axes[0]
    (marks,) = [line for line in lanes.lines if line.get_gid() == "update"]
    drawn = sorted((round(y + 0.06), x) for x, y in marks.get_xydata()[::3].tolist())
    expected = [(action.stage, end) for action, end in simulation.end.items() if action.kind == "B"]
    assert [x for _, x in drawn] == [end for _, end in sorted(expected)]


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_later_chunks_lie_lower_in_the_lane(chunks):
    simulation = simulate(interleaved(2, 4, chunks))
    found = schedule_blocks(simulation)
    by_chunk = {c: [b for b in found if b.chunk == c] for c in range(chunks)}
    assert [len(same) for same in by_chunk.values()] == [2 * 4 * 2] * chunks
    stages = {b.chunk: action.stage // 2 for b, action in zip(found, simulation.start, strict=True)}
    assert stages == {c: c for c in range(chunks)}
    places = sorted(heights(figure_of(interleaved(2, 4, chunks)).axes[0], "forward"))
    assert len(places) == chunks
    assert len({bottom for _, bottom in places}) == chunks


def test_a_schedule_without_chunks_fills_its_lanes():
    assert len(heights(figure_of(one_f_one_b(2, 4)).axes[0], "forward")) == 1


def test_K13_the_title_line_names_the_bubbles_denominator():
    panel = schedule_panel(simulate(one_f_one_b(4, 8)), "1F1B")
    assert panel.facts == ["makespan 33", "bubble_fraction 0.273 of the total", "peak 4 in flight"]


def test_the_strips_are_what_each_rank_has_in_flight():
    figure = figure_of(one_f_one_b(4, 8))
    assert [text for text, _ in labels_of(figure.axes[1], "peaks")] == ["4", "3", "2", "1"]
    assert schedule_panel(simulate(gpipe(2, 2)), "", memory=False).memory is None


def test_messages_lead_from_rank_to_rank():
    lanes = figure_of(gpipe(2, 3), communication=0.5).axes[0]
    assert len(blocks(lanes, "send")) == 6
    (arrows,) = [line for line in lanes.lines if line.get_gid() == "arrows"]
    points = arrows.get_xydata()
    leaves = [(x, round(y)) for x, y in points[::3]]
    arrives = [(x, round(y)) for x, y in points[1::3]]
    down, up = [(1, 0), (2, 0), (3, 0)], [(6.5, 1), (8.5, 1), (10.5, 1)]
    assert sorted(leaves) == down + up
    assert sorted(arrives) == [(x + 0.5, 1 - rank) for x, rank in down + up]


def test_measured_events_lie_under_the_simulated_ones():
    simulation = simulate(gpipe(2, 2))
    measured = [Event(e.rank, e.kind, e.name, e.start, e.end + 0.1) for e in simulation.events()]
    panel = schedule_panel(simulation, "GPipe", measured=measured)
    lanes = timeline_figure(panel, "Both.").axes[0]
    assert len(blocks(lanes, "backward measured")) == len(blocks(lanes, "backward")) == 4


def test_several_simulations_share_time_and_memory():
    both = {"GPipe": simulate(gpipe(4, 8)), "1F1B": simulate(one_f_one_b(4, 8))}
    figure = schedule_figure(both, "The same bubble.")
    assert len({ax.get_xlim() for ax in figure.axes}) == 1
    titles = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    assert titles[::2] == ["GPipe", "1F1B"]


def test_a_bubble_and_its_cause_are_outlined_and_joined():
    simulation = simulate(one_f_one_b(4, 8))
    wait = simulation.waits(0)[0]  # after F3, for the gradient of micro-batch 0
    figure = schedule_figure({"one": simulation}, "A bubble.")
    cause = wait.for_action
    span = (simulation.start[cause], simulation.end[cause])
    mark_wait(figure.axes[0], wait, span, 1)
    boxes = {
        p.get_gid(): (p.get_x(), p.get_x() + p.get_width(), round(p.get_y() + 0.42))
        for p in figure.axes[0].patches
    }
    assert boxes == {"bubble": (4, 10, 0), "cause": (8, 10, 1)}
    (line,) = [line for line in figure.axes[0].lines if line.get_gid() == "waits for"]
    assert [round(y) for y in line.get_ydata()] == [1, 0]


def test_what_comes_after_a_time_can_be_hidden():
    figure = figure_of(one_f_one_b(4, 8))
    hide_after(figure, 7, 4)
    for ax in figure.axes:
        (curtain,) = [p for p in ax.patches if p.get_gid() == "curtain"]
        assert (curtain.get_x(), curtain.get_x() + curtain.get_width()) == (7, ax.get_xlim()[1])
        assert curtain.get_zorder() > max(c.get_zorder() for c in ax.collections[:-1])
    assert [(rank, start) for rank, start, _ in blocks(figure.axes[0], "hidden")] == [
        (rank, 7.0) for rank in range(4)
    ]


@pytest.mark.parametrize("chunks", [1, 4])
def test_thousands_of_blocks_are_a_few_artists(chunks):
    schedule = interleaved(8, 32, chunks)
    figure = figure_of(schedule)
    boxes = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    assert len(blocks(figure.axes[0], "forward")) == 8 * 32 * chunks
    assert len(boxes) <= 4
    assert sum(len(c.get_paths()) for c in boxes) <= 4 * 8


def test_the_legend_names_every_look_in_use():
    (legend,) = figure_of(pipedream(2, 3)).legends
    words = " ".join(text.get_text() for text in legend.get_texts())
    assert "update" in words
    assert "weights" not in words
    (legend,) = figure_of(zero_bubble_h1(2, 3)).legends
    assert any("half for the weights" in text.get_text() for text in legend.get_texts())


def test_a_figure_without_a_schedule_is_refused():
    with pytest.raises(ValueError, match="at least one event"):
        schedule_figure({}, "Nothing.")


def test_panels_may_still_hold_plain_events():
    figure = timeline_figure(Panel([Event(0, "F", "F0", 0, 1), Event(0, "W", "W0", 1, 2)]), "Two.")
    assert blocks(figure.axes[0], "weight") == [(0, 1.0, 2.0)]
