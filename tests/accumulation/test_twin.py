"""The production twin: DistributedDataParallel and its `no_sync`, beside ours."""

import sys
from contextlib import nullcontext

import cloudpickle
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from pedagogy.accumulation import GradientAccumulator, accumulate
from pedagogy.ranks import launch
from pedagogy.workloads import text_batch
from tests.accumulation.batches import (
    Weight,
    assert_same,
    gpt,
    gradients,
    items,
    labels_of,
    mean_loss,
    summed,
    total,
)
from tests.equality import momentum

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WINDOWS, WINDOW = 3, 2
GRADIENTS = [[1.0, 2.0], [3.0, 5.0]]  # of the two micro-batches, by rank


def counting_ddp(group, model):
    """DDP, and a list that grows by one with each all_reduce of its bucket."""
    ddp, calls = DistributedDataParallel(model), []

    def hook(state, bucket):
        calls.append(bucket.buffer().nbytes)
        return allreduce_hook(state, bucket)

    ddp.register_comm_hook(group.process_group, hook)
    return ddp, calls


def one_window(group, quiet):
    """DDP's gradient and its all_reduces; `quiet` names the micro-batches without, and where."""
    ddp, calls = counting_ddp(group, Weight())
    for index, value in enumerate(GRADIENTS[group.rank]):
        where = quiet.get(index)
        with ddp.no_sync() if where == "both" else nullcontext():
            loss = ddp(items(value)).sum()
            with ddp.no_sync() if where == "backward" else nullcontext():
                loss.backward()
    return ddp.module.w.grad.item(), len(calls)


PLACES = {
    "around all but the last": {0: "both"},
    "around the last": {1: "both"},
    "around all": {0: "both", 1: "both"},
    "around backward alone": {0: "backward"},
}


def trained_by_both(group):
    """Weights after each window: ours, DDP's; and DDP's all_reduces."""
    torch.set_num_threads(1)
    batches = [text_batch(2, 5, group.rank, step) for step in range(WINDOWS * WINDOW)]
    model = gpt()
    trainer = GradientAccumulator(
        model, momentum(model.parameters()), WINDOW, summed, labels_of, group
    )
    ours = []
    for microbatch in batches:
        if trainer.add(microbatch) is not None:
            ours.append({n: p.detach().clone() for n, p in model.named_parameters()})
    ddp, calls = counting_ddp(group, gpt())
    optimizer, theirs = momentum(ddp.module.parameters()), []
    for index, microbatch in enumerate(batches):
        last = index % WINDOW == WINDOW - 1
        with nullcontext() if last else ddp.no_sync():
            (mean_loss(ddp, [microbatch]) / WINDOW).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            theirs.append({n: p.detach().clone() for n, p in ddp.module.named_parameters()})
    return ours, theirs, len(calls)


def on_two_ranks(group):
    """All that needs two ranks, in one launch."""
    model = Weight()
    before = len(group.events)
    mine = [items(value) for value in GRADIENTS[group.rank]]
    accumulate(model, mine, total, len, group)
    in_between = [event.nbytes for event in group.events[before:]]
    placed = {name: one_window(group, quiet) for name, quiet in PLACES.items()}
    return {"ours": (model.w.grad.item(), in_between), **placed, "both": trained_by_both(group)}


@pytest.fixture(scope="module")
def ranks():
    """Both ranks' findings."""
    return list(launch(on_two_ranks, 2))


def test_C06_one_all_reduce_of_the_gradient_a_window_and_the_mean_of_one_process(ranks):
    model = Weight()
    accumulate(model, [items(v) for rank in GRADIENTS for v in rank], total, len)
    for rank in ranks:
        gradient, sent = rank["ours"]
        assert gradient == gradients(model)["w"].item() == 11 / 4
        assert sent == [8, 1, 8, 8]  # the items, which gradients there are, the gradient, the loss
        assert rank["around all but the last"] == (5.5, 1)  # twice ours: means, not divided by 2


def test_C06_no_sync_in_the_wrong_place_is_seen_in_the_difference_over_ranks_or_the_count(ranks):
    first, second = ranks
    assert first["around the last"] == (4.0, 1)
    assert second["around the last"] == (7.0, 1)
    assert (first["around all"], second["around all"]) == ((3.0, 0), (8.0, 0))
    for rank in ranks:  # DDP has decided in forward
        assert rank["around backward alone"] == (5.5, 2)


def test_with_equal_counts_we_and_ddp_with_no_sync_have_the_same_weights(ranks):
    for rank in ranks:
        ours, theirs, num_calls = rank["both"]
        assert len(ours) == len(theirs) == num_calls == WINDOWS
        for mine, ddps in zip(ours, theirs, strict=True):
            assert_same(mine, ddps)
