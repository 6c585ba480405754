"""Chapter 05, the last exercise: a training loop in which everything finds its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pedagogy.exercises.chapter05_wrong_training import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register

Loss = Callable[[Tensor], Tensor]


def train_in_mixed_precision(
    losses: Sequence[Loss],
    masters: Tensor,
    lr: Callable[[int], float],
    scale: float,
    growth_interval: int,
    max_norm: float,
) -> tuple[Tensor, Tensor, list[float]]:
    """One step of SGD for each of `losses`: (weights in fp16, masters in fp32, scales).

    losses[i](weights): step i's loss in fp32, of weights in fp16; lr(updates): the learning rate
    after so many updates; scales: after each step.
    """
    weights, scales, updates, good = masters.half(), [], 0, 0
    for loss in losses:
        weights = weights.detach().requires_grad_()
        (loss(weights) * scale).backward()
        true = weights.grad.float() / scale
        if true.isfinite().all():
            true = true * min(1.0, max_norm / true.norm())
            masters = masters - lr(updates) * true
            weights = masters.half()
            updates, good = updates + 1, good + 1
            if good == growth_interval:
                scale, good = 2 * scale, 0
        else:
            scale, good = scale / 2, 0
        scales.append(scale)
    return weights, masters, scales


# --- the cases ------------------------------------------------------------------------------------


def _line(*slopes: float) -> Loss:
    """Its gradient is `slopes`, wherever the weights are."""
    return lambda weights: (weights.float() * torch.tensor(slopes)).sum()


def _bowl(*bottom: float) -> Loss:
    """Its gradient is the way from the bottom."""
    return lambda weights: ((weights.float() - torch.tensor(bottom)) ** 2).sum() / 2


_ONE, _INFINITE, _STEEP = _line(1.0), _line(float("inf")), _line(3.0, -1.0)

CASES = {
    "a gradient of 1 in each step, and an infinite one in step 1": (
        [_ONE, _INFINITE, _ONE, _ONE, _ONE],
        *(torch.zeros(1), lambda updates: 1.0, 8.0, 2, 100.0),
    ),
    "a gradient of norm 3, scale 1024, max_norm 1": (
        [_line(1.0, 2.0, 2.0)] * 2,
        *(torch.ones(3), lambda updates: 0.5, 1024.0, 100, 1.0),
    ),
    "a scale that is too large, a learning rate that falls": (
        [_STEEP] * 8,
        *(torch.zeros(2), lambda updates: 1 / (updates + 1), 65536.0, 2, 5.0),
    ),
    "a gradient that is NaN in step 1": (
        [_ONE, _line(float("nan")), _ONE],
        *(torch.zeros(1), lambda updates: 1.0, 8.0, 2, 100.0),
    ),
    "true gradients below 2^-24": (
        [_line(2.0**-26, -3 * 2.0**-27)] * 3,
        *(torch.zeros(2), lambda updates: 1.0, 65536.0, 100, 1.0),
    ),
    "updates of an eighth of a spacing": (
        [_line(2.0**-13, -(2.0**-13))] * 9,
        *(torch.tensor([1.0, -3.0]), lambda updates: 1.0, 256.0, 100, 1.0),
    ),
    "a bowl, clipped on the way": (
        [_bowl(0.3, 2.0)] * 7,
        *(torch.tensor([1.0, -1.0]), lambda updates: 0.3, 64.0, 3, 1.5),
    ),
}


def _what_came_of_it(function: Callable, losses: Sequence[Loss], masters: Tensor, *others: Any):
    given, start = [], masters.double()

    def watched(loss: Loss) -> Loss:
        def with_note(weights: Tensor) -> Tensor:
            given.append(str(weights.dtype))
            return loss(weights)

        return with_note

    answer = function([watched(loss) for loss in losses], masters, *others)
    if answer is None:
        return None
    if not (isinstance(answer, (list, tuple)) and len(answer) == 3):
        raise ValueError("wanted are three things: weights, masters, and a list of scales")
    weights, masters, scales = answer
    if isinstance(masters, Tensor) and masters.shape == start.shape:
        masters = ((masters.detach().double() - start) * 2.0**24).to(masters.dtype)
    return {
        "the scales": scales,
        "the weights": weights,
        "the way of the masters, in units of 2^-24": masters,
        "the dtypes of the weights that the losses were given": given,
    }


TRAINING = Exercise(
    name="train_in_mixed_precision",
    title="Everything in its place",
    chapter="05",
    reference=train_in_mixed_precision,
    cases=list(CASES.values()),
    labels=list(CASES),
    observe=_what_came_of_it,
    mistakes=MISTAKES,
    hints=[
        "The weights of a step: masters.half(), as a leaf of its own, weights.requires_grad_(). "
        "Then (loss(weights) * scale).backward().",
        "The true gradient: weights.grad.float() / scale. If it is finite everywhere, there is an "
        "update; if not, none, and lr's counter stands still too.",
        "Clip what is true, not what is scaled: times min(1, max_norm / norm). Never stretch.",
        "Last the scale, in both branches: halved and the counter at 0, or one more good step. "
        "Then write it down.",
    ],
)

register(TRAINING)
