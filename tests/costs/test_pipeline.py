"""The closed forms of pipelining, against figures worked out by hand and against each other."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from pedagogy.costs import pipeline as cost
from pedagogy.costs import pipeline_batch as batches
from pedagogy.costs import pipeline_memory as memory


def test_K13_closed_forms_name_one_bubble_by_two_denominators():
    assert cost.makespan("gpipe", 4, 8) == cost.makespan("one_f_one_b", 4, 8) == 33
    assert cost.bubble_ratio(4, 8) == pytest.approx(0.375)
    assert cost.bubble_fraction(4, 8) == pytest.approx(0.2727, abs=5e-5)
    assert 1 - cost.bubble_fraction(4, 8) == pytest.approx(0.7273, abs=5e-5)
    assert cost.bubble_ratio(4, 8, 2) == pytest.approx(0.1875)
    assert cost.bubble_fraction(4, 8, 2) == pytest.approx(0.1579, abs=5e-5)
    assert 1 - cost.bubble_fraction(4, 8, 2) == pytest.approx(0.8421, abs=5e-5)


def test_K14_closed_forms_of_interleaved_warm_up_and_chunks_in_flight():
    ranks = range(4)
    assert [cost.warmup_forwards("interleaved", r, 4, 8, 2) for r in ranks] == [10, 8, 6, 4]
    assert [cost.in_flight("interleaved", r, 4, 8, 2) for r in ranks] == [11, 9, 7, 5]
    assert [cost.warmup_forwards("interleaved", r, 4, 4, 2) for r in ranks] == [8, 8, 8, 8]
    assert [cost.in_flight("interleaved", r, 4, 4, 2) for r in ranks] == [8, 8, 8, 8]
    assert [cost.warmup_forwards("one_f_one_b", r, 4, 8) for r in ranks] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("p", "m", "fraction"), [(8, 2, 0.7778), (4, 1, 0.75), (12, 12, 0.4783), (4, 16, 0.158)]
)
def test_K15_closed_forms_leave_half_of_the_time_idle_at_as_many_micro_batches(p, m, fraction):
    assert cost.bubble_fraction(p, m) == pytest.approx(fraction, abs=5e-4 if m == 16 else 5e-5)


@pytest.mark.parametrize(
    ("microbatch", "m", "fraction"), [(1, 64, 0.0986), (2, 32, 0.1795), (4, 16, 0.3043)]
)
def test_K16_closed_forms_show_a_larger_micro_batch_enlarging_the_bubble(microbatch, m, fraction):
    assert 64 // microbatch == m
    assert cost.bubble_fraction(8, m) == pytest.approx(fraction, abs=5e-5)


def test_C54_closed_forms_refuse_interleaving_with_a_remainder_and_name_the_nearest():
    assert cost.bubble_ratio(4, 8, 2) > 0
    for m, nearest in [(6, "4 or 8"), (10, "8 or 12"), (9, "8 or 12"), (3, "example 4")]:
        for refused in (
            lambda m=m: cost.bubble_fraction(4, m, 2),
            lambda m=m: cost.in_flight("interleaved", 0, 4, m, 2),
            lambda m=m: cost.makespan("interleaved", 4, m, 2),
        ):
            with pytest.raises(ValueError, match=nearest):
                refused()
    assert cost.bubble_fraction(4, 6) == pytest.approx(3 / 9)  # without chunks any number goes


def test_the_fraction_is_idle_over_makespan_and_the_ratio_idle_over_work():
    for schedule, v in [("gpipe", 1), ("one_f_one_b", 1), ("interleaved", 2), ("interleaved", 3)]:
        for p, m in [(1, 1), (3, 6), (4, 4), (8, 32)]:
            whole = cost.makespan(schedule, p, m, v, forward=1.5, backward=2.5)
            work = m * (1.5 + 2.5)
            assert cost.bubble_fraction(p, m, v) == pytest.approx((whole - work) / whole)
            assert cost.bubble_ratio(p, m, v) == pytest.approx((whole - work) / work)


def test_a_naive_split_uses_one_rank_at_a_time():
    assert cost.makespan("naive", 4, 8) == 4 * cost.makespan("naive", 1, 8) == 96


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("naive", [1, 1, 1, 1]),
        ("gpipe", [8, 8, 8, 8]),
        ("one_f_one_b", [4, 3, 2, 1]),
        ("pipedream", [4, 3, 2, 1]),
        ("zero_bubble_h1", [4, 4, 4, 4]),
        ("zero_bubble_h2", [7, 7, 7, 7]),
    ],
)
def test_what_four_stages_hold_of_eight_micro_batches(schedule, expected):
    assert [cost.in_flight(schedule, stage, 4, 8) for stage in range(4)] == expected
    few = [cost.in_flight(schedule, stage, 4, 2) for stage in range(4)]
    assert few == [min(2, count) for count in expected]  # m < p


def test_h1_has_a_third_of_the_bubble_and_h2_keeps_only_the_skew():
    p, m, work = 4, 8, 24
    one_f_one_b = cost.makespan("one_f_one_b", p, m) - work
    assert one_f_one_b == 9
    assert cost.zero_bubble_h1_bubble(p) == cost.makespan("zero_bubble_h1", p, m) - work == 3
    assert cost.zero_bubble_h2_bubble(p) == 0
    assert cost.makespan("zero_bubble_h2", p, m) - work == 3  # rank 3 starts 3 F later


def test_h1_with_fewer_micro_batches_than_stages_saves_little():
    # one micro-batch: F down and B up one after the other, then rank 0 still owes its W
    assert cost.makespan("zero_bubble_h1", 4, 1) == 4 + 4 + 1
    # without weight work there is nothing to postpone
    assert cost.makespan("zero_bubble_h1", 4, 8, weight=0) == cost.makespan("one_f_one_b", 4, 8)


def test_uneven_stages_wait_for_the_slowest():
    # forward 1 + 1 + 2 + 1 and 7 more of the slowest; backward twice that
    assert cost.uneven_gpipe_makespan([1, 1, 2, 1], [2, 2, 4, 2], 8) == 19 + 38
    assert cost.uneven_gpipe_makespan([1] * 4, [2] * 4, 8) == cost.makespan("gpipe", 4, 8)


def test_recomputing_early_hides_in_the_bubble():
    assert cost.bubble_fraction(4, 16) == pytest.approx(0.158, abs=5e-4)
    assert cost.bubble_fraction(8, 32) == pytest.approx(0.179, abs=5e-4)
    assert cost.gpipe_recomputing_bubble_fraction(4, 16) == pytest.approx(9 / (64 + 9))
    assert cost.gpipe_recomputing_bubble_fraction(4, 16) == pytest.approx(0.123, abs=5e-4)
    assert cost.gpipe_recomputing_bubble_fraction(8, 32) == pytest.approx(0.141, abs=5e-4)
    assert cost.gpipe_recomputing_bubble_fraction(4, 16, recompute=0) == cost.bubble_fraction(4, 16)


def test_the_best_number_of_micro_batches_is_finite():
    p, batch, fixed, per_sample = 4, 64, 3.0, 4.0
    assert math.sqrt((p - 1) * per_sample * batch / fixed) == 16
    assert batches.best_num_microbatches(p, batch, fixed, per_sample) == 16
    assert batches.step_seconds(p, batch, 16, fixed, per_sample) == 19 * (3 + 4 * 4)
    assert batches.best_num_microbatches(p, batch, 0.0, per_sample) == 64  # pieces cost nothing
    assert batches.best_num_microbatches(p, batch, 1e9, per_sample) == 1
    assert batches.best_num_microbatches(1, batch, 0.0, per_sample) == 1  # all equal: the smallest


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("fixed", [0.1, 1.0, 10.0])
def test_the_best_divisor_lies_beside_the_continuous_optimum(p, fixed):
    batch, per_sample = 360, 1.0
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    optimum = math.sqrt((p - 1) * per_sample * batch / fixed)
    below = [d for d in divisors if d <= optimum][-1:]
    above = [d for d in divisors if d >= optimum][:1]
    assert batches.best_num_microbatches(p, batch, fixed, per_sample) in below + above


def test_pipedream_keeps_one_version_for_each_micro_batch_in_flight():
    assert [memory.pipedream_weight_versions(stage, 4) for stage in range(4)] == [4, 3, 2, 1]
    for stage in range(4):
        held = cost.in_flight("pipedream", stage, 4, 100)
        assert memory.pipedream_weight_versions(stage, 4) == held


def test_zero_bubble_ranks_hold_as_many_micro_batches_as_are_in_flight():
    for rank in range(4):
        h1 = memory.zero_bubble_h1_activation(rank, 4, 1.0, 1.0)
        h2 = memory.zero_bubble_h2_activation(rank, 4, 1.0, 1.0)
        assert (h1, h2) == (
            cost.in_flight("zero_bubble_h1", rank, 4, 100),
            cost.in_flight("zero_bubble_h2", rank, 4, 100),
        )
        # before W less is kept: what waits for B is the warm-up and the one that runs
        for schedule, held in [
            ("zero_bubble_h1", memory.zero_bubble_h1_activation(rank, 4, 1.0, 0.0)),
            ("zero_bubble_h2", memory.zero_bubble_h2_activation(rank, 4, 1.0, 0.0)),
        ]:
            assert held == cost.warmup_forwards(schedule, rank, 4, 100) + 1


@pytest.mark.parametrize(("p", "m", "v"), [(1, 3, 2), (2, 3, 1), (4, 8, 1), (4, 8, 2), (2, 4, 3)])
def test_point_to_point_bytes_are_those_of_the_messages_counted_one_by_one(p, m, v):
    size = memory.boundary_bytes(microbatch=2, sequence=8, hidden=16)
    assert size == 512
    ranks = [stage % p for stage in range(p * v)]  # where each stage lives
    sent = 0
    for _ in range(m):
        for here, there in pairwise(ranks):
            sent += 2 * size * (here != there)  # the activation, and its gradient back
    assert memory.point_to_point_bytes(p, m, size, v) == sent


def test_impossible_questions_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match="0 stages, 8 micro-batches"):
        cost.bubble_fraction(0, 8)
    with pytest.raises(ValueError, match="'dualpipe': choose one of 'naive', 'gpipe'"):
        cost.in_flight("dualpipe", 0, 4, 8)
    with pytest.raises(ValueError, match="rank 4 of 4: choose one from 0 to 3"):
        cost.in_flight("gpipe", 4, 4, 8)
    with pytest.raises(ValueError, match="2 chunks in 'gpipe'"):
        cost.makespan("gpipe", 4, 8, 2)
    with pytest.raises(ValueError, match="6 micro-batches: H2 on 4 stages needs at least 7"):
        cost.makespan("zero_bubble_h2", 4, 6)
    with pytest.raises(ValueError, match=r"weight of at most 1\.0"):
        cost.makespan("zero_bubble_h1", 4, 8, weight=1.5)
    with pytest.raises(ValueError, match=r"at most 1\.0, the forward"):
        cost.zero_bubble_h2_bubble(4, weight=1.5)
    with pytest.raises(ValueError, match=r"at most 1\.0 fits"):
        cost.zero_bubble_h2_bubble(4, forward=2, backward=1, weight=1.5)
    with pytest.raises(ValueError, match="at most 1, the forward"):  # simulated: 20, not 19
        cost.makespan("zero_bubble_h2", 2, 3, 1, 1, 5, 2)
    with pytest.raises(ValueError, match="2 forward times and 3 backward times"):
        cost.uneven_gpipe_makespan([1, 1], [2, 2, 2], 4)
    with pytest.raises(ValueError, match="batch of 12 in 5 micro-batches: choose one of 1, 2, 3"):
        batches.step_seconds(4, 12, 5, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"-1\.0 s fixed"):
        batches.best_num_microbatches(4, 12, -1.0, 1.0)
    with pytest.raises(ValueError, match="0 stages, 4 micro-batches"):
        batches.gpipe_speedup_bound(0, 4)
    with pytest.raises(ValueError, match="rank -1 of 4"):
        memory.pipedream_weight_versions(-1, 4)
    with pytest.raises(ValueError, match="'dapple': choose one of 'gpipe'"):
        memory.recomputing_stage_bytes("dapple", 1, 1, 1, 4, 8)
    with pytest.raises(ValueError, match="suffice from 4 micro-batches on"):
        memory.recomputing_stage_bytes("pipedream_2bw", 1, 1, 1, 4, 3)
