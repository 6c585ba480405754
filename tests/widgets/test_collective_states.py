"""What the collectives' pictures show is what the collectives do."""

import pytest

from pedagogy.collectives.ring import ring_steps
from pedagogy.costs.communication import ring_all_reduce_bytes
from pedagogy.plots.labels import labels_of
from pedagogy.widgets.collective_pictures import results_of, whole_figure
from pedagogy.widgets.collective_states import (
    COLLECTIVES,
    after,
    all_reduce,
    all_to_all,
    pieces_of,
    sent_after,
    states_of,
)

RANKS = [1, 2, 3, 4, 5, 8]


def wanted(collective: str, ranks: int):
    """The definition of each collective: what rank r holds in column c at the end."""
    everybody = set(range(ranks))
    return {
        "all_reduce": [[everybody] * ranks for _ in range(ranks)],
        "reduce_scatter": {(r, r): everybody for r in range(ranks)},
        "all_gather": [[{c} for c in range(ranks)] for _ in range(ranks)],
        "broadcast": [[{0}] for _ in range(ranks)],
        "all_to_all": [[{c} for c in range(ranks)] for _ in range(ranks)],
        "barrier": [[everybody] for _ in range(ranks)],
    }[collective]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_ends_where_its_definition_says(collective, ranks):
    end = states_of(COLLECTIVES[collective](ranks))[-1]
    expected = wanted(collective, ranks)
    if isinstance(expected, dict):
        assert {cell: set(end[cell[0]][cell[1]]) for cell in expected} == expected
    else:
        assert [[set(cell) for cell in row] for row in end] == expected


@pytest.mark.parametrize("ranks", RANKS)
def test_the_all_reduce_that_is_drawn_is_the_ring_that_is_run(ranks):
    drawn = [[tuple(move[:4]) for move in step] for step in all_reduce(ranks).steps]
    assert drawn == [[tuple(transfer) for transfer in step] for step in ring_steps(ranks)]


@pytest.mark.parametrize("ranks", RANKS)
def test_bytes_sent_are_those_of_the_closed_form(ranks):
    plan = all_reduce(ranks)
    sent = sent_after(plan, ranks, len(plan.steps))
    assert sent == pytest.approx([ring_all_reduce_bytes(1, ranks)] * ranks)
    for name in ("reduce_scatter", "all_gather", "all_to_all"):
        plan = COLLECTIVES[name](ranks)
        sent = sent_after(plan, ranks, len(plan.steps))
        assert sent == pytest.approx([(ranks - 1) / ranks] * ranks), name


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_rank_sends_only_what_it_holds_and_at_most_one_message_a_step(collective, ranks):
    plan = COLLECTIVES[collective](ranks)
    for state, moves in zip(states_of(plan), plan.steps, strict=False):
        assert all(state[move.sender][move.chunk] for move in moves)
        assert len({move.sender for move in moves}) == len(moves)
        assert len({move.receiver for move in moves}) == len(moves)


def test_a_broadcast_to_8_takes_3_steps_and_rank_0_sends_in_each():
    plan = COLLECTIVES["broadcast"](8)
    assert [[(m.sender, m.receiver) for m in step] for step in plan.steps] == [
        [(0, 1)],
        [(0, 2), (1, 3)],
        [(0, 4), (1, 5), (2, 6), (3, 7)],
    ]


def test_half_way_the_ring_of_4_has_one_finished_chunk_on_each_rank():
    state = states_of(all_reduce(4))[3]
    full = {(r, c) for r in range(4) for c in range(4) if len(state[r][c]) == 4}
    assert full == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_a_ring_that_skips_a_step_does_not_end_with_the_sum():
    plan = all_reduce(4)
    state = plan.start
    for moves in plan.steps[:2] + plan.steps[3:]:
        state = after(state, moves)
    assert any(len(cell) < 4 for row in state for cell in row)


@pytest.mark.parametrize("ranks", RANKS)
def test_an_all_to_all_transposes_the_names_of_the_pieces(ranks):
    states = states_of(all_to_all(ranks))
    mine = [[f"{rank}>{piece}" for piece in range(ranks)] for rank in range(ranks)]
    assert pieces_of(states[0]) == mine
    assert pieces_of(states[-1]) == [list(column) for column in zip(*mine, strict=True)]


def test_the_map_of_an_all_to_all_names_the_pieces():
    before, after_it = (
        [text for text, _ in sorted(labels_of(ax, "held"), key=lambda one: one[1][::-1])]
        for ax in whole_figure("all_to_all", 2).axes
    )
    assert before == ["0>0", "0>1", "1>0", "1>1"]
    assert after_it == ["0>0", "1>0", "0>1", "1>1"]


def test_all_moves_of_a_step_leave_before_any_lands():
    plan = all_to_all(2)
    assert after(plan.start, plan.steps[0]) == [
        [frozenset({0}), frozenset({1})],
        [frozenset({0}), frozenset({1})],
    ]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_caller_is_given_what_the_definition_says_and_no_partial_sums(collective, ranks):
    given = [[set(cell) for cell in row] for row in results_of(collective, ranks)]
    expected = wanted(collective, ranks)
    if isinstance(expected, dict):
        columns = range(ranks)
        expected = [[expected.get((r, c), set()) for c in columns] for r in columns]
    assert given == expected


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_picture_of_a_whole_collective_says_what_it_does(collective):
    figure = whole_figure(collective, 4)
    assert figure.get_label() == f"{collective} on 4 ranks: {COLLECTIVES[collective](4).what}."
    assert [ax.get_title("left") or ax.get_title() for ax in figure.axes] == [
        f"before {collective}",
        "after",
    ]
