"""Chapter 05: a training loop of which every part can be another one, for the mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def divided(gradient: Tensor, scale: float) -> Tensor:
    """The true gradient, in fp32."""
    return gradient.float() / scale


def shortened(true: Tensor, max_norm: float, scale: float) -> Tensor:
    """The gradient, of norm max_norm at most."""
    return true * (max_norm / true.norm()).clamp(max=1.0)


def is_finite(true: Tensor, loss: Tensor) -> bool:
    """Whether the step is taken: the gradient decides, not the loss."""
    return bool(true.isfinite().all())


def on_masters(weights: Tensor, masters: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and masters after the update."""
    return (masters - update).half(), masters - update


def trained(
    losses: list[Callable],
    masters: Tensor,
    lr: Callable[[int], float],
    scale: float,
    interval: int,
    max_norm: float,
    scaled: Callable[[Tensor, float], Tensor] = lambda loss, scale: loss * scale,
    unscaled: Callable[[Tensor, float], Tensor] = divided,
    is_good: Callable[[Tensor, Tensor], bool] = is_finite,
    clipped: Callable[[Tensor, float, float], Tensor] = shortened,
    stepped: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = on_masters,
    place: Callable[[int, int], int] = lambda updates, step: updates,
    of_loss: Callable[[Tensor, Tensor], Tensor] = lambda weights, masters: weights,
    kept: Callable[[Tensor, Tensor | None], Tensor] = lambda gradient, before: gradient,
    overflows: Callable[[Tensor, Tensor], bool] = lambda true, loss: not is_finite(true, loss),
    update_scale: Callable[[float, int, bool, int], tuple] | None = None,
) -> tuple[Tensor, Tensor, list[float]]:
    """The reference's results, with the parts that are given in the place of its own."""
    update_scale = update_scale or search()
    weights, scales, updates, good, gradient = masters.half(), [], 0, 0, None
    for step, loss_of in enumerate(losses):
        leaf = of_loss(weights, masters).detach().requires_grad_()
        loss = loss_of(leaf)
        scaled(loss, scale).backward()
        gradient = kept(leaf.grad, gradient)
        true = unscaled(gradient, scale)
        is_ok = is_good(true, loss)
        if is_ok:
            update = lr(place(updates, step)) * clipped(true, max_norm, scale)
            weights, masters = stepped(weights, masters, update)
            updates += 1
        scale, good = update_scale(scale, good, overflows(true, loss), interval)
        scales.append(scale)
    return weights, masters, scales


def search(
    fall: Callable[[float], float] = lambda scale: scale / 2,
    after_inf: Callable[[int], int] = lambda good: 0,
    after_growth: Callable[[int], int] = lambda good: 0,
    is_time: Callable[[int, int], bool] = lambda good, interval: good >= interval,
) -> Callable[[float, int, bool, int], tuple[float, int]]:
    """The search for a scale: (scale, good steps, overflow, interval) to the next two."""

    def update(scale: float, good: int, inf: bool, interval: int) -> tuple[float, int]:
        if inf:
            return fall(scale), after_inf(good)
        if is_time(good + 1, interval):
            return 2 * scale, after_growth(good + 1)
        return scale, good + 1

    return update


# --- parts that are wrong ---------------------------------------------------------------------


def clipped_in_fp16(true: Tensor, max_norm: float) -> Tensor:
    """The gradient, shortened by torch in the .grad of a weight in fp16."""
    leaf = torch.zeros_like(true, dtype=torch.float16)
    leaf.grad = true.half()
    nn.utils.clip_grad_norm_([leaf], max_norm)
    return leaf.grad.float()


def accumulated(gradient: Tensor, before: Tensor | None) -> Tensor:
    """What .grad holds where nobody clears it."""
    return gradient if before is None else gradient + before


def kept_after_a_skip(gradient: Tensor, before: Tensor | None) -> Tensor:
    """What .grad holds where weights become a new leaf after an update, but not after a skip."""
    is_new = before is None or before.isfinite().all()
    return gradient if is_new else gradient + before


def decides(is_good: Callable[[Tensor, Tensor], Any]) -> dict[str, Callable]:
    """The parts of a loop in which `is_good` decides on the update, and on the scale."""
    return {
        "is_good": lambda true, loss: bool(is_good(true, loss)),
        "overflows": lambda true, loss: not is_good(true, loss),
    }
