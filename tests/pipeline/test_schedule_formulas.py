"""Closed forms and printed figures, against the simulation of the lists."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.costs import pipeline as cost
from pedagogy.costs import pipeline_batch as batches
from pedagogy.costs import pipeline_memory as memory
from pedagogy.costs.published import table
from pedagogy.pipeline import (
    gpipe,
    gpipe_recomputing,
    interleaved,
    naive,
    one_f_one_b,
    pipedream,
    pipedream_replicated,
    simulate,
    zero_bubble_h1,
    zero_bubble_h2,
)

MAKE = {
    "naive": naive,
    "gpipe": gpipe,
    "one_f_one_b": one_f_one_b,
    "pipedream": pipedream,
    "zero_bubble_h1": zero_bubble_h1,
    "zero_bubble_h2": zero_bubble_h2,
}
names = st.sampled_from(sorted(MAKE))
stages = st.integers(1, 7)
microbatches = st.integers(1, 16)
times = st.builds(Fraction, st.integers(1, 20), st.integers(1, 4))


def exactly(expected: float) -> float:
    """A value that was computed in floats, of numbers that are exact."""
    return pytest.approx(float(expected), rel=1e-12, abs=1e-12)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(["naive", "gpipe", "one_f_one_b", "pipedream"]), stages, microbatches)
@pytest.mark.parametrize(("f", "b"), [(1, 2), (Fraction(5, 3), Fraction(1, 4)), (2, 7)])
def test_the_makespans_without_a_w_hold_for_any_times(f, b, name, p, m):
    found = simulate(MAKE[name](p, m), f, b)
    assert found.makespan == exactly(cost.makespan(name, p, m, forward=f, backward=b))
    if name != "naive":
        assert found.bubble_fraction == exactly(cost.bubble_fraction(p, m))
        assert found.bubble_ratio == exactly(cost.bubble_ratio(p, m))
        assert found.span_bubble == [(p - 1 - rank) * (f + b) for rank in range(p)]


@settings(max_examples=120, deadline=None)
@given(stages, st.integers(1, 4), st.integers(1, 4), times, times)
def test_the_interleaved_formulas_hold_for_any_multiple_of_p(p, rounds, v, f, b):
    m = rounds * p
    found = simulate(interleaved(p, m, v), f, b)
    assert found.makespan == exactly(cost.makespan("interleaved", p, m, v, f, b))
    assert found.bubble_fraction == exactly(cost.bubble_fraction(p, m, v))
    assert found.bubble_ratio == exactly(cost.bubble_ratio(p, m, v))
    for rank, actions in enumerate(interleaved(p, m, v)):
        assert found.peak_in_flight[rank] == cost.in_flight("interleaved", rank, p, m, v)
        warmup = cost.warmup_forwards("interleaved", rank, p, m, v)
        assert [a.kind for a in actions].index("B") == min(warmup + 1, m * v)


@settings(max_examples=120, deadline=None)
@given(names, stages, microbatches)
def test_warm_up_and_micro_batches_in_flight_are_those_of_the_lists(name, p, m):
    schedule = MAKE[name](p, m)
    found = simulate(schedule)
    for rank, actions in enumerate(schedule):
        assert found.peak_in_flight[rank] == cost.in_flight(name, rank, p, m)
        warmup = cost.warmup_forwards(name, rank, p, m)
        assert [a.kind for a in actions].index("B") == min(warmup + 1, m)


@st.composite
def uneven(draw):
    """Forward and backward times for each stage, and a number of micro-batches."""
    p = draw(st.integers(1, 5))
    lists = st.lists(times, min_size=p, max_size=p)
    return draw(lists), draw(lists), draw(st.integers(1, 9))


@settings(max_examples=150, deadline=None)
@given(uneven())
def test_K17_sum_and_slowest_give_gpipe_exactly_and_bound_1f1b(case):
    f, b, m = case
    by_hand = sum(f) + (m - 1) * max(f) + sum(b) + (m - 1) * max(b)
    assert cost.uneven_gpipe_makespan(f, b, m) == by_hand
    assert simulate(gpipe(len(f), m), f, b).makespan == by_hand
    assert simulate(one_f_one_b(len(f), m), f, b).makespan <= by_hand


@settings(max_examples=100, deadline=None)
@given(stages, microbatches, times, times, times)
def test_recomputing_early_hides_in_the_bubble_for_any_times(p, m, f, b, r):
    early = simulate(gpipe_recomputing(p, m), f, b, recompute=r)
    assert early.makespan == m * (f + r + b) + (p - 1) * (f + b)
    assert early.bubble_fraction == exactly(cost.gpipe_recomputing_bubble_fraction(p, m, f, b, r))
    late = simulate(gpipe(p, m), f, r + b)  # as part of the backward, once the gradient is there
    assert late.makespan == m * (f + r + b) + (p - 1) * (f + r + b)
    assert late.bubble_fraction == exactly(cost.bubble_fraction(p, m))


# --- zero bubble: tf, tb and tw as in the paper, tb the input half alone ------------------------


@settings(max_examples=120, deadline=None)
@given(stages, microbatches, times, times, times)
def test_h1_has_the_papers_bubble_where_a_w_is_no_longer_than_an_f_and_a_b(p, m, tf, tb, tw):
    tw = min(tf, tb, tw)
    found = simulate(zero_bubble_h1(p, m), tf, tb + tw, tw)
    assert found.makespan == exactly(cost.makespan("zero_bubble_h1", p, m, 1, tf, tb + tw, tw))
    if m >= p:
        bubble = (p - 1) * (tf + tb - tw)
        assert found.makespan - m * (tf + tb + tw) == bubble
        assert cost.zero_bubble_h1_bubble(p, tf, tb + tw, tw) == bubble


@settings(max_examples=120, deadline=None)
@given(stages, st.integers(0, 6), times, times, times)
def test_h2_has_the_papers_bubble_where_two_w_fit_in_f_and_b_and_one_in_f(p, more, tf, tb, tw):
    tw, m = min(tf, (tf + tb) / 2, tw), 2 * p - 1 + more
    found = simulate(zero_bubble_h2(p, m), tf, tb + tw, tw)
    bubble = (p - 1) * (tf + tb - 2 * tw)
    assert max(found.span_bubble) == bubble
    assert cost.zero_bubble_h2_bubble(p, tf, tb + tw, tw) == bubble
    assert found.makespan == m * (tf + tb + tw) + max((p - 1) * tf, bubble)
    assert found.makespan == exactly(cost.makespan("zero_bubble_h2", p, m, 1, tf, tb + tw, tw))


@pytest.mark.parametrize(
    ("make", "m", "tf", "tb", "tw", "formula"),
    [
        (zero_bubble_h1, 4, 1, 1, 2, 0),  # a W that is longer than F and B
        (zero_bubble_h1, 4, 1, 2, 2, 1),  # longer than F
        (zero_bubble_h1, 4, 2, 1, 2, 1),  # longer than B
        (zero_bubble_h1, 1, 1, 1, 1, 1),  # fewer micro-batches than stages
        (zero_bubble_h2, 3, 1, 3, 2, 1),  # longer than F: 2 W fit in F and B, but not in time
        (zero_bubble_h2, 1, 1, 1, 1, 1),  # fewer micro-batches than 2p - 1
    ],
)
def test_outside_of_their_domain_two_stages_idle_longer_than_the_zero_bubble_formulas(
    make, m, tf, tb, tw, formula
):
    if make is zero_bubble_h1:
        assert formula == tf + tb - tw
    else:
        assert formula == max(tf, tf + tb - 2 * tw)  # the skew, or the bubble in the span
    found = simulate(make(2, m), tf, tb + tw, tw)
    assert found.makespan - m * (tf + tb + tw) > formula


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_zero_bubbles_table_2_is_what_the_lists_hold(p):
    m, mb, mw = 3 * p, 7, 2  # M_B: from F to B, M_W: from B to W
    rows = {
        row["row"]: row["col2"] for row in table("zerobubble_table1_2").rows if row["table"] == 2
    }
    for name, worker in [
        ("ZB-H1", "p*MB (worker i: (p-i+1)MB+(i-1)MW)"),
        ("ZB-H2", "(2p-1)*MB (worker i: (2p-2i+1)MB+(2i-2)MW)"),
    ]:
        assert rows[name] == worker
    change = {"F": mb, "B": mw - mb, "W": -mw}
    for rank in range(p):
        i = rank + 1  # the paper counts workers from 1
        h1 = max(accumulate(change[a.kind] for a in zero_bubble_h1(p, m)[rank]))
        h2 = max(accumulate(change[a.kind] for a in zero_bubble_h2(p, m)[rank]))
        assert h1 == (p - i + 1) * mb + (i - 1) * mw
        assert h2 == (2 * p - 2 * i + 1) * mb + (2 * i - 2) * mw
        assert h1 == memory.zero_bubble_h1_activation(rank, p, mb, mw)
        assert h2 == memory.zero_bubble_h2_activation(rank, p, mb, mw)


# --- tables, messages, batches ----------------------------------------------------------------


def by_rank(cell: object, p: int) -> list[float]:
    """ "9;6;3;0", or "16 x4": the same on all four."""
    text = str(cell)
    return [float(text.split(" x")[0])] * p if " x" in text else [*map(float, text.split(";"))]


def test_pytorchs_tables_replayed_by_another_program_give_the_same_times_and_peaks():
    ours = {"GPipe": (gpipe, 1), "Interleaved1F1B v=2": (lambda p, m: interleaved(p, m, 2), 2)}
    rows = [r for r in table("pipeline_sim_from_torch_schedules").rows if r["schedule"] in ours]
    assert len(rows) == 6
    for row in rows:
        (make, v), p, m = ours[row["schedule"]], row["p"], row["m"]
        found = simulate(make(p, m), forward=1, backward=2)
        assert found.makespan == row["makespan"]
        assert found.busy == [row["ideal_3m"]] * p
        assert found.makespan - row["ideal_3m"] == row["bubble_total"]
        assert found.span_bubble == by_rank(row["span_bubble_per_rank"], p)
        assert [n / v for n in found.peak_in_flight] == by_rank(row["peak_activations_per_rank"], p)


@settings(max_examples=60, deadline=None)
@given(stages, st.integers(1, 3), st.integers(1, 4))
def test_every_message_of_the_formula_is_an_event(p, rounds, v):
    found = simulate(interleaved(p, rounds * p, v), communication=1)
    sent = sum(event.kind == "send" for event in found.events())
    assert sent == memory.point_to_point_bytes(p, rounds * p, 1, v)


def test_a_step_in_pieces_takes_what_a_simulation_of_the_pieces_takes():
    p, batch, fixed, per_sample = 4, 24, 2.0, 0.5
    steps = {}
    for m in (1, 2, 3, 4, 6, 8, 12, 24):
        piece = fixed + per_sample * batch / m
        steps[m] = simulate(one_f_one_b(p, m), piece / 3, 2 * piece / 3).makespan
        assert steps[m] == exactly(batches.step_seconds(p, batch, m, fixed, per_sample))
    best = batches.best_num_microbatches(p, batch, fixed, per_sample)
    assert steps[best] == min(steps.values())


@pytest.mark.parametrize(("k", "m"), [(2, 1), (2, 8), (4, 4), (8, 32)])
def test_gpipes_bound_is_the_speed_up_of_a_simulation_without_other_costs(k, m):
    def step(stages: int, pieces: int) -> float:
        piece = 1 / (stages * pieces)  # the same model and batch, cut
        return simulate(gpipe(stages, pieces), piece, 2 * piece).makespan

    assert step(2, 1) / step(k, m) == exactly(batches.gpipe_speedup_bound(k, m))


def test_two_ranks_for_a_stage_that_takes_twice_as_long_keep_the_next_one_busy():
    balanced = simulate(pipedream_replicated([2, 1], 12), [2, 1], [4, 2])
    assert [wait.action.microbatch for wait in balanced.waits(2)] == [0]  # only for the first
    assert balanced.makespan == 2 + 12 * 3 + 4  # the first F and the last B lie outside
    alone = simulate(pipedream(2, 12), [2, 1], [4, 2])
    assert alone.makespan == 12 * 6 + 1  # stage 0 waits once, for the first gradient: 1
    assert alone.busy[1] < alone.makespan / 2
