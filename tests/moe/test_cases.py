"""Cases that real implementations got wrong, by their ids."""

import sys
from functools import partial
from unittest.mock import patch

import cloudpickle
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pedagogy.data_parallel import average_gradients
from pedagogy.moe import (
    ExpertParallelMoE,
    MoELayer,
    SummedExperts,
    chosen_shares,
    expert_capacity,
    expert_parallel,
    loss_with_shares,
    pooled_switch_loss,
    switch_gate,
    switch_loss,
    top_k,
)
from pedagogy.ranks import grid, launch
from tests.moe.cutting import HIDDEN, SAME, WEIGHT, make_layer, random, unlimited

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_C38_capacity_is_rounded_up_and_tokens_keep_their_order():
    assert expert_capacity(5, 4, 1.0) == 2
    assert expert_capacity(10, 4, 1.25) == 4
    assert expert_capacity(7, 4, 1.0, k=2) == 4
    assert expert_capacity(3, 2, 100.0) == 3
    layer = make_layer(route=partial(switch_gate, capacity_factor=1.0))
    nn.init.zeros_(layer.router.weight)  # a tie: expert 0 for all five
    x = random(0, 5, HIDDEN)
    output = layer(x)
    assert layer.last.kept.squeeze(-1).tolist() == [True, True, False, False, False]
    assert layer.last.counts.tolist() == [5, 0, 0, 0]  # before any is dropped
    assert chosen_shares(layer.last.experts, 4).tolist() == [1, 0, 0, 0]
    assert (output[:2] != 0).all()
    assert (output[2:] == 0).all()
    output[2:].sum().backward()  # dropped tokens teach no expert
    assert all((p.grad == 0).all() for p in layer.experts.parameters())


@pytest.mark.parametrize("factor", [0, 0.0])
def test_C40_a_capacity_factor_of_0_is_refused_and_never_replaced(factor):
    with pytest.raises(ValueError, match=f"capacity factor of {factor}"):
        switch_gate(torch.zeros(4, 2), factor)
    with pytest.raises(ValueError, match=f"capacity factor of {factor}"):
        expert_capacity(4, 2, factor)
    assert not top_k(torch.zeros(4, 2), 1, capacity=0).kept.any()  # a capacity of 0 is one


def test_C43_the_loss_of_micro_batches_is_not_that_of_the_batch():
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    mean = (switch_loss(first, torch.tensor([0])) + switch_loss(second, torch.tensor([1]))) / 2
    pooled = switch_loss(torch.cat([first, second]), torch.tensor([0, 1]))
    assert mean.item() == 2.0
    assert pooled.item() == 1.0


def test_C44_the_loss_sees_the_routing():
    even = torch.full((4, 4), 0.25)
    assert switch_loss(even, torch.tensor([0, 1, 2, 3])).item() == pytest.approx(1.0)
    skewed = torch.tensor([[0.7, 0.1, 0.1, 0.1]] * 4)
    assert switch_loss(skewed, torch.tensor([0, 0, 0, 0])).item() == pytest.approx(2.8)
    routings = ([0, 1, 2, 3], [0, 0, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0])
    losses = [switch_loss(skewed, torch.tensor(r)).item() for r in routings]
    assert losses == sorted(set(losses))  # rising with the imbalance


def test_C45_the_router_chooses_in_float32_and_recompute_chooses_the_same():
    pair = torch.tensor([5.001, 5.010])
    assert pair.bfloat16().tolist() == [5.0, 5.0]  # a tie in bfloat16
    # inputs and weights that bfloat16 holds, whose products it does not: 5 + 1/512, 5 + 5/512
    layer = MoELayer(2, 2, unlimited).bfloat16()
    layer.router.weight.data = torch.tensor([[5.0, 1 / 512], [5.0, 5 / 512]]).bfloat16()
    x = torch.ones(3, 2, dtype=torch.bfloat16, requires_grad=True)
    assert nn.functional.linear(x, layer.router.weight).argmax(-1).tolist() == [0, 0, 0]
    seen = []
    layer.register_forward_hook(lambda module, *_: seen.append(module.last.experts))
    with torch.autocast("cpu", torch.bfloat16):
        checkpoint(layer, x, use_reentrant=False, early_stop=False).sum().backward()
    first, again = seen
    assert first.flatten().tolist() == again.flatten().tolist() == [1, 1, 1]
    assert layer.last.probabilities.dtype == torch.float32


GLOBAL = 12  # tokens of the whole batch


def router_gradients(group):
    """By dp and number of micro-batches: the router's gradient from the balancing loss alone."""
    torch.set_num_threads(1)
    whole, found = random(0, GLOBAL, HIDDEN), {}
    for dp in (1, 2, 4):
        axis = grid(group, copies=4 // dp, dp=dp)["dp"]
        x = whole.chunk(dp)[axis.rank]
        layer = make_layer()
        output = layer(x)
        balance = pooled_switch_loss(axis, layer.last.probabilities, layer.last.experts)
        (0 * output.sum() + WEIGHT * dp * balance).backward()
        average_gradients(axis, [layer.router.weight])
        found[dp] = layer.router.weight.grad, balance.detach()
        for num_microbatches in (1, 3):
            found[dp, num_microbatches] = in_microbatches(axis, x, num_microbatches)
    return found


def in_microbatches(axis, x, num_microbatches):
    """With the shares of the whole batch, micro-batches and ranks add up."""
    layer = make_layer()
    shares = axis.all_reduce(chosen_shares(layer.router(x).experts, 4), "mean")
    total = 0.0
    for part in x.chunk(num_microbatches):
        layer(part)
        loss = loss_with_shares(layer.last.probabilities, shares) / num_microbatches
        (WEIGHT * loss).backward()
        total = total + loss.detach()
    average_gradients(axis, [layer.router.weight])
    return layer.router.weight.grad, axis.all_reduce(total, "mean")


def test_C41_the_gradient_of_the_balancing_loss_does_not_depend_on_dp_or_micro_batches():
    layer = make_layer()
    layer(random(0, GLOBAL, HIDDEN))
    loss = switch_loss(layer.last.probabilities, layer.last.experts)
    (WEIGHT * loss).backward()
    right = layer.router.weight.grad
    assert right.abs().max() > 1e-4
    for found in launch(router_gradients, 4):
        assert len(found) == 9
        for gradient, value in found.values():
            torch.testing.assert_close(gradient, right, **SAME)
            torch.testing.assert_close(value, loss.detach(), **SAME)


class Scale(nn.Module):
    """An expert of one number."""

    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.weight * x


def collapsed(group):
    """C46: every token to expert 0, two steps; gradients and losses."""
    layer = ExpertParallelMoE(group, collapsed_layer())
    optimizer = torch.optim.AdamW(layer.experts.parameters(), lr=0.1)
    losses = []
    for step in range(2):
        optimizer.zero_grad()
        loss = layer(random(2 * step + group.rank, 5, HIDDEN)).square().mean()
        loss.backward()
        losses.append(loss.detach())
        gradients = [p.grad for p in layer.experts.parameters()]
        optimizer.step()
    return losses, gradients


def collapsed_layer():
    layer = make_layer()
    nn.init.zeros_(layer.router.weight)
    return layer


def scale_of_gradients(group):
    """C47: 1.0 from the tokens of rank 0, 3.0 from those of rank 1."""
    layer = ExpertParallelMoE(group, MoELayer(1, 2, partial(top_k, k=1), Scale))
    nn.init.zeros_(layer.router.weight)  # expert 0 for all, with weight 1
    layer(torch.full((4, 1), [1.0, 3.0][group.rank])).mean().backward()
    return [p.grad.item() for p in layer.experts.parameters()]


def upstream(make_mixture):
    """C48: an embedding, a mixture of two experts, one loss: the gradients of what is upstream."""
    torch.manual_seed(0)
    embedding, layer = nn.Embedding(7, HIDDEN).double(), make_mixture(make_layer(2))
    layer(embedding(torch.arange(7).repeat(2))).square().mean().backward()
    return [embedding.weight.grad, layer.router.weight.grad]


def summed(group):
    with_sums = upstream(partial(SummedExperts, group))
    with patch.object(expert_parallel, "copy_to", lambda group, x: x):
        return with_sums, upstream(partial(SummedExperts, group))


def three_cases(group):
    torch.set_num_threads(1)
    return collapsed(group), scale_of_gradients(group), summed(group)


@pytest.fixture(scope="module")
def run():
    """Two ranks."""
    return launch(three_cases, 2)


def test_C46_experts_and_ranks_without_tokens_have_gradients_of_zero(run):
    layer = collapsed_layer()
    optimizer = torch.optim.AdamW(layer.experts.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        for rank in range(2):
            loss = layer(random(2 * step + rank, 5, HIDDEN)).square().mean()
            torch.testing.assert_close(run[rank][0][0][step], loss.detach(), **SAME)
            (loss / 2).backward()
        right = [p.grad.clone() for p in layer.experts.parameters()]
        optimizer.step()
    found = [gradient for rank in run for gradient in rank[0][1]]
    torch.testing.assert_close(found, right, **SAME)
    assert all((gradient == 0).all() for gradient in found[4:])  # experts 1, 2 and 3
    assert all((gradient != 0).any() for gradient in found[:4])


def test_C47_an_expert_has_the_mean_over_the_ranks_tokens_not_their_sum(run):
    assert run[0][1] == [2.0]  # (1 + 3) / 2
    assert run[1][1] == [0.0]


def test_C48_gradients_upstream_of_summed_experts_are_summed(run):
    right = upstream(lambda layer: layer)
    (with_0, without_0), (with_1, without_1) = (rank[2] for rank in run)
    for found in (with_0, with_1):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    for mine, other in zip(without_0, without_1, strict=True):  # the missing sum shows so
        assert (mine - other).abs().max() > 1e-3
