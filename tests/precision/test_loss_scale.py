"""Loss scaling: what is skipped, what is refused, and in which order things are done."""

import math
import warnings

import pytest
import torch
from torch import nn

from pedagogy.accumulation import accumulate
from pedagogy.precision import DynamicLossScaler, MasterWeights, StaticLossScaler

INF, NAN = math.inf, math.nan


def parameter(value=0.0, dtype=torch.float32):
    """One number to train."""
    return nn.Parameter(torch.tensor(value, dtype=dtype))


def test_a_constant_scale_refuses_a_second_step_or_unscale_before_update():
    weight = parameter()
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), StaticLossScaler(8)
    for _ in range(2):
        scaler.scale(weight * 1.0).backward()
        assert scaler.step(optimizer)
        for again in (scaler.step, scaler.unscale_):
            with pytest.raises(RuntimeError, match="was called already"):
                again(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert weight.item() == -2


def test_a_constant_scale_skips_nothing():
    weight = parameter()
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), StaticLossScaler(2.0**10)
    scaler.scale(weight * INF).backward()
    assert scaler.step(optimizer)
    assert weight.item() == -INF


@pytest.mark.parametrize(
    ("gradients", "scales", "steps"),
    [([1, INF, 1, 1, 1], [8, 4, 4, 8, 8], 4), ([NAN, 1, 1, 1], [4, 4, 8, 8], 3)],
)
def test_C30_a_skipped_step_advances_neither_weights_nor_schedule(gradients, scales, steps):
    weight = parameter()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler = DynamicLossScaler(init_scale=8, growth_interval=2)
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for gradient in gradients:
            scaler.scale(weight * gradient).backward()
            if scaler.step(optimizer):
                schedule.step()
            scaler.update()
            optimizer.zero_grad()
            seen.append(scaler.get_scale())
    assert seen == scales
    assert (weight.item(), schedule.last_epoch) == (-steps, steps)


@pytest.mark.parametrize("scaler", [StaticLossScaler(1024), DynamicLossScaler(1024)])
def test_C31_unscale_then_clip_gives_norm_1_and_clip_then_unscale_a_1024th(scaler):
    norms = []
    for before in (True, False):
        weight = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler.scale(weight @ torch.tensor([1.8, 2.4])).backward()  # norm 3
        if before:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([weight], 1.0)
        scaler.step(optimizer)
        scaler.update()
        norms.append(weight.norm().item())
    assert norms == pytest.approx([1.0, 1 / 1024], rel=1e-5)


def test_C32_a_step_skipped_for_its_norm_still_ends_in_update_and_a_window_is_unscaled_once():
    weight, applied = parameter(), 0
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), DynamicLossScaler(16, growth_interval=3)
    for size in (1.0, 100.0, 1.0):
        for microbatch in (0.25, 0.75):
            scaler.scale(weight * size * microbatch).backward()
        scaler.unscale_(optimizer)
        if nn.utils.clip_grad_norm_([weight], 1e9) < 10:
            applied += scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert (applied, weight.item(), scaler.get_scale()) == (2, -2, 32)


def test_C33_gradients_in_fp16_are_not_unscaled_but_those_of_master_weights_are():
    wide, half = parameter(), parameter(dtype=torch.float16)
    wide.grad, half.grad = torch.tensor(8.0), torch.tensor(8.0, dtype=torch.float16)
    plain = torch.optim.SGD([wide, half], lr=1.0)
    theirs = torch.amp.GradScaler("cpu")
    theirs.scale(wide)
    with pytest.raises(ValueError, match="FP16"):
        theirs.unscale_(plain)
    for scaler in (StaticLossScaler(8), DynamicLossScaler(8)):
        with pytest.raises(ValueError, match=r"fp16 cannot be unscaled.*MasterWeights"):
            scaler.unscale_(plain)
    assert wide.grad.item() == 8  # nothing was done to the others
    kept = MasterWeights(torch.optim.SGD([half], lr=1.0), torch.float16)
    half.grad = torch.tensor(2.0**-24, dtype=torch.float16)
    scaler = DynamicLossScaler(2.0**16)
    scaler.unscale_(kept)
    assert kept.pairs[0][1].grad.item() == 2.0**-40  # which fp16 cannot hold
    assert scaler.step(kept)
    assert kept.pairs[0][1].item() == -(2.0**-40)


def test_an_infinite_gradient_is_gone_after_the_skip_whoever_clears_the_others():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = MasterWeights(torch.optim.SGD(layer.parameters(), lr=1 / 16), torch.float16)
    scaler, seen = DynamicLossScaler(8), []
    for gradient in (1.0, INF, 1.0, 1.0):
        layer.zero_grad()  # of the model: master weights are not its parameters
        scaler.scale((layer.weight.float() * gradient).sum()).backward()
        seen.append(scaler.step(optimizer))
        scaler.update()
    assert seen == [True, False, True, True]
    assert layer.weight.item() == 1 - 3 / 16


def test_C08_a_micro_batch_without_labels_does_not_trip_the_scaler():
    weight = nn.Parameter(torch.zeros(()))
    holder = nn.ParameterList([weight])
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), DynamicLossScaler()
    parts = [torch.ones(3), torch.ones(0)]
    accumulate(holder, parts, lambda m, x: scaler.scale((m[0] * x).sum()), len)
    assert scaler.step(optimizer)
    assert weight.item() == -1


def test_a_saved_state_goes_on_with_scale_and_count():
    def run(scaler, steps):
        weight = parameter()
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for _ in range(steps):
            weight.grad = torch.tensor(1.0)
            scaler.step(optimizer)
            scaler.update()
        return scaler

    saved = run(DynamicLossScaler(8, growth_interval=3), 5).state_dict()
    resumed = DynamicLossScaler(growth_interval=3)
    resumed.load_state_dict(saved)
    assert run(resumed, 1).get_scale() == 32


def test_scales_and_factors_that_cannot_work_are_refused():
    for scale in (0, -1.0, INF, NAN):
        with pytest.raises(ValueError, match="must be positive and finite"):
            StaticLossScaler(scale)
    for wrong in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_interval": 0}):
        with pytest.raises(ValueError, match=r"\(must be above 1\).*\(1 or more\)"):
            DynamicLossScaler(**wrong)
