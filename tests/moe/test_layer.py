"""A mixture in one process: against loops, in every dtype, copied, frozen, recomputed, nested."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pedagogy.moe import (
    MoELayer,
    NoisyTopKGate,
    balance_loss,
    gshard_gate,
    mixture,
    moe_layers,
    switch_loss,
    top_k,
)
from pedagogy.workloads import GPT, FeedForward
from tests.moe.cutting import HIDDEN, limited, make_layer, random, unlimited

ROUTES = {
    "switch": unlimited,
    "switch with drops": limited,
    "two of four": partial(top_k, k=2),
    "all of four": partial(top_k, k=4),
    "GShard": partial(gshard_gate, capacity=2),
}


def token_by_token(layer, x, routing):
    """What each token's kept experts add to it."""
    rows = []
    for token, experts, weights, kept in zip(
        x, routing.experts, routing.weights, routing.kept, strict=True
    ):
        row = torch.zeros_like(token)
        for e, weight, keep in zip(experts.tolist(), weights, kept.tolist(), strict=True):
            if keep:
                row = row + weight * layer.experts[e](token[None])[0]
        rows.append(row)
    return torch.stack(rows)


def gradients(layer, loss, *inputs):
    parameters = [p for p in layer.parameters() if p.requires_grad]
    return torch.autograd.grad(loss, [*inputs, *parameters], retain_graph=True, allow_unused=True)


@pytest.mark.parametrize("route", ROUTES)
def test_a_layer_equals_a_loop_over_tokens_with_its_gradients(route):
    layer = make_layer(route=ROUTES[route])
    x = random(6, 9, HIDDEN).requires_grad_()
    output = layer(x)
    expected = token_by_token(layer, x, layer.last)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
    target = random(7, 9, HIDDEN)
    found = gradients(layer, (output * target).sum(), x)
    right = gradients(layer, (expected * target).sum(), x)
    for mine, other in zip(found, right, strict=True):
        other = torch.zeros_like(mine) if other is None else other  # an idle expert: zeros
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_any_shape_and_any_strides_go_in_and_come_out():
    layer, x = make_layer(), random(0, 2, 3, 5, HIDDEN)
    flat = layer(x.reshape(-1, HIDDEN))
    torch.testing.assert_close(layer(x), flat.view_as(x))
    torch.testing.assert_close(layer(x[0, 0, 0]), flat[0])
    strided = x.transpose(0, 2)
    assert not strided.is_contiguous()
    torch.testing.assert_close(layer(strided), layer(x).transpose(0, 2))
    for empty in (x[:0], x[:, :, :0]):
        assert layer(empty).shape == empty.shape
    alone = make_layer(num_experts=1)
    torch.testing.assert_close(alone(x), alone.experts[0](x))  # a softmax over one is 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_outputs_and_gradients_have_the_dtype_of_the_layer(dtype):
    layer = make_layer().to(dtype)
    x = random(0, 7, HIDDEN).to(dtype).requires_grad_()
    output = layer(x)
    output.sum().backward()
    tensors = [output, x.grad, *(p.grad for p in layer.parameters())]
    assert {t.dtype for t in tensors} == {dtype}
    assert layer.last.probabilities.dtype == torch.promote_types(dtype, torch.float32)


def test_autocast_reaches_the_experts_and_not_the_router():
    layer, x = make_layer().float(), random(0, 7, HIDDEN).float()
    before = layer(x)
    choices = layer.last.experts
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    assert layer.last.probabilities.dtype == torch.float32
    assert torch.equal(layer.last.experts, choices)
    torch.testing.assert_close(output.float(), before, rtol=0.05, atol=0.05)
    output.float().sum().backward()


def test_a_token_of_nan_spoils_no_other():
    layer, x = make_layer(), random(0, 5, HIDDEN)
    right = layer(x)
    x[2] = float("nan")
    output = layer(x)
    others = [0, 1, 3, 4]
    assert output[2].isnan().all()
    torch.testing.assert_close(output[others], right[others])


def test_two_backwards_accumulate_and_a_copy_does_as_the_first():
    layer = make_layer()
    layer(random(0, 8, HIDDEN)).square().sum().backward()
    twin = copy.deepcopy(layer)
    fresh = make_layer(seed=1)
    fresh.load_state_dict(layer.state_dict())
    layer(random(1, 8, HIDDEN)).square().sum().backward()
    fresh(random(0, 8, HIDDEN)).square().sum().backward()
    fresh(random(1, 8, HIDDEN)).square().sum().backward()
    for mine, other in zip(layer.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    assert torch.equal(twin(random(2, 3, HIDDEN)), layer(random(2, 3, HIDDEN)))


def test_frozen_and_tied_experts_stay_what_they_are():
    layer = make_layer(route=partial(top_k, k=2))
    free = make_layer(route=partial(top_k, k=2))
    layer.experts[0].requires_grad_(False)
    layer.router.requires_grad_(False)
    layer.experts[2] = layer.experts[3]
    free.experts[2].load_state_dict(free.experts[3].state_dict())
    for each in (layer, free):
        each(random(0, 12, HIDDEN)).square().sum().backward()
    assert all(p.grad is None for p in [*layer.experts[0].parameters(), layer.router.weight])
    twins = zip(free.experts[2].parameters(), free.experts[3].parameters(), strict=True)
    for tied, (one, other) in zip(layer.experts[3].parameters(), twins, strict=True):
        torch.testing.assert_close(tied.grad, one.grad + other.grad)


@pytest.mark.parametrize("route", ["noisy", "GShard", "switch with drops"])
def test_recomputed_in_backward_it_routes_as_before(route):
    """The noise is drawn again from the same state."""
    results = []
    for recompute in (False, True):
        torch.manual_seed(2)
        gate = NoisyTopKGate(HIDDEN, 4, 2) if route == "noisy" else ROUTES[route]
        layer, x = make_layer(route=gate), random(3, 20, HIDDEN).requires_grad_()
        run = partial(checkpoint, layer, use_reentrant=False) if recompute else layer
        output = run(x)
        loss = output.square().mean()
        if route == "noisy":
            loss = loss + gate.loss
        loss.backward()
        results.append([output, x.grad, *(p.grad for p in layer.parameters())])
    for mine, right in zip(*results, strict=True):
        assert torch.equal(mine, right)


def test_a_mixture_of_mixtures_is_a_mixture_of_two_levels():
    torch.manual_seed(0)
    inner = partial(MoELayer, num_experts=3, route=unlimited)
    layer = MoELayer(HIDDEN, 2, unlimited, inner).double()
    for router in (layer.router, *(group.router for group in layer.experts)):
        nn.init.normal_(router.weight)
    x = random(0, 9, HIDDEN)
    output = layer(x)
    for token, row in zip(x, output, strict=True):
        outer = layer.router.logits(token[None]).softmax(-1)[0]
        group = layer.experts[int(outer.argmax())]
        within = group.router.logits(token[None]).softmax(-1)[0]
        expected = outer.max() * within.max() * group.experts[int(within.argmax())](token[None])[0]
        torch.testing.assert_close(row, expected)
    assert len(list(moe_layers(layer))) == 3


def test_every_second_layer_of_a_gpt_becomes_a_mixture_of_the_same_shape():
    torch.manual_seed(0)
    model = GPT(layers=5, hidden=32, heads=2, sequence=8)
    widths = [block.feed_forward.project.weight.std() for block in model.blocks]
    assert mixture(model, 3, lambda: unlimited) is model
    kinds = [type(block.feed_forward) for block in model.blocks]
    assert kinds == [FeedForward, MoELayer, FeedForward, MoELayer, FeedForward]
    experts = model.blocks[1].feed_forward.experts
    assert not torch.equal(experts[0].expand.weight, experts[1].expand.weight)
    for expert in experts:
        assert expert.project.weight.std().item() == pytest.approx(widths[1].item(), rel=0.1)
    every = mixture(GPT(layers=2, hidden=8, heads=2), 2, lambda: unlimited, every=1)
    assert len(list(moe_layers(every))) == 2
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"every {wrong}th of 2 blocks"):
            mixture(GPT(layers=2, hidden=8, heads=2), 2, lambda: unlimited, every=wrong)


def test_the_balancing_loss_of_a_model_is_the_mean_over_its_mixtures():
    torch.manual_seed(0)
    model = mixture(GPT(layers=4, hidden=8, heads=2, sequence=8), 3, lambda: unlimited)
    model(torch.randint(256, (4, 8)))
    each = [switch_loss(m.last.probabilities, m.last.experts) for m in moe_layers(model)]
    assert balance_loss(model, switch_loss).item() == pytest.approx(sum(each).item() / 2)


def test_a_layer_without_experts_is_refused():
    with pytest.raises(ValueError, match="0 experts"):
        MoELayer(HIDDEN, 0, unlimited)
