"""Each scheme beside a loop by hand: what it removes is removed, and nothing else changes."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.precision import SCHEMES, train_scheme
from pedagogy.precision.schemes import Fp16AccumulatedLinear, RoundedWeights, accumulate_in_fp16
from pedagogy.workloads import GPT, MLP, digits_batch

STEPS, LR = 4, 0.25
HALVES = [torch.float16, torch.bfloat16]


def model():
    """An MLP of odd sizes, the same every time."""
    torch.manual_seed(0)
    return MLP((64, 13, 10))


def batch(step):
    """24 digits."""
    return digits_batch(24, step=step)


def run(scheme, **how):
    """Loss by step, and the final weights."""
    trained = model()
    seen = train_scheme(scheme, trained, batch, STEPS, lambda p: torch.optim.SGD(p, LR), **how)
    return seen, [p.detach() for p in trained.parameters()]


def by_hand(dtype, scale=1.0, keep=True, net=None, loss=functional.cross_entropy):
    """SGD written out: fp32 copies, weights rounded from them, gradients divided by the scale.

    Returns losses, weights, and of how many updates how many were rounded away.
    """
    net = net or model()
    masters = [p.detach().clone() for p in net.parameters()]
    net.to(dtype)
    losses, lost, updates = [], 0, 0
    for step in range(STEPS):
        images, labels = batch(step)
        error = loss(net(images.to(dtype)).float(), labels)
        weights = list(net.parameters())
        gradients = torch.autograd.grad(error * scale, weights)
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            start = masters[i] if keep else weight.detach().float()
            masters[i] = start - LR * (gradient.float() / scale)
            moved = masters[i] != start
            updates += int(moved.sum())
            lost += int((moved & (masters[i].to(dtype) == weight)).sum())
            weight.data = masters[i].to(dtype)
        losses.append(error.detach())
    return torch.stack(losses), [p.detach() for p in net.parameters()], lost / updates


def assert_equal(found, losses, weights):
    """Bit for bit."""
    seen, trained = found
    assert torch.equal(seen.losses, losses)
    assert [p.dtype for p in trained] == [p.dtype for p in weights]
    assert all(map(torch.equal, trained, weights))


def test_fp32_is_the_plain_loop():
    trained, losses = model(), []
    optimizer = torch.optim.SGD(trained.parameters(), LR)
    for step in range(STEPS):
        images, labels = batch(step)
        loss = functional.cross_entropy(trained(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    found = run("fp32")
    assert_equal(found, torch.stack(losses), [p.detach() for p in trained.parameters()])
    assert found[0].scales.tolist() == [1] * STEPS
    assert math.isnan(found[0].lost_share)


def test_fp16_has_master_weights_and_a_loss_scale():
    found = run("fp16")
    assert_equal(found, *by_hand(torch.float16, 65536.0)[:2])
    assert found[0].scales.tolist() == [65536] * STEPS
    assert found[0].num_skipped == 0
    assert math.isnan(found[0].lost_share)


def test_bf16_needs_no_loss_scale():
    found = run("fp16", dtype=torch.bfloat16)
    assert_equal(found, *by_hand(torch.bfloat16)[:2])
    assert found[0].scales.tolist() == [1] * STEPS


def test_without_loss_scaling_the_master_weights_stay():
    found = run("no loss scaling")
    assert_equal(found, *by_hand(torch.float16)[:2])
    assert found[0].scales.tolist() == [1] * STEPS


@pytest.mark.parametrize("dtype", HALVES)
def test_without_master_weights_the_loss_scale_stays_and_lost_updates_are_counted(dtype):
    found = run("no master weights", dtype=dtype)
    scale = 65536.0 if dtype == torch.float16 else 1.0
    losses, weights, lost = by_hand(dtype, scale, keep=False)
    assert_equal(found, losses, weights)
    assert found[0].scales.tolist() == [scale] * STEPS
    assert found[0].lost_share == lost > 0


def test_without_fp32_accumulation_the_other_two_stay():
    found = run("no fp32 accumulation")
    own = accumulate_in_fp16(model())
    assert_equal(found, *by_hand(torch.float16, 65536.0, net=own)[:2])
    assert not torch.equal(found[0].losses, run("fp16")[0].losses)
    assert [type(layer) for layer in own.layers[::2]] == [Fp16AccumulatedLinear] * 2


def small(outputs, targets):
    """A loss of which every gradient is far below 2^-24."""
    return functional.cross_entropy(outputs, targets) * 2.0**-24


def test_gradients_below_fp16_are_zero_without_loss_scaling_and_arrive_with_it():
    lost = run("no loss scaling", loss=small)
    assert lost[0].zero_share > 0.99
    kept = run("fp16", loss=small)
    assert kept[0].zero_share < 0.5
    assert_equal(kept, *by_hand(torch.float16, 65536.0, loss=small)[:2])


def test_a_step_whose_gradient_overflows_is_skipped_and_counted():
    trained = model()
    found = train_scheme(
        "fp16",
        trained,
        batch,
        STEPS,
        lambda p: torch.optim.SGD(p, 1e-3),
        loss=lambda y, t: functional.cross_entropy(y, t) * 16,
    )
    assert 1 <= found.num_skipped < STEPS
    assert found.scales.tolist() == [65536 / 2 ** min(i, found.num_skipped) for i in range(STEPS)]
    assert all(p.isfinite().all() for p in trained.parameters())
    start = [p.half() for p in model().parameters()]
    assert not any(map(torch.equal, start, trained.parameters()))


def test_every_scheme_trains_a_gpt_with_tied_and_frozen_weights_and_buffers():
    ids = torch.arange(12).view(2, 6)
    for scheme in SCHEMES:
        torch.manual_seed(0)
        gpt = GPT(vocabulary=12, layers=1, hidden=8, heads=2, sequence=6)
        gpt.position.weight.requires_grad_(False)
        seen = train_scheme(
            scheme, gpt, lambda _: (ids, ids), 5, lambda p: torch.optim.AdamW(p, 0.03)
        )
        assert gpt.head.weight is gpt.token.weight
        assert seen.losses.dtype == torch.float32
        assert seen.losses[-1] < seen.losses[0] - 0.3
        expected = torch.float32 if scheme == "fp32" else torch.float16
        assert {p.dtype for p in gpt.parameters()} == {expected}


def test_a_convnets_buffers_and_inputs_have_the_dtype_of_its_weights():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    train_scheme("fp16", net, batch, 1, lambda p: torch.optim.SGD(p, LR))
    assert net[2].running_mean.dtype == torch.float16
    assert net[2].num_batches_tracked.item() == 1


def test_updates_that_are_zero_are_not_counted_as_lost():
    weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2), requires_grad=False)]
    optimizer = RoundedWeights(torch.optim.SGD(weights, lr=1.0), torch.float16)
    weights[0].grad = torch.tensor([0.0, 2.0**-12, 0.5]).half()
    optimizer.step()
    assert (optimizer.lost, optimizer.updates) == (1, 2)
    assert weights[0].tolist() == [1, 1, 0.5]


def test_other_schemes_no_steps_and_sums_of_another_dtype_are_refused():
    with pytest.raises(ValueError, match=r"scheme 'fp8', 4 steps: choose one of \('fp32'"):
        run("fp8")
    with pytest.raises(ValueError, match=r"0 steps: .* 1 step or more"):
        train_scheme("fp32", model(), batch, 0, lambda p: torch.optim.SGD(p, LR))
    with pytest.raises(ValueError, match=r"in torch.bfloat16: its sums are in torch.float16"):
        run("no fp32 accumulation", dtype=torch.bfloat16)
