"""Chapter 02b: what `check` says to natural answers, right and wrong."""

from __future__ import annotations

import sys
from itertools import pairwise

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.exercises import attempt, engine
from pedagogy.exercises.chapter02b import LEARNING_RATE, STASH, stash_weights, train_with_stash
from pedagogy.exercises.chapter02b_gradients import WRONG, find_wrong_gradient, recorded
from pedagogy.exercises.chapter02b_partition import PARTITION, partition_stages
from pedagogy.pipeline import (
    UnstashedStage,
    partition,
    pipedream,
    pipedream_2bw,
    run_schedule,
    stashing,
    train_by_recursion,
)
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def said(exercise, function) -> str:
    return engine.explain(exercise, function)


def correct(exercise, function) -> bool:
    return said(exercise, function).startswith(engine.CORRECT)


# --- stashing -------------------------------------------------------------------------------------


def _weights_and_batches(p: int, m: int) -> tuple:
    draw = torch.Generator().manual_seed(7)
    weights = [torch.eye(2) + torch.randn(2, 2, generator=draw) / 2 for _ in range(p)]
    rows = torch.randn(2, m, 3, 2, generator=draw)
    return weights, list(rows[0]), list(rows[1])


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_the_reference_stash_gives_the_recursion_of_the_paper(p):
    weights, inputs, targets = _weights_and_batches(p, 9)
    stages = [nn.Linear(2, 2, bias=False) for _ in weights]
    for stage, weight in zip(stages, weights, strict=True):
        stage.weight.data = weight.T.clone()

    def half_squared_error(output, target):
        return ((output - target) ** 2).sum() / 2

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=LEARNING_RATE)

    wanted = train_by_recursion(stages, sgd, inputs, targets, half_squared_error, stashing(p))[-1]
    kept = train_with_stash(stash_weights, weights, inputs, targets)
    assert kept == [p - stage for stage in range(p)]
    for found, weight in zip(weights, wanted, strict=True):
        torch.testing.assert_close(found, weight.T)


def test_a_stash_that_shares_equal_versions_is_accepted():
    def shared(kind, k, newest, stash):
        if kind == "B":
            return stash.pop(k)
        same = [one for one in stash.values() if torch.equal(one, newest)]
        stash[k] = same[0] if same else newest.clone()
        return newest

    assert correct(STASH, shared)


def test_a_backward_without_weights_is_refused():
    def forgets_the_return(kind, k, newest, stash):
        if kind == "F":
            stash[k] = newest.clone()
            return newest
        stash.pop(k)

    assert 'For "B" it returns None, not the weights' in said(STASH, forgets_the_return)


def test_detach_is_no_copy():
    def detached(kind, k, newest, stash):
        if kind == "B":
            return stash.pop(k)
        stash[k] = newest.detach()
        return newest

    assert "which every update overwrites" in said(STASH, detached)


def test_old_weights_copied_into_the_newest_lose_the_updates_since():
    def put_back(kind, k, newest, stash):
        if kind == "F":
            stash[k] = newest.clone()
        else:
            newest[:] = stash.pop(k)
        return newest

    assert "the updates made since are lost" in said(STASH, put_back)


# --- cuts, wrong gradients  --------------------------------------------------------------


def test_the_package_s_partition_and_a_search_for_the_limit_are_accepted():
    def by_limit(costs, num_stages):
        for limit in sorted({sum(costs[i:j]) for j in range(len(costs) + 1) for i in range(j)}):
            ends, held = [0], 0
            for layer, cost in enumerate(costs):
                left = num_stages - len(ends)
                if layer > ends[-1] and (held + cost > limit or len(costs) - layer <= left):
                    ends.append(layer)
                    held = 0
                held += cost
            stages = list(pairwise([*ends, len(costs)]))
            if len(stages) == num_stages and all(sum(costs[i:j]) <= limit for i, j in stages):
                return stages
        return None

    assert correct(PARTITION, partition)
    assert correct(PARTITION, by_limit)


def test_a_recursion_that_forgets_is_told_to_keep_what_it_has_computed(monkeypatch):
    def all_cuts(costs, num_stages):
        if num_stages == 1:
            return [(0, len(costs))]
        ways = [
            [*all_cuts(costs[:last], num_stages - 1), (last, len(costs))]
            for last in range(num_stages - 1, len(costs))
        ]
        return min(ways, key=lambda cut: max(sum(costs[i:j]) for i, j in cut))

    monkeypatch.setattr(attempt, "HERE_SECONDS", 0.5)
    text = said(PARTITION, all_cuts)
    assert "for 40 layers and 8 stages" in text
    assert "Keep what you have computed (a table, or functools.cache)." in text
    assert correct(PARTITION, lambda costs, p: partition_stages(tuple(costs), p))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda costs, p: [(0, len(costs))], "there are 1 stages"),
        (lambda costs, p: [(0, 0)] * (p - 1) + [(0, len(costs))], "stage 0, (0, 0), has no layer"),
        (lambda costs, p: [(i, i + 1) for i in range(p)], "ends before 3, not before 6"),
        (lambda costs, p: 7, "it returns 7, not a list"),
    ],
)
def test_what_is_no_partition_is_refused(answer, reason):
    assert reason in said(PARTITION, answer)


def test_the_reference_partition_is_as_good_as_the_package_s():
    draw = torch.Generator().manual_seed(1)
    for num_stages in range(1, 7):
        costs = torch.randint(1, 30, (11,), generator=draw).tolist()
        worst = [
            max(sum(costs[first:last]) for first, last in way(costs, num_stages))
            for way in (partition_stages, partition)
        ]
        assert worst[0] == worst[1]


def _unstashed(group, schedule):
    torch.manual_seed(group.rank)
    stage = UnstashedStage(nn.Linear(2, 2), lambda ps: torch.optim.SGD(ps, lr=0.01))
    m = len(schedule[0]) // 3
    batches = list(torch.ones(m, 1, 2))
    run_schedule(group, schedule, {group.rank: stage}, batches, batches, functional.mse_loss)
    return stage.used


def test_the_wrong_gradients_are_those_that_a_run_on_ranks_records():
    schedule = pipedream(3, 6)
    used = launch(_unstashed, 3, schedule)
    newer = {
        (stage, k): in_backward - in_forward
        for stage, one in enumerate(used)
        for k, (in_forward, in_backward) in one.items()
        if in_forward != in_backward
    }
    assert find_wrong_gradient(recorded(schedule)) == newer
    assert newer == {(s, k): min(k, 2 - s) for s in range(2) for k in range(1, 6)}


def test_with_two_batches_of_2bw_one_update_mixes_a_gradient():
    assert set(find_wrong_gradient(recorded(pipedream_2bw(3, 2, 3))).values()) == {1}


def test_the_version_of_a_stage_is_no_count_over_all_stages():
    def over_all(records):
        first, newer = {}, {}
        for place, (kind, stage, k) in enumerate(records):
            made = sum(kind == "U" for kind, _, _ in records[:place])
            if kind == "F":
                first[stage, k] = made
            if kind == "B" and made > first[stage, k]:
                newer[stage, k] = made - first[stage, k]
        return newer

    assert "which weights *this* stage's backward used" in said(WRONG, over_all)
