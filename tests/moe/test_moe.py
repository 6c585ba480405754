"""The gates by hand-worked cases, and expert parallelism against one process."""

import sys

import cloudpickle
import pytest
import torch
from torch.nn import functional

from pedagogy.data_parallel import average_gradients
from pedagogy.moe import (
    ExpertParallelMoE,
    MoELayer,
    combine,
    dispatch,
    expected_load,
    expert_capacity,
    gshard_gate,
    gshard_loss,
    hierarchical_all_to_all,
    hierarchical_gate,
    importance_loss,
    noisy_top_k_gate,
    pooled_switch_loss,
    run_experts,
    switch_gate,
    switch_loss,
    top_k,
)
from pedagogy.ranks import grid, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def random(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# --- gates ------------------------------------------------------------------------------------


def test_C38_capacity_is_rounded_up_and_tokens_keep_their_order():
    assert expert_capacity(5, 4, 1.0) == 2
    assert expert_capacity(10, 4, 1.25) == 4
    assert expert_capacity(7, 4, 1.0, k=2) == 4
    assert expert_capacity(3, 2, 100.0) == 3
    logits = torch.tensor([[9.0, 0, 0, 0]] * 5)
    routing = switch_gate(logits, 1.0)
    assert routing.kept.squeeze(-1).tolist() == [True, True, False, False, False]
    assert routing.counts.tolist() == [5, 0, 0, 0]
    x = torch.ones(5, 3)
    sent = dispatch(x, routing)
    outputs = combine(run_experts(sent.rows, sent.counts, [torch.nn.Identity()] * 4), sent, 5)
    assert outputs[2:].abs().sum() == 0


def test_C40_a_capacity_factor_of_0_is_refused_and_never_replaced():
    with pytest.raises(ValueError, match="capacity factor of 0"):
        switch_gate(torch.zeros(4, 2), 0)
    with pytest.raises(ValueError, match=r"capacity factor of 0\.0"):
        expert_capacity(4, 2, 0.0)


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


def test_C45_the_router_chooses_in_float32():
    low = torch.tensor([[5.001, 5.010]], dtype=torch.bfloat16)
    assert low[0, 0] == low[0, 1]  # a tie in bfloat16
    layer = MoELayer(2, 2, lambda logits: switch_gate(logits, None)).to(torch.bfloat16)
    assert layer.router.logits(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.float32
    assert switch_gate(torch.tensor([[5.001, 5.010]]), None).experts.item() == 1


def test_top_k_weights_sum_to_one_and_ties_go_to_the_lower_expert():
    gates = noisy_top_k_gate(random(0, 50, 8), 3).gates
    torch.testing.assert_close(gates.sum(1), torch.ones(50, dtype=torch.float64))
    assert ((gates > 0).sum(1) == 3).all()
    assert top_k(torch.zeros(1, 4), 2).experts.tolist() == [[0, 1]]
    assert importance_loss(torch.full((6, 3), 1 / 3)).item() == pytest.approx(0, abs=1e-12)


def test_expected_load_is_the_mean_of_the_counts_over_the_noise():
    """Redraw the noise of one expert at a time; count how often it is among the k."""
    logits, std, k = random(1, 1, 5), torch.full((1, 5), 0.7, dtype=torch.float64), 2
    noisy = logits + std * random(2, 1, 5)
    load = expected_load(logits, noisy, std, k)
    for expert in range(5):
        again = noisy.repeat(50_000, 1)
        again[:, expert] = logits[0, expert] + 0.7 * random(3 + expert, 50_000)
        chosen = again.topk(k, dim=-1).indices == expert
        share = chosen.any(-1).double().mean().item()
        assert load[expert].item() == pytest.approx(share, abs=4 * 0.5 / 50_000**0.5)


def test_gshard_second_choices_are_counted_even_when_they_are_left_out():
    logits = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    routing = gshard_gate(logits, 2, torch.Generator().manual_seed(0))
    assert routing.places.tolist() == [[0, 1], [1, 2], [0, 2]]
    assert not routing.kept[:, 1].any()  # 2 * g2 is about 0.013, and two buffers are full
    torch.testing.assert_close(routing.weights.sum(1), torch.ones(3))
    balanced = gshard_gate(torch.eye(4).repeat(3, 1) * 1e-6, None)
    assert gshard_loss(balanced).item() == pytest.approx(1 / 4**2, rel=1e-4)


def test_two_level_weights_are_products_and_sum_to_one():
    primary, secondary = random(4, 20, 3), random(5, 20, 3, 4)
    routing = hierarchical_gate(primary, secondary, 2)
    torch.testing.assert_close(routing.gates.sum(1), torch.ones(20, dtype=torch.float64))
    token, best = 7, int(routing.experts[7, 0])
    group, expert = divmod(best, 4)
    outer = primary[token].topk(2).values.softmax(0)[0]
    inner = secondary[token, group].topk(2).values.softmax(0)[0]
    assert (group, expert) == (int(primary[token].argmax()), int(secondary[token, group].argmax()))
    torch.testing.assert_close(routing.weights[token, 0], outer * inner)


# --- experts ----------------------------------------------------------------------------------


def make_layer(factor):
    torch.manual_seed(0)
    layer = MoELayer(6, 4, lambda logits: switch_gate(logits, factor)).double()
    torch.nn.init.normal_(layer.router.weight)
    return layer


def test_a_layer_equals_a_loop_over_tokens():
    layer, x = make_layer(None), random(6, 9, 6)
    output = layer(x)
    for i, token in enumerate(x):
        expert = int(layer.last.experts[i, 0])
        weight = layer.last.probabilities[i, expert]
        torch.testing.assert_close(output[i], weight * layer.experts[expert](token[None])[0])


def loss_of(output, target):
    return functional.mse_loss(output, target)


def train_parallel(group, factor, collapse):
    whole = make_layer(factor)
    if collapse:  # every token to expert 0
        torch.nn.init.zeros_(whole.router.weight)
    layer = ExpertParallelMoE(group, whole)
    parameters = [layer.router.weight, *layer.experts.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    outputs = []
    for step in range(3):
        x, target = random(10 * step + group.rank, 5, 6), random(500 + step + group.rank, 5, 6)
        optimizer.zero_grad()
        output = layer(x)
        loss_of(output, target).backward()
        average_gradients(group, [layer.router.weight])
        optimizer.step()
        outputs.append(output.detach())
    return outputs, layer.router.weight.detach(), [p.detach() for p in layer.experts.parameters()]


@pytest.mark.parametrize(
    ("world_size", "factor", "collapse"),
    [(1, 1.0, False), (2, None, False), (4, None, False), (4, 1.0, False), (4, None, True)],
)
def test_C46_C47_expert_parallelism_equals_one_process(world_size, factor, collapse):
    run = launch(train_parallel, world_size, factor, collapse)
    layer = make_layer(factor)
    if collapse:
        torch.nn.init.zeros_(layer.router.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(world_size):  # each rank's tokens are routed by themselves
            x, target = random(10 * step + rank, 5, 6), random(500 + step + rank, 5, 6)
            output = layer(x)
            torch.testing.assert_close(run[rank][0][step], output.detach())
            (loss_of(output, target) / world_size).backward()
        optimizer.step()
    for _, router, _ in run:
        torch.testing.assert_close(router, layer.router.weight.detach())
    found = [parameter for rank in run for parameter in rank[2]]
    for mine, right in zip(found, layer.experts.parameters(), strict=True):
        torch.testing.assert_close(mine, right.detach())


def pooled(group):
    probabilities = random(group.rank, 6, 3).softmax(-1).requires_grad_()
    loss = pooled_switch_loss(group, probabilities, probabilities.argmax(-1))
    loss.backward()
    return loss.detach(), probabilities.grad


def test_C41_the_pooled_loss_and_its_gradient_do_not_depend_on_the_number_of_ranks():
    run = launch(pooled, 4)
    whole = torch.cat([random(rank, 6, 3).softmax(-1) for rank in range(4)]).requires_grad_()
    loss = switch_loss(whole, whole.argmax(-1))
    loss.backward()
    for rank, (mine, gradient) in enumerate(run):
        torch.testing.assert_close(mine, loss.detach())
        torch.testing.assert_close(gradient, whole.grad[6 * rank : 6 * rank + 6])


# --- two levels of network --------------------------------------------------------------------


def both_ways(group):
    axes = grid(group, node=2, place=2)
    xs = [random(10 * group.rank + to, group.rank + to, 3) for to in range(4)]
    flat = group.all_to_all(xs)
    start = len(group.events)
    # the ranks of a node differ in their place; those with one place differ in their node
    levels = hierarchical_all_to_all(axes["place"], axes["node"], xs)
    events = [e for e in group.events[start:] if e.kind == "all_to_all"]
    return all(torch.equal(a, b) for a, b in zip(flat, levels, strict=True)), len(events)


def test_two_levels_give_what_the_flat_exchange_gives():
    assert [same for same, _ in launch(both_ways, 4)] == [True] * 4
