"""Master weights: the fp32 optimizer's numbers, rounded once a step; nothing lost, nothing kept."""

import io

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from pedagogy.precision import FORMATS, MasterWeights, round_to
from pedagogy.precision.schemes import RoundedWeights
from tests.equality import Awkward, adamw, float_batch, momentum

HALVES = [torch.float16, torch.bfloat16]


def one_weight(value=1.0):
    """A parameter of one number."""
    return nn.Parameter(torch.tensor(value))


def step_with(optimizer, weight, gradient):
    """One update with a given gradient."""
    weight.grad = torch.tensor(gradient, dtype=weight.dtype)
    optimizer.step()
    optimizer.zero_grad()


def two_groups(model):
    """Groups with other learning rates, a frozen and an unused layer among them."""
    first = [*model.enter.parameters(), *model.frozen.parameters(), *model.unused.parameters()]
    rest = [p for p in model.parameters() if all(p is not other for other in first)]
    return adamw([{"params": first, "lr": 0.05}, {"params": rest}])


def train(model, optimizer, steps, clip=None, scheduler=None, first=0):
    """Plain steps on random data; `clip` gets the parameters that the optimizer updates."""
    dtype = model.enter.weight.dtype
    for step in range(first, first + steps):
        inputs, targets = float_batch(step)
        functional.cross_entropy(model(inputs.to(dtype)).float(), targets).backward()
        if clip:
            clip(optimizer)
        optimizer.step()
        if scheduler:
            scheduler.step()
        optimizer.zero_grad()


def awkward(make_optimizer=momentum, dtype=None):
    """The model, and its optimizer, wrapped if there is a dtype."""
    torch.manual_seed(3)
    model = Awkward()
    optimizer = make_optimizer(model if make_optimizer is two_groups else model.parameters())
    return model, MasterWeights(optimizer, dtype) if dtype else optimizer


def clip_norm(optimizer):
    """Of the gradients as the optimizer will see them."""
    if isinstance(optimizer, MasterWeights):
        optimizer.take_gradients()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    assert nn.utils.clip_grad_norm_(parameters, 0.1) > 0.1


def same(model, other):
    """Bit for bit."""
    return all(map(torch.equal, model.parameters(), other.parameters()))


@pytest.mark.parametrize("make_optimizer", [momentum, adamw, two_groups])
@pytest.mark.parametrize("clip", [None, clip_norm])
def test_in_fp32_they_are_the_optimizer_bit_for_bit(make_optimizer, clip):
    plain, wrapped = awkward(make_optimizer), awkward(make_optimizer, torch.float32)
    for model, optimizer in (plain, wrapped):
        inner = getattr(optimizer, "optimizer", optimizer)
        halving = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
        train(model, optimizer, 4, clip, halving)
    assert same(plain[0], wrapped[0])
    assert wrapped[1].param_groups[0]["lr"] == plain[1].param_groups[0]["lr"]
    assert not same(plain[0], awkward()[0])


@pytest.mark.parametrize("dtype", HALVES)
def test_after_each_step_the_weights_are_the_rounded_masters_of_a_loop_by_hand(dtype):
    model, optimizer = awkward(adamw, dtype)
    masters = [p.detach().clone() for p in awkward()[0].parameters()]
    by_hand = adamw(masters)
    for step in range(4):
        inputs, targets = float_batch(step)
        functional.cross_entropy(model(inputs.to(dtype)).float(), targets).backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            assert p.dtype == dtype
            assert p.grad is None or p.grad.dtype == dtype
            master.grad = None if p.grad is None else p.grad.float()
        by_hand.step()
        optimizer.step()
        optimizer.zero_grad()
        for master, (weight, own), p in zip(
            masters, optimizer.pairs, model.parameters(), strict=True
        ):
            assert weight is p
            assert torch.equal(own, master)
            assert torch.equal(p, master.to(dtype))
    assert model.middle.weight is model.again.weight
    assert all(state["exp_avg"].dtype == torch.float32 for state in optimizer.state.values())


def test_C36_bf16_weights_swallow_small_updates_and_master_weights_keep_them():
    stored = nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16))
    plain = torch.optim.SGD([stored], lr=0.001)
    rounded, kept = one_weight(), one_weight()
    forgetting = RoundedWeights(torch.optim.SGD([rounded], lr=0.001), torch.bfloat16)
    keeping = MasterWeights(torch.optim.SGD([kept], lr=0.001), torch.bfloat16)
    for _ in range(100):
        for optimizer, weight in ((plain, stored), (forgetting, rounded), (keeping, kept)):
            step_with(optimizer, weight, 1.0)
    assert stored.item() == rounded.item() == 1.0
    assert (forgetting.lost, forgetting.updates) == (100, 100)
    assert keeping.pairs[0][1].item() == pytest.approx(0.9, abs=1e-5)
    assert kept.item() == 0.8984375


def test_C36_weight_decay_of_1e_5_disappears_in_bf16():
    stored = nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16))
    kept = one_weight()
    plain = torch.optim.SGD([stored], lr=0.1, weight_decay=1e-4)
    keeping = MasterWeights(torch.optim.SGD([kept], lr=0.1, weight_decay=1e-4), torch.bfloat16)
    for _ in range(300):
        step_with(plain, stored, 0.0)
        step_with(keeping, kept, 0.0)
    assert stored.item() == 1.0
    assert keeping.pairs[0][1].item() == pytest.approx((1 - 1e-5) ** 300, rel=1e-6)
    assert kept.item() == 1 - 2**-8  # the master has passed the boundary


def test_C36_below_1_the_boundary_of_bf16_is_a_tie_that_goes_to_1():
    boundary = 0.998046875
    assert torch.tensor(boundary).bfloat16().item() == 1.0
    assert torch.tensor(boundary - 2**-24).bfloat16().item() == 1 - 2**-8


def test_an_update_is_lost_in_two_ways_in_fp16_and_in_neither_with_master_weights():
    underflows, swamped = one_weight(2.0**-20), one_weight(1.0)
    optimizer = MasterWeights(torch.optim.SGD([underflows, swamped], lr=2.0**-16), torch.float16)
    assert torch.tensor(2.0**-16).half() * torch.tensor(2.0**-10).half() == 0
    assert 1 - torch.tensor(2.0**-12).half() == 1
    for _ in range(64):
        underflows.grad = torch.tensor(2.0**-10, dtype=torch.float16)
        swamped.grad = torch.tensor(2.0**4, dtype=torch.float16)
        optimizer.step()
    assert underflows.item() == 2.0**-20 - 64 * 2.0**-26
    assert swamped.item() == 1 - 64 * 2.0**-12


@given(st.integers(1024, 2047), st.floats(1024, 8192), st.sampled_from([1, -1]))
@example(1536, 2048.0, 1)  # 1.5 x 2^10 and a 2,048th of it: not lost
@example(1024, 2048.0, 1)  # 2^10 and a 2,048th of it: lost
@example(1024, 2048.0, -1)  # below 2^10 numbers are twice as dense: not lost
@settings(max_examples=200, deadline=None)
def test_an_update_may_be_lost_from_a_2048th_of_the_weight_on_and_is_from_a_4096th_on(
    w, ratio, sign
):
    weight = torch.tensor(float(w), dtype=torch.float64)
    lost = round_to(weight + sign * weight / ratio, FORMATS["fp16"]) == weight
    assert lost or ratio < 4096
    assert not lost or ratio >= 2048
    if ratio == 2048:
        assert lost == (w == 1024 and sign == 1)


@pytest.mark.parametrize("clear", ["of the optimizer", "of the model"])
def test_a_steps_gradients_do_not_come_back_whoever_clears_them(clear):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = MasterWeights(torch.optim.SGD(layer.parameters(), lr=1 / 16), torch.float16)
    for _ in range(3):
        (optimizer if clear == "of the optimizer" else layer).zero_grad()
        layer(torch.ones(1, 1, dtype=torch.float16)).sum().backward()
        optimizer.step()
        assert [tensor.grad for pair in optimizer.pairs for tensor in pair] == [None, None]
    assert layer.weight.item() == 1 - 3 / 16


def test_two_backwards_before_a_step_add_up_and_taken_between_they_add_up_in_fp32():
    for between, total in ((lambda o: None, 2048.0), (MasterWeights.take_gradients, 2049.0)):
        weight = one_weight(0.0)
        optimizer = MasterWeights(torch.optim.SGD([weight], lr=1.0), torch.float16)
        for gradient in (2048.0, 1.0):
            (weight * gradient).backward()  # the second adds to what is there
            between(optimizer)
        optimizer.step()
        assert optimizer.pairs[0][1].item() == -total


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_the_gradients_of_both(set_to_none):
    weight = one_weight()
    optimizer = MasterWeights(torch.optim.SGD([weight], lr=1.0), torch.float16)
    for take in (True, False):
        weight.grad = torch.tensor(3.0, dtype=torch.float16)
        if take:
            optimizer.take_gradients()
    optimizer.zero_grad(set_to_none)
    optimizer.step()
    assert weight.item() == 1.0


def test_a_saved_state_goes_on_as_if_nothing_had_happened():
    model, optimizer = awkward(adamw, torch.bfloat16)
    train(model, optimizer, 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    train(model, optimizer, 2, first=2)
    file.seek(0)
    torch.manual_seed(99)
    other = Awkward()
    resumed = MasterWeights(adamw(other.parameters()), torch.bfloat16)
    resumed.load_state_dict(torch.load(file))
    train(other, resumed, 2, first=2)
    assert same(model, other)
    for (_, master), (_, again) in zip(optimizer.pairs, resumed.pairs, strict=True):
        assert torch.equal(master, again)


def test_what_cannot_be_wrapped_or_loaded_is_refused():
    weight = one_weight()
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    with pytest.raises(ValueError, match=r"torch.int8: must be a floating-point dtype"):
        MasterWeights(optimizer, torch.int8)
    step_with(optimizer, weight, 1.0)
    with pytest.raises(ValueError, match="has a state for 1 parameters: wrap it before"):
        MasterWeights(optimizer, torch.float16)
    wrapped = MasterWeights(torch.optim.SGD([one_weight()], lr=1.0), torch.float16)
    with pytest.raises(ValueError, match="takes no closure"):
        wrapped.step(lambda: 0.0)
    two = MasterWeights(torch.optim.SGD([one_weight(), one_weight()], lr=1.0), torch.float16)
    with pytest.raises(ValueError, match="2 master weights saved, 1 are here"):
        wrapped.load_state_dict(two.state_dict())
    wide = MasterWeights(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=1.0), torch.float16)
    with pytest.raises(ValueError, match=r"shape \(\) saved, \(3,\) is here"):
        wide.load_state_dict(wrapped.state_dict())
