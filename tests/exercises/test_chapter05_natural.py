"""Chapter 05: answers as a reader would write them meet the mistake that explains them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pedagogy.exercises import engine
from pedagogy.exercises.chapter05 import ROUND
from pedagogy.exercises.chapter05_masters import STEP
from pedagogy.exercises.chapter05_scale import SCALE
from pedagogy.exercises.chapter05_training import TRAINING


def with_log2(x):
    exponent = torch.floor(torch.log2(x.abs()))
    step = 2.0 ** (exponent - 10)
    return torch.round(x / step) * step


def with_frexp(x):
    mantissa, exponent = torch.frexp(x)
    y = torch.round(mantissa * 1024) / 1024 * 2.0**exponent
    return torch.where(y.abs() > 65504, torch.sign(y) * torch.inf, y)


def one_by_one(x):
    result = []
    for value in x.tolist():
        exponent = -14 if value == 0 else max(int(np.floor(np.log2(abs(value)))), -14)
        value = int(value / 2 ** (exponent - 10)) * 2.0 ** (exponent - 10)
        result.append(np.copysign(np.inf, value) if abs(value) > 65504 else value)
    return torch.tensor(result, dtype=torch.float64)


def through_the_back_door(x):
    return x.to(torch.float16).to(torch.float64)


def right_with_numpy(x):
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x.numpy()), 1e-300))), -14)
    y = np.round(x.numpy() / 2 ** (exponent - 10)) * 2 ** (exponent - 10)
    return torch.from_numpy(np.where(np.abs(y) >= 65520, np.copysign(np.inf, y), y))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (with_log2, "log2(0) is -inf"),
        (with_frexp, "its exponent is one less"),
        (one_by_one, "cut off"),
        (through_the_back_door, "rounds twice"),
        (right_with_numpy, "correct"),
    ],
)
def test_roundings_are_explained(answer, says):
    assert says in engine.explain(ROUND, answer)


def no_casts(weights, masters, gradients, lr, scale):
    masters = masters - lr * gradients / scale
    return masters.half(), masters


def multiplied_by_the_inverse(weights, masters, gradients, lr, scale):
    masters = masters - lr * (gradients * (1 / scale)).float()
    return masters.to(torch.float16), masters


def with_sgd(weights, masters, gradients, lr, scale):
    leaf = masters.clone().requires_grad_()
    leaf.grad = gradients.float().div_(scale)
    torch.optim.SGD([leaf], lr=lr).step()
    return leaf.detach().half(), leaf.detach()


def weights_step(weights, masters, gradients, lr, scale):
    update = lr * gradients.float() / scale
    return weights - update.half(), masters - update


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (no_casts, "while it is still in fp16"),
        (multiplied_by_the_inverse, "while it is still in fp16"),
        (with_sgd, "correct"),
        (weights_step, "The weights take the update by themselves"),
    ],
)
def test_steps_are_explained(answer, says):
    assert says in engine.explain(STEP, answer)


def counted_from_the_last_change(found_inf, scale, growth, backoff, interval):
    scales, last = [], -1
    for step, inf in enumerate(found_inf):
        if inf:
            scale, last = scale * backoff, step
        elif step - last >= interval:
            scale, last = scale * growth, step
        scales.append(scale)
    return scales, [not inf for inf in found_inf]


def late(found_inf, scale, growth, backoff, interval):
    scales, good = [], 0
    for inf in found_inf:
        if inf:
            scale, good = scale * backoff, 0
        elif good == interval:
            scale, good = scale * growth, 0
        else:
            good += 1
        scales.append(scale)
    return scales, [not inf for inf in found_inf]


def never_reset(found_inf, scale, growth, backoff, interval):
    scales, good = [], 0
    for inf in found_inf:
        if inf:
            scale *= backoff
        else:
            good += 1
            if good % interval == 0:
                scale *= growth
        scales.append(scale)
    return scales, [not inf for inf in found_inf]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (counted_from_the_last_change, "correct"),
        (late, "one step late"),
        (never_reset, "does not set the counter back"),
    ],
)
def test_searches_are_explained(answer, says):
    assert says in engine.explain(SCALE, answer)


def loop(losses, masters, lr, scale, interval, max_norm, order, skips=True, counts_steps=False):
    """A reader's loop; `order` says what is done to the gradient, in which order."""
    weights, good, updates, scales = masters.half(), 0, 0, []
    for loss in losses:
        weights.requires_grad_(True)
        weights.grad = None
        (loss(weights) * scale).backward()
        g = weights.grad.float()
        bad = not torch.isfinite(g).all()
        for what in order:
            if what == "unscale":
                g = g / scale
            elif g.norm() > max_norm:
                g = g / g.norm() * max_norm
        if not (bad and skips):
            masters = masters - lr(updates) * g
            weights = masters.half()
        updates += 1 if counts_steps or not bad else 0
        good = 0 if bad else good + 1
        if bad:
            scale = scale / 2
        elif good == interval:
            scale, good = scale * 2, 0
        scales.append(scale)
    return weights.detach(), masters, scales


def in_order(*arguments):
    return loop(*arguments, order=["unscale", "clip"])


def clip_first(*arguments):
    return loop(*arguments, order=["clip", "unscale"])


def no_skip(*arguments):
    return loop(*arguments, order=["unscale", "clip"], skips=False)


def schedule_goes_on(*arguments):
    return loop(*arguments, order=["unscale", "clip"], counts_steps=True)


def not_clipped(*arguments):
    return loop(*arguments, order=["unscale"])


def continues(losses, masters, lr, scale, interval, max_norm):
    weights, good, updates, scales = masters.half(), 0, 0, []
    for loss in losses:
        w = weights.clone().requires_grad_()
        (scale * loss(w)).backward()
        if not w.grad.isfinite().all():
            scale, good = scale / 2, 0
            continue
        g = w.grad.float() / scale
        g *= min(1, max_norm / g.norm())
        masters = masters - lr(updates) * g
        weights, updates, good = masters.half(), updates + 1, good + 1
        if good == interval:
            scale, good = 2 * scale, 0
        scales.append(scale)
    return weights, masters, scales


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (in_order, "correct"),
        (clip_first, "Clipped before it is unscaled"),
        (no_skip, "A step with an infinite gradient is taken"),
        (schedule_goes_on, "lr counts updates"),
        (not_clipped, "Nothing is clipped"),
        (continues, "leaves the loop before the scale is updated"),
    ],
)
def test_training_loops_are_explained(answer, says):
    assert says in engine.explain(TRAINING, answer)
