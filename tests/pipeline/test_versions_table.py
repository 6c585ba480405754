"""The versions that a schedule's forwards and backwards meet, against the closed forms."""

import pytest

from pedagogy.costs.pipeline_memory import pipedream_weight_versions
from pedagogy.pipeline import (
    Action,
    interleaved,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    pipedream_replicated,
)
from pedagogy.pipeline.versions_table import versions_used

SIZES = [(1, 3), (2, 5), (3, 2), (4, 12), (5, 11)]


def test_two_stages_and_three_minibatches_by_hand():
    # stage 0: F0 F1 B0 U0 F2 B1 U1 B2 U2      version after each: 0 0 0 1 1 1 2 2 3
    # stage 1: F0 B0 U0 F1 B1 U1 F2 B2 U2                          0 0 1 1 1 2 2 2 3
    schedule = pipedream(2, 3)
    assert versions_used(schedule, "no stashing").used == {
        **{(0, 0): (0, 0), (0, 1): (0, 1), (0, 2): (1, 2)},
        **{(1, 0): (0, 0), (1, 1): (1, 1), (1, 2): (2, 2)},
    }
    stashed = versions_used(schedule, "stashing")
    assert [stashed.used[0, k] for k in range(3)] == [(0, 0), (0, 0), (1, 1)]
    # kept by stage 0:            0 0 0 01 01 1 12 2 3
    assert [count for _, count in stashed.kept[0]] == [1, 1, 1, 2, 2, 1, 2, 1, 1]
    assert [action for action, _ in stashed.kept[0]][:3] == [
        Action("F", 0, 0),
        Action("F", 0, 1),
        Action("B", 0, 0),
    ]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_with_stashing_stage_s_meets_max_k_minus_the_stages_behind_and_0(p, m):
    used = versions_used(pipedream(p, m), "stashing").used
    for stage in range(p):
        for k in range(m):
            expected = max(k - (p - 1 - stage), 0)
            assert used[stage, k] == (expected, expected)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_with_vertical_sync_all_stages_meet_the_same_version(p, m):
    used = versions_used(pipedream(p, m), "vertical sync").used
    assert used == {(s, k): (max(k - (p - 1), 0),) * 2 for s in range(p) for k in range(m)}


@pytest.mark.parametrize(
    ("p", "batches", "per_batch"), [(1, 3, 1), (2, 4, 3), (4, 4, 4), (3, 2, 5)]
)
def test_2bw_meets_the_version_before_the_batch_and_keeps_two(p, batches, per_batch):
    table = versions_used(pipedream_2bw(p, batches, per_batch), "2BW")
    for (_, k), pair in table.used.items():
        assert pair == (max(k // per_batch - 1, 0),) * 2
    assert table.peak == [2] * p


def test_C63_stashing_keeps_4_3_2_1_versions_and_f_and_b_agree():
    table = versions_used(pipedream(4, 12), "stashing")
    assert table.peak == [4, 3, 2, 1] == [pipedream_weight_versions(s, 4) for s in range(4)]
    assert all(forward == backward for forward, backward in table.used.values())


def test_C63_without_stashing_stage_0_goes_back_through_weights_3_updates_newer():
    table = versions_used(pipedream(4, 12), "no stashing")
    steady = range(3, 12)
    for stage in range(4):
        newer = {table.used[stage, k][1] - table.used[stage, k][0] for k in steady}
        assert newer == {3 - stage}
    assert table.peak == [1] * 4


def test_vertical_sync_keeps_as_many_versions_on_every_stage_as_there_are_stages():
    assert versions_used(pipedream(4, 12), "vertical sync").peak == [4] * 4


def test_without_updates_there_is_one_version():
    table = versions_used(one_f_one_b(3, 6), "no stashing")
    assert set(table.used.values()) == {(0, 0)}
    assert table.peak == [1] * 3


@pytest.mark.parametrize("schedule", [interleaved(2, 4, 2), pipedream_replicated([2, 1], 4)])
def test_chunks_and_replicas_are_refused(schedule):
    with pytest.raises(ValueError, match="each must be 1"):
        versions_used(schedule, "stashing")


def test_an_unknown_policy_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no stashing, stashing, vertical sync, 2BW"):
        versions_used(pipedream(2, 2), "none")
