"""Chapter 05: the references are what torch, numpy and the package compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pedagogy.exercises import engine, prediction
from pedagogy.exercises.chapter05 import ROUND, round_to_fp16
from pedagogy.exercises.chapter05_limits import SWALLOWED
from pedagogy.exercises.chapter05_masters import STEP, step_with_master_weights
from pedagogy.exercises.chapter05_predictions import CLIPPED, TRACE
from pedagogy.exercises.chapter05_scale import SCALE, dynamic_scale
from pedagogy.exercises.chapter05_training import CASES, TRAINING, train_in_mixed_precision
from pedagogy.precision import (
    FORMATS,
    DynamicLossScaler,
    MasterWeights,
    StaticLossScaler,
    round_to,
)


def test_rounding_is_numpy_s_and_the_package_s():
    draw = torch.Generator().manual_seed(0)
    spread = torch.randn(4000, generator=draw, dtype=torch.float64)
    spread = spread * 2.0 ** torch.randint(-30, 18, (4000,), generator=draw)
    for x in (*(case[0] for case in ROUND.cases), spread):
        with np.errstate(over="ignore"):
            once = torch.from_numpy(x.numpy().astype(np.float16).astype(np.float64))
        assert torch.equal(round_to_fp16(x), once)
        assert torch.equal(round_to_fp16(x), round_to(x, FORMATS["fp16"]))


def test_C37_small_gradients_underflow_and_scaled_ones_do_not():
    x = torch.tensor([1e-8, 2.9e-8, 3e-8, 65536 * 1e-8], dtype=torch.float64)
    assert round_to_fp16(x)[:3].tolist() == [0, 0, 2.0**-24]
    assert round_to_fp16(x)[3].item() == pytest.approx(6.55e-4, abs=1e-6)


def test_a_step_is_the_one_of_master_weights_and_a_loss_scaler():
    for weights, masters, gradients, lr, scale in STEP.cases:
        leaf = masters.clone().requires_grad_()
        optimizer = MasterWeights(torch.optim.SGD([leaf], lr=lr), torch.float16)
        assert torch.equal(leaf, weights)
        leaf.grad = gradients.clone()
        StaticLossScaler(scale).step(optimizer)
        new_weights, new_masters = step_with_master_weights(weights, masters, gradients, lr, scale)
        assert torch.equal(new_weights, leaf.detach())
        assert torch.equal(new_masters, optimizer.pairs[0][1].detach())


def trace_of_torch(found_inf, init_scale, growth, backoff, interval):
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale, growth, backoff, interval)
    scales, stepped = [], []
    for inf in found_inf:
        scaler.scale(torch.ones(1))
        weight.grad, before = torch.tensor([float("inf") if inf else 1.0]), weight.item()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        stepped.append(weight.item() != before)
    return scales, stepped


def test_a_scale_is_searched_as_torch_does():
    for case in SCALE.cases:
        assert dynamic_scale(*case) == trace_of_torch(*case)


def test_C30_halved_once_doubled_once_and_four_steps():
    scales, stepped = dynamic_scale([False, True, False, False, False], 8.0, 2.0, 0.5, 2)
    assert scales == [8, 4, 4, 8, 8]
    assert sum(stepped) == 4
    weights, masters, scales = train_in_mixed_precision(*next(iter(CASES.values())))
    assert (weights.item(), masters.item(), scales) == (-4, -4, [8, 4, 4, 8, 8])
    assert prediction.judge(TRACE, [8, 4, 4, 8, 8]).startswith("correct")


def test_C31_a_norm_of_3_is_clipped_to_1():
    (label,) = (label for label in CASES if "norm 3" in label)
    losses, start, lr, *_ = CASES[label]
    _, masters, _ = train_in_mixed_precision(*CASES[label])
    way = (start - masters) / lr(0) / len(losses)
    torch.testing.assert_close(way.norm(), torch.tensor(1.0), atol=1e-5, rtol=0)
    assert prediction.judge(CLIPPED, 1 / 1024).startswith("correct")
    assert "right order" in prediction.judge(CLIPPED, 1)


def test_C36_bf16_stays_at_1_and_the_master_comes_to_a_rounded_0_9():
    assert prediction.judge(SWALLOWED, 1.0).startswith("correct")
    assert "master weights" in prediction.judge(SWALLOWED, 0.8984375)


def with_the_package(losses, masters, lr, scale, growth_interval, max_norm):
    weights, scales = masters.clone().requires_grad_(), []
    inner = torch.optim.SGD([weights], lr=1.0)
    optimizer = MasterWeights(inner, torch.float16)
    schedule = torch.optim.lr_scheduler.LambdaLR(inner, lr)
    scaler = DynamicLossScaler(scale, growth_interval=growth_interval)
    for loss in losses:
        scaler.scale(loss(weights)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([optimizer.pairs[0][1]], max_norm)
        if scaler.step(optimizer):
            schedule.step()
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return weights.detach(), optimizer.pairs[0][1].detach(), scales


def test_the_training_loop_of_the_package_is_accepted():
    assert engine.explain(TRAINING, with_the_package).startswith(engine.CORRECT)
