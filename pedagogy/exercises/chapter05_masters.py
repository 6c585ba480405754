"""Chapter 05: one step on master weights, in which each cast has its place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def step_with_master_weights(
    weights: Tensor, masters: Tensor, gradients: Tensor, lr: float, scale: float
) -> tuple[Tensor, Tensor]:
    """One step of SGD on the masters: (weights in fp16, masters in fp32), both new.

    `weights` and `gradients` (n,) are fp16, `masters` (n,) fp32; the gradients are `scale` times as
    large as they truly are.
    """
    true = gradients.float() / scale  # in fp16 it would underflow right here
    masters = masters - lr * true
    return masters.half(), masters


# --- mistakes -------------------------------------------------------------------------------------


def _from_masters(update: Callable[[Tensor, float, float], Tensor]) -> Callable:
    """The masters change by another update(gradients, lr, scale)."""

    def wrong(weights, masters, gradients, lr, scale):
        masters = (masters - update(gradients, lr, scale)).float()
        return masters.half(), masters

    return wrong


def _returned(pair: Callable[[Tensor, Tensor, Tensor, Tensor], tuple]) -> Callable:
    """pair(weights before, masters before, weights, masters) is returned."""

    def wrong(weights, masters, *others):
        return pair(weights, masters, *step_with_master_weights(weights, masters, *others))

    return wrong


def _in_fp16(weights, masters, gradients, lr, scale):
    weights = weights - lr * (gradients.float() / scale).half()
    return weights, weights.float()


def _weights_apart(weights, masters, gradients, lr, scale):
    true = gradients.float() / scale
    return (weights.float() - lr * true).half(), masters - lr * true


def _weights_apart_in_fp16(weights, masters, gradients, lr, scale):
    true = gradients.float() / scale
    return weights - lr * true.half(), masters - lr * true


def _weights_apart_in_fp32(weights, masters, gradients, lr, scale):
    update = lr * (gradients.float() / scale)
    return weights - update, masters - update


def _from_weights(weights, masters, gradients, lr, scale):
    masters = weights.float() - lr * gradients.float() / scale
    return masters.half(), masters


def _in_place(weights, masters, gradients, lr, scale):
    masters -= lr * gradients.float() / scale
    return weights.copy_(masters), masters


def _masters_in_place(weights, masters, gradients, lr, scale):
    masters -= lr * gradients.float() / scale
    return masters.half(), masters


_UNDERFLOW = (
    "The gradient is divided by the scale, or multiplied by lr, while it is still in fp16: what "
    "the scale had saved underflows again. First gradients.float(), then the rest."
)
_APART = (
    "The masters are right. The weights take the update by themselves, from their own rounded "
    "values, where it may be lost; they are the new masters, rounded."
)
_IN_PLACE = "The numbers may be right, but the arguments are changed: return new tensors."
_FP16_UPDATES = [
    lambda g, lr, scale: lr * (g / scale),
    lambda g, lr, scale: lr * g / scale,
    lambda g, lr, scale: lr * (g / scale).float(),
    lambda g, lr, scale: (lr * g).float() / scale,
    lambda g, lr, scale: g * (lr / scale),
]

MISTAKES = [
    *((_from_masters(update), _UNDERFLOW) for update in _FP16_UPDATES),
    (
        _in_fp16,
        "The update is made in fp16, on the weights: what is below half a spacing is lost. The "
        "masters take it, in fp32, and the weights are rounded from them.",
    ),
    *((wrong, _APART) for wrong in (_weights_apart, _weights_apart_in_fp16)),
    (_weights_apart_in_fp32, f"{_APART} And they end in fp32."),
    (
        _from_weights,
        "The step starts at the rounded weights, so what the masters had gathered is lost: start "
        "at the masters.",
    ),
    (
        _returned(lambda w, m, weights, masters: (weights, weights.float())),
        "The weights are right. The masters that are returned were rounded to fp16 on the way: "
        "round only the weights.",
    ),
    (
        _returned(lambda w, m, weights, masters: (weights, weights)),
        "The masters are returned in fp16; they stay fp32, that is what they are for.",
    ),
    (
        _returned(lambda w, m, weights, masters: (masters, masters)),
        "The weights are returned in fp32: they are the new masters, rounded to fp16.",
    ),
    (
        _returned(lambda w, m, weights, masters: (w, masters)),
        "The masters are right. The weights are the old ones: they are rounded anew from the "
        "masters after each step.",
    ),
    (
        _returned(lambda w, m, weights, masters: (weights, m)),
        "The weights are right, but the masters are the old ones: the next step would start again "
        "from them.",
    ),
    (
        _returned(lambda w, m, weights, masters: (masters, weights)),
        "The two are returned in the wrong order: weights, then masters.",
    ),
    (
        _returned(lambda w, m, weights, masters: (masters.bfloat16(), masters)),
        "The masters are right. The weights are in bf16, and fp16 was wanted.",
    ),
    (
        _from_masters(lambda g, lr, scale: lr * g.float()),
        "The gradients are still multiplied by the scale: divide by it.",
    ),
    (
        _from_masters(lambda g, lr, scale: lr * g),
        "The gradients are still multiplied by the scale, and by lr in fp16: first "
        "gradients.float(), then divide by the scale.",
    ),
    (
        _from_masters(lambda g, lr, scale: lr * g.float() / scale / scale),
        "Divided by the scale twice.",
    ),
    (
        _from_masters(lambda g, lr, scale: lr * g.float() * scale),
        "Multiplied by the scale once more: it is there already, so divide by it.",
    ),
    (_from_masters(lambda g, lr, scale: g.float() / scale), "lr is missing."),
    (
        _from_masters(lambda g, lr, scale: -lr * g.float() / scale),
        "Wrong sign: SGD goes against the gradient.",
    ),
    (_in_place, _IN_PLACE),
    (_masters_in_place, _IN_PLACE),
]


# --- the cases: all numbers are short in binary, so that any right order of operations is exact ---


def _case(masters: list[float], gradients: list[float], lr: float, scale: float) -> tuple:
    wide = torch.tensor(masters)
    return wide.half(), wide, torch.tensor(gradients).half(), lr, scale


STEP = Exercise(
    name="step_with_master_weights",
    title="A small step is not lost",
    chapter="05",
    reference=step_with_master_weights,
    cases=[
        _case([0.5, -1.25, 2.0], [64.0, -32.0, 256.0], 0.5, 1024.0),
        _case([1 - 2**-13, 1.0, -3.0], [2.0**-3, 2.0**-3, -(2.0**-1)], 0.25, 128.0),
        _case([0.0, 2.0**-20, 0.0], [2.0**-10, -3 * 2.0**-9, 3 * 2.0**-24], 0.5, 65536.0),
        _case([0.0, 0.0], [2.0**-24, 5 * 2.0**-24], 0.5, 4.0),
    ],
    labels=[
        "updates that fp16 holds too",
        "updates of half a spacing of the weights, or less",
        "true gradients that are smaller than fp16 has them",
        "scaled gradients near the smallest number",
    ],
    mistakes=MISTAKES,
    tolerance=0.0,
    hints=[
        "The gradients first become fp32, gradients.float(), and only then are divided by the "
        "scale.",
        "The masters take the update. The new weights are nothing but the new masters, .half().",
    ],
)

register(STEP)
