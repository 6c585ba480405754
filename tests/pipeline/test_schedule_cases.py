"""The known cases of schedules, by simulation and from the lists themselves."""

from __future__ import annotations

import pytest

from pedagogy.pipeline import (
    check_schedule,
    gpipe,
    gpipe_recomputing,
    interleaved,
    interleaved_in_rounds,
    naive,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    simulate,
    zero_bubble_h1,
    zero_bubble_h2,
)
from tests.pipeline.grids import drawn, typed


def leading_forwards(actions) -> int:
    """How many forwards a rank runs before its first backward."""
    return [action.kind for action in actions].index("B")


@pytest.mark.parametrize("schedule", [gpipe(4, 8), one_f_one_b(4, 8)], ids=["gpipe", "1f1b"])
def test_K13_simulated_bubble_is_0_375_of_the_work_and_0_2727_of_the_total(schedule):
    found = simulate(schedule, forward=1, backward=2)
    assert found.makespan == 33
    assert found.busy == [24] * 4
    assert found.bubble_ratio == pytest.approx(0.375)
    assert found.bubble_fraction == pytest.approx(0.2727, abs=5e-5)
    assert sum(found.busy) / (4 * found.makespan) == pytest.approx(0.7273, abs=5e-5)


def test_K13_two_chunks_halve_the_simulated_bubble():
    found = simulate(interleaved(4, 8, 2), forward=1, backward=2)
    assert found.makespan == 28.5
    assert found.bubble_ratio == pytest.approx(0.1875)
    assert found.bubble_fraction == pytest.approx(0.1579, abs=5e-5)
    assert sum(found.busy) / (4 * found.makespan) == pytest.approx(0.8421, abs=5e-5)


def test_K14_interleaved_lists_warm_up_with_10_8_6_4_forwards_and_hold_one_chunk_more():
    # in turn comes a forward first, then a backward: one more forward leads the first backward
    assert [leading_forwards(a) for a in interleaved(4, 8, 2)] == [11, 9, 7, 5]
    assert simulate(interleaved(4, 8, 2)).peak_in_flight == [11, 9, 7, 5]
    assert [leading_forwards(a) for a in interleaved(4, 4, 2)] == [8, 8, 8, 8]  # m = p: all
    assert simulate(interleaved(4, 4, 2)).peak_in_flight == [8, 8, 8, 8]
    assert [leading_forwards(a) for a in one_f_one_b(4, 8)] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("p", "m", "fraction"), [(8, 2, 0.7778), (4, 1, 0.75), (12, 12, 0.4783), (4, 16, 3 / 19)]
)
@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_K15_simulated_pipelines_that_are_full_are_still_idle_for_half_of_the_time(
    make, p, m, fraction
):
    for backward in (1, 2, 3):  # whatever a backward takes
        found = simulate(make(p, m), forward=1, backward=backward)
        assert found.bubble_fraction == pytest.approx(fraction, abs=5e-5)


def test_K16_a_larger_micro_batch_of_the_same_batch_makes_the_simulated_bubble_larger():
    fractions, steps = [], []
    for microbatch in (1, 2, 4):
        found = simulate(one_f_one_b(8, 64 // microbatch), microbatch, 2 * microbatch)
        fractions.append(found.bubble_fraction)
        steps.append(found.makespan)
    assert fractions == pytest.approx([7 / 71, 7 / 39, 7 / 23])
    assert fractions == pytest.approx([0.0986, 0.1795, 0.3043], abs=5e-5)
    assert steps == sorted(steps)  # the work is the same


def test_K17_one_slow_stage_makes_1f1b_take_55_and_gpipe_57_and_memory_differs_by_rank():
    forward, backward = [1, 1, 2, 1], [2, 2, 4, 2]
    found = simulate(one_f_one_b(4, 8), forward, backward)
    assert found.makespan == 55
    assert [busy / 55 for busy in found.busy] == pytest.approx(
        [0.436, 0.436, 0.873, 0.436], abs=5e-4
    )
    assert simulate(gpipe(4, 8), forward, backward).makespan == 57
    assert 57 == (5 + 7 * 2) + (10 + 7 * 4)  # sum + (m - 1) max, of F and of B
    assert found.peak_in_flight == [4, 3, 2, 1]
    assert simulate(gpipe(4, 8), forward, backward).peak_in_flight == [8] * 4


def test_C54_the_strict_rule_takes_8_of_4_ranks_and_names_the_nearest_of_the_others():
    assert check_schedule(interleaved(4, 8, 2)).num_microbatches == 8
    for m, nearest in [(6, "4 or 8"), (10, "8 or 12"), (9, "8 or 12"), (3, "4")]:
        message = f"{m} micro-batches on 4 ranks: .* a multiple of 4, for example {nearest}$"
        with pytest.raises(ValueError, match=message):
            interleaved(4, m, 2)


def test_C54_the_flexible_rule_takes_8_6_10_and_3_and_refuses_9():
    for m in (8, 6, 10, 3):
        assert check_schedule(interleaved_in_rounds(4, m, 2)).num_microbatches == m
    with pytest.raises(ValueError, match=r"9 micro-batches on 4 ranks .* 2 equal rounds; 8 or 10"):
        interleaved_in_rounds(4, 9, 2)
    for p in range(1, 6):
        for m in range(1, 24):
            fits = m % max(1, m // p) == 0
            try:
                found = interleaved_in_rounds(p, m, 2)
            except ValueError as error:
                assert not fits
                below, above = str(error).split("; ")[1].split(" would")[0].split(" or ")
                for each in range(int(below), int(above) + 1):
                    ends = each in (int(below), int(above))
                    assert (each % max(1, each // p) == 0) == ends
                assert int(below) < m < int(above)
            else:
                assert fits
                assert check_schedule(found).num_microbatches == m


# p = 4: the fourth rank sees its first micro-batch at 3
TWO = """
F0 F1 .  .  .  .  .  .  .  .  B0 B0 .  B1 B1
.  F0 F1 .  .  .  .  .  B0 B0 .  B1 B1 .  .
.  .  F0 F1 .  .  B0 B0 .  B1 B1 .  .  .  .
.  .  .  F0 B0 B0 F1 B1 B1 .  .  .  .  .  .
"""


def test_C55_fewer_microbatches_than_stages_simulate():
    assert drawn(simulate(one_f_one_b(4, 2))) == typed(TWO)
    for m in (1, 2):
        # warm-up min(p - 1 - rank, m), and then a forward if there is one left
        expected = [min(min(3 - rank, m) + 1, m) for rank in range(4)]
        assert [leading_forwards(a) for a in one_f_one_b(4, m)] == expected
        assert simulate(one_f_one_b(4, m)).makespan == (m + 3) * 3
        assert simulate(one_f_one_b(4, m)).peak_in_flight == expected
        for make in (naive, gpipe, gpipe_recomputing, pipedream, zero_bubble_h1, zero_bubble_h2):
            assert check_schedule(make(4, m)).num_microbatches == m
            assert max(simulate(make(4, m)).peak_in_flight) <= m
        assert check_schedule(interleaved_in_rounds(4, m, 2)).num_microbatches == m


def versions(actions) -> tuple[dict[int, int], dict[int, int], int]:
    """Of one rank: the newest version in each F and in each B, and how many must be kept at most.

    The newest version is the number of updates so far. A version is kept while a micro-batch whose
    forward used it still has its backward to come.
    """
    newest, forward, backward, in_use, kept = 0, {}, {}, {}, 1
    for kind, _, k in actions:
        if kind == "F":
            forward[k] = in_use[k] = newest
        elif kind == "B":
            backward[k] = newest
            del in_use[k]
        elif kind == "U":
            newest += 1
        kept = max(kept, len({*in_use.values(), newest}))
    return forward, backward, kept


def test_C63_the_updates_in_pipedreams_lists_make_stage_s_keep_4_minus_s_versions():
    for stage, actions in enumerate(pipedream(4, 12)):
        forward, backward, kept = versions(actions)
        assert kept == 4 - stage
        # the newest weights at the backward: without stashing, so many updates too new
        newer = [backward[k] - forward[k] for k in range(12)]
        assert newer == [min(k, 3 - stage) for k in range(12)]
        assert forward == {k: max(0, k - (3 - stage)) for k in range(12)}


def test_C63_the_updates_in_2bws_lists_leave_each_micro_batch_one_of_the_two_newest_versions():
    batches, m = 4, 4
    for actions in pipedream_2bw(4, batches, m):
        forward, backward, _ = versions(actions)
        for k in range(batches * m):
            wanted = max(k // m - 1, 0)  # the paper's max(floor((k - 1)/m) - 1, 0), k from 1
            assert wanted in (forward[k], forward[k] - 1)  # there is one to start with
            assert wanted in (backward[k], backward[k] - 1)  # and it is still there
        assert [k for kind, _, k in actions if kind == "U"] == [3, 7, 11, 15]


def test_C63_the_schedules_that_flush_update_nothing_under_way():
    for make in (naive, gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_h2):
        assert all(action.kind != "U" for actions in make(4, 4) for action in actions)
