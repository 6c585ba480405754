"""One decision for all ranks: a gradient that is infinite on one of them, a loss that is NaN."""

import math
import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.collectives import reduce_from
from pedagogy.parameters import average
from pedagogy.precision import DynamicLossScaler, MasterWeights, all_finite, anywhere
from pedagogy.ranks import grid, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FULL = torch.tensor([0.25, 0.5, 2.0, 1.0])  # gradients; times 65,536 or 32,768, 2 is beyond fp16
HUGE = [1.0, 1e35, 1.0, 1.0]  # inputs of a pipeline; the scale makes its second stage overflow
STEPS = 4


def one_process(make_scaler):
    """The cut weight whole, in fp16 with master weights: scale and weights after each step."""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = MasterWeights(torch.optim.SGD([weight], lr=0.5, momentum=0.9), torch.float16)
    scaler, seen = make_scaler(), []
    for _ in range(STEPS):
        scaler.scale((weight.float() * FULL).sum()).backward()
        optimizer.take_gradients()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append((scaler.get_scale(), weight.tolist()))
    return seen


def tensor_cut(group, scaler):
    """Each rank holds half of the weight; the sum goes over the ranks."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = MasterWeights(torch.optim.SGD([weight], lr=0.5, momentum=0.9), torch.float16)
    mine, seen = FULL.chunk(2)[group.rank], []
    for _ in range(STEPS):
        total = reduce_from(group, (weight.float() * mine).sum())
        scaler.scale(total).backward()
        stepped = scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append((scaler.get_scale(), stepped, weight.tolist()))
    return seen


def pipeline_cut(group, scaler):
    """Two stages, loss = w1 w0 x; the gradient of w1 is scale x w0, that of w0 scale w1 x."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0**-16][group.rank]))
    optimizer, seen = torch.optim.SGD([weight], lr=2.0**-20), []
    for x in HUGE:
        if group.rank == 0:
            hidden = weight * (x if x == 1 else 1.0)
            group.send(hidden.detach() * (1.0 if x == 1 else x), 1)
            hidden.backward(group.recv(1))
        else:
            hidden = group.recv(0).requires_grad_()
            scaler.scale(weight * hidden).backward()
            group.send(hidden.grad, 0)
        stepped = scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append((scaler.get_scale(), stepped))
    return seen


def replicas(group):
    """Data parallel; the loss of the second batch is NaN on rank 1."""
    weight = nn.Parameter(torch.zeros(()))
    optimizer, skipped = torch.optim.SGD([weight], lr=1.0), 0
    for step in range(3):
        loss = weight * (math.nan if (step, group.rank) == (1, 1) else 1.0 + group.rank)
        if all_finite(loss, [group]):
            loss.backward()
            average(group, [weight.grad])
            optimizer.step()
            optimizer.zero_grad()
        else:
            skipped += 1
    return skipped, weight.item()


def on_two_ranks(group):
    """All that needs two ranks, in one launch."""
    together = {"groups": [group], "growth_interval": 2}
    found = {
        "tensor": tensor_cut(group, DynamicLossScaler(**together)),
        "pipeline": pipeline_cut(group, DynamicLossScaler(**together)),
        "alone": tensor_cut(group, DynamicLossScaler(growth_interval=2)),
        "replicas": replicas(group),
        "bytes": (len(group.events), anywhere(group.rank == 1, [group]), group.events[-1].nbytes),
    }
    large = torch.full((1,), 60_000.0, dtype=torch.float16)
    sums = group.all_reduce(large), group.all_reduce(large.float()), group.all_reduce(large / 2)
    return found | {"sums": [s.item() for s in sums], "events": len(group.events)}


@pytest.fixture(scope="module")
def ranks():
    """Both ranks' findings."""
    return list(launch(on_two_ranks, 2))


def test_C34_an_inf_in_one_ranks_shard_of_a_tensor_makes_all_ranks_skip(ranks):
    expected = one_process(lambda: DynamicLossScaler(growth_interval=2))
    theirs = one_process(lambda: torch.amp.GradScaler("cpu", growth_interval=2))
    assert expected == theirs
    first, second = (rank["tensor"] for rank in ranks)
    for (scale, weight), mine, other in zip(theirs, first, second, strict=True):
        assert mine[0] == other[0] == scale
        assert mine[1] == other[1]
        assert mine[2] + other[2] == weight
    assert [stepped for _, stepped, _ in first] == [False, False, True, True]


def test_C34_an_inf_in_one_stage_of_a_pipeline_makes_all_stages_skip(ranks):
    assert ranks[0]["pipeline"] == ranks[1]["pipeline"]
    assert ranks[0]["pipeline"] == [(65536, True), (32768, False), (32768, True), (65536, True)]


def test_C34_ranks_that_decide_alone_drift_apart(ranks):
    first, second = (rank["alone"] for rank in ranks)
    assert [stepped for _, stepped, _ in first] == [True, True, False, True]  # 131,072 x 0.5: inf
    assert [stepped for _, stepped, _ in second] == [False, False, True, True]
    assert first[-1][0] > second[-1][0]


def test_C35_a_loss_that_is_nan_on_one_rank_is_skipped_by_all_and_nobody_waits(ranks):
    assert [rank["replicas"] for rank in ranks] == [(1, -3.0)] * 2  # twice the mean of 1 and 2


def test_C37_two_times_60000_is_infinite_in_fp16_unless_divided_before_the_sum(ranks):
    for rank in ranks:
        assert rank["sums"] == [math.inf, 120_000, 60_000]


def test_the_decision_costs_one_all_reduce_of_a_number(ranks):
    for rank in ranks:
        before, flag, nbytes = rank["bytes"]
        assert flag is True
        assert nbytes == 8  # 2 (N - 1) / N of an int64
        assert rank["events"] == before + 1 + 3


def everywhere(group):
    """For each rank of a 2 by 2 grid: what the ranks know if that one has a flag."""
    axes = grid(group, pp=2, tp=2).values()
    return [anywhere(group.rank == flagged, axes) for flagged in (*range(4), None)]


def test_a_flag_of_any_rank_of_a_grid_is_known_to_all_of_them():
    assert list(launch(everywhere, 4)) == [[True] * 4 + [False]] * 4
