"""The schedules, against the grids that a reader would draw, and against PyTorch's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import _schedule_visualizer

from pedagogy.pipeline import (
    Action,
    check_schedule,
    gpipe,
    gpipe_recomputing,
    interleaved,
    interleaved_in_rounds,
    naive,
    noam,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    pipedream_replicated,
    schedule_text,
    simulate,
    zero_bubble_h1,
    zero_bubble_h2,
)
from tests.pipeline.grids import drawn, typed

# --- drawn by hand: F takes 1, B 2 (1, where there is a W), W and R 1 -------------------------

NAIVE = """
F0 .  .  .  .  .  .  B0 B0 F1 .  .  .  .  .  .  B1 B1
.  F0 .  .  .  B0 B0 .  .  .  F1 .  .  .  B1 B1 .  .
.  .  F0 B0 B0 .  .  .  .  .  .  F1 B1 B1 .  .  .  .
"""
GPIPE = """
F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 B1 B1 B2 B2 B3 B3
.  F0 F1 F2 F3 .  .  .  B0 B0 B1 B1 B2 B2 B3 B3 .  .
.  .  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3 .  .  .  .
"""
GPIPE_RECOMPUTING = """
F0 F1 R0 .  .  .  .  .  .  B0 B0 R1 B1 B1
.  F0 F1 R0 .  .  .  B0 B0 R1 B1 B1 .  .
.  .  F0 F1 R0 B0 B0 R1 B1 B1 .  .  .  .
"""
ONE_F_ONE_B = """
F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3
.  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .
.  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .
"""
H1 = """
F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
.  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
.  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
"""
H2 = """
F0 F1 F2 F3 F4 B0 W0 F5 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 .  .
.  F0 F1 F2 B0 F3 B1 F4 B2 W0 F5 B3 W1 B4 W2 B5 W3 W4 W5 .
.  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 F5 B5 W1 W2 W3 W4 W5
"""
PIPEDREAM = """
F0 F1 F2 .  .  .  .  B0 B0* F3 B1 B1* .  B2 B2* .  B3 B3*
.  F0 F1 .  .  B0 B0* F2 B1 B1* F3 B2 B2* .  B3 B3* .  .
.  .  F0 B0 B0* F1 B1 B1* F2 B2 B2* F3 B3 B3* .  .  .  .
"""
# Chunks are halves: rank 0 holds stages 0 and 2, rank 1 stages 1 and 3. Here F takes 2 and B 4.
INTERLEAVED = """
F0@0 F1@0 F0@2 F1@2 F2@0 .    B0@2 B0@2 F3@0 B1@2 B1@2 F2@2 B0@0 B0@0 F3@2 B1@0 B1@0 \
.    B2@2 B2@2 .    B3@2 B3@2 B2@0 B2@0 B3@0 B3@0
.    F0@1 F1@1 F0@3 B0@3 B0@3 F1@3 B1@3 B1@3 F2@1 B0@1 B0@1 F3@1 B1@1 B1@1 F2@3 B2@3 \
B2@3 F3@3 B3@3 B3@3 B2@1 B2@1 B3@1 B3@1 .    .
"""
# Stage 0 is twice as slow and has two ranks: F takes 2 and B 4. They update together.
REPLICATED = """
F0 F0 F2 F2 .   B0 B0 B0 B0  .   .  .* B2 B2  B2 B2 .   .*
F1 F1 F3 F3 .   .  .  .  B1  B1  B1 B1* .  .  B3 B3 B3  B3*
.  .  F0 B0 B0* F1 B1 B1* F2 B2 B2* F3 B3 B3* .  .  .   .
"""


@pytest.mark.parametrize(
    ("schedule", "costs", "grid"),
    [
        (naive(3, 2), {}, NAIVE),
        (gpipe(3, 4), {}, GPIPE),
        (gpipe_recomputing(3, 2), {}, GPIPE_RECOMPUTING),
        (one_f_one_b(3, 4), {}, ONE_F_ONE_B),
        (zero_bubble_h1(3, 4), {}, H1),
        (zero_bubble_h2(3, 6), {}, H2),
        (pipedream(3, 4), {}, PIPEDREAM),
        (interleaved(2, 4, 2), {"forward": 2, "backward": 4}, INTERLEAVED),
        (pipedream_replicated([2, 1], 4), {"forward": [2, 1], "backward": [4, 2]}, REPLICATED),
    ],
    ids=[
        "naive",
        "gpipe",
        "recomputing",
        "1f1b",
        "h1",
        "h2",
        "pipedream",
        "interleaved",
        "replicated",
    ],
)
def test_a_schedule_is_the_grid_that_one_draws_by_hand(schedule, costs, grid):
    assert drawn(simulate(schedule, **costs)) == typed(grid)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (one_f_one_b(2, 1), "F0 B0\nF0 B0"),
        (one_f_one_b(4, 2), "F0 F1 B0 B1\nF0 F1 B0 B1\nF0 F1 B0 B1\nF0 B0 F1 B1"),
        (
            pipedream_2bw(2, 2, 2),  # an update after each batch of two, and no flush
            "F0 F1 B0 F2 B1 U1 F3 B2 B3 U3\nF0 B0 F1 B1 U1 F2 B2 F3 B3 U3",
        ),
        (
            pipedream_replicated([2, 1, 1], 4),
            "F0 F2 B0 U0 B2 U2\nF1 F3 B1 U1 B3 U3\n"
            "F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3\nF0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3",
        ),
        (
            interleaved(2, 2, 2),  # one round: every forward is warm-up
            "F0@0 F1@0 F0@2 F1@2 B0@2 B1@2 B0@0 B1@0\nF0@1 F1@1 F0@3 F1@3 B0@3 B1@3 B0@1 B1@1",
        ),
        (
            interleaved_in_rounds(2, 6, 1),  # rounds of two
            "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5\nF0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
        ),
    ],
    ids=["1f1b-m1", "1f1b-m2", "2bw", "replicated", "interleaved-m2", "rounds"],
)
def test_the_order_of_a_schedule_is_the_one_that_one_writes_by_hand(schedule, text):
    assert schedule_text(schedule) == text


def test_an_action_reads_as_its_kind_its_micro_batch_and_its_stage():
    assert str(Action("F", 1, 3)) == "F3@1"
    assert check_schedule(interleaved(2, 2, 2)).rank_of(3, 0) == 1


SYNCHRONOUS = {
    "naive": naive,
    "gpipe": gpipe,
    "gpipe_recomputing": gpipe_recomputing,
    "one_f_one_b": one_f_one_b,
    "pipedream": pipedream,
    "zero_bubble_h1": zero_bubble_h1,
    "zero_bubble_h2": zero_bubble_h2,
}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SYNCHRONOUS)), st.integers(1, 6), st.integers(1, 12))
def test_each_stage_meets_the_micro_batches_in_order_and_everything_can_run(name, p, m):
    schedule = SYNCHRONOUS[name](p, m)
    layout = check_schedule(schedule)
    assert (layout.num_ranks, layout.num_stages, layout.num_microbatches) == (p, p, m)
    assert layout.chunks == layout.replicas == [1] * p
    for stage, actions in enumerate(schedule):
        for kind in sorted({a.kind for a in actions}):
            assert [a for a in actions if a.kind == kind] == [(kind, stage, k) for k in range(m)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_an_interleaved_rank_runs_rounds_of_p_and_meets_its_last_chunk_first_backwards(p, n, v):
    m = n * p
    schedule = interleaved(p, m, v)
    layout = check_schedule(schedule)
    assert (layout.num_stages, layout.chunks) == (p * v, [v] * p)
    for rank, actions in enumerate(schedule):
        forwards = [a for a in actions if a.kind == "F"]
        backwards = [a for a in actions if a.kind == "B"]
        # the i-th forward, by division: p micro-batches a visit, v visits a round
        for i, (f, b) in enumerate(zip(forwards, backwards, strict=True)):
            chunk, k = i // p % v, i // (p * v) * p + i % p
            assert f == ("F", chunk * p + rank, k)
            assert b == ("B", (v - 1 - chunk) * p + rank, k)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 3))
def test_replicas_take_minibatches_in_turn_and_admit_what_noam_says(replicas, rounds):
    m = 12 * rounds
    schedule = pipedream_replicated(replicas, m)
    assert check_schedule(schedule).replicas == replicas
    assert noam(replicas) == -(-sum(replicas) // replicas[0])
    rank = 0
    for stage, count in enumerate(replicas):
        for replica in range(count):
            actions = schedule[rank]
            assert {(s, k % count) for _, s, k in actions} == {(stage, replica)}
            admitted = [kind for kind, _, _ in actions].index("B")
            assert admitted == min(-(-sum(replicas[stage:]) // count), m // count)
            assert [k for kind, _, k in actions if kind == "U"] == [*range(replica, m, count)]
            rank += 1
    assert pipedream_replicated([1] * len(replicas), m) == pipedream(len(replicas), m)


# --- PyTorch as oracle ------------------------------------------------------------------------


def torch_order(name: str, *counts: int) -> list[list[tuple]]:
    """PyTorch's own table, by rank, without what is no forward or backward."""
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B"}
    return [
        [
            (kinds[a.computation_type.name], a.stage_index, a.microbatch_index)
            for a in actions
            if a is not None and a.computation_type.name in kinds
        ]
        for actions in _schedule_visualizer.get_schedule_ops(name, *counts)
    ]


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("m", [8, 9, 16])
def test_gpipe_and_1f1b_have_pytorchs_order(p, m):
    assert gpipe(p, m) == torch_order("GPipe", p, m)
    # torch 2.13's table of the last rank counts its forwards from 1: the others are sound
    assert one_f_one_b(p, m)[:-1] == torch_order("1F1B", p, m)[:-1]


@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (2, 10), (3, 8), (4, 8), (4, 10), (4, 12), (8, 32)])
def test_the_interleaved_schedule_has_pytorchs_order(p, m, v):
    assert interleaved_in_rounds(p, m, v) == torch_order("Interleaved1F1B", p, m, v)
    if m % p == 0:
        assert interleaved(p, m, v) == interleaved_in_rounds(p, m, v)


@pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 6), (3, 2)])
def test_in_a_single_round_only_the_warm_up_differs_from_pytorchs(p, m):
    for ours, theirs in zip(
        interleaved_in_rounds(p, m, 2), torch_order("Interleaved1F1B", p, m, 2), strict=True
    ):
        for kind in "FB":
            assert [a for a in ours if a.kind == kind] == [a for a in theirs if a[0] == kind]
        assert all(a.kind == "F" for a in ours[: 2 * m])  # as in Megatron-LM
