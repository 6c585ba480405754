"""Chapter 10: one step of Adafactor: fade, estimate, clip, scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pedagogy.exercises.chapter10 import drawn
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def adafactor_step(
    weight: Tensor, gradient: Tensor, state: dict, group: dict[str, Any], step: int
) -> Tensor:
    """The weight after step number `step` (1, 2, ...); state is written, group is not."""
    square, kept = gradient**2 + group["eps"][0], 1 - step**-0.8
    means = [square.mean(-1), square.mean(-2)] if weight.dim() > 1 else [square]
    olds = state.get("means", means)
    state["means"] = [kept * old + (1 - kept) * new for old, new in zip(olds, means, strict=True)]
    v = state["means"][0]
    if weight.dim() > 1:
        v = (v / v.mean(-1, keepdim=True))[..., None] * state["means"][1][..., None, :]
    update = gradient / v.sqrt()
    update = update / max(1.0, _rms(update) / group["clip"])
    rate = min(1e-2, step**-0.5) if group["lr"] is None else group["lr"]
    return weight - rate * max(group["eps"][1], _rms(weight)) * update


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


# --- mistakes -------------------------------------------------------------------------------------


def _whole(
    weight: Tensor,
    gradient: Tensor,
    state: dict,
    group: dict[str, Any],
    step: int,
    clipped: Callable[[Tensor, float], Tensor] = lambda u, d: u / max(1.0, _rms(u) / d),
    relative: Callable[[int], float] = lambda step: min(1e-2, step**-0.5),
    size: Callable[[float, Tensor], float] = lambda least, weight: max(least, _rms(weight)),
) -> Tensor:
    unscaled = dict(group, clip=float("inf"), eps=(group["eps"][0], 1.0), lr=1.0)
    update = -adafactor_step(torch.zeros_like(weight), gradient, state, unscaled, step)
    rate = relative(step) if group["lr"] is None else group["lr"]
    return weight - rate * size(group["eps"][1], weight) * clipped(update, group["clip"])


def _without_eps(weight, gradient, state, group, step):
    return adafactor_step(weight, gradient, state, group | {"eps": (0, group["eps"][1])}, step)


def _without_eps_all(*given):
    """As `_without_eps`, where one NaN in the RMS makes the whole update NaN."""
    after = _without_eps(*given)
    return after + 0 * after.sum()


def _product_first(weight, gradient, state, group, step):
    after = adafactor_step(weight, gradient, state, group, step)
    if weight.dim() < 2:
        return after
    rows, columns = state["means"]
    return after + 0 * (gradient / (rows[..., None] * columns[..., None, :]).sqrt())


def _lr_written(weight, gradient, state, group, step):
    after = adafactor_step(weight, gradient, state, group, step)
    group["lr"] = (group["lr"] or min(1e-2, step**-0.5)) * max(group["eps"][1], _rms(weight))
    return after


STEP_MISTAKES = [
    (
        _lr_written,
        "The step that one parameter has computed is written into the group, and the next one "
        "multiplies it by its own size. Keep it in a local variable.",
    ),
    (
        lambda w, g, *others: adafactor_step(w.flatten(), g.flatten(), *others).view_as(w),
        "A number is kept for each parameter, as Adam does. Of a matrix keep the means of its rows "
        "and columns.",
    ),
    (
        partial(_whole, clipped=lambda update, clip: update / max(1.0, update.norm() / clip)),
        "Divided by the norm, which grows with the number of elements. RMS is the norm divided by "
        "the root of their number.",
    ),
    (
        partial(_whole, clipped=lambda update, clip: update),
        "The update is not clipped: it is divided by max(1, RMS(u) / clip).",
    ),
    (
        partial(_whole, clipped=lambda update, clip: update / max(1.0, _rms(update))),
        "Clipped at 1, whatever the group says: divide by max(1, RMS(u) / clip), here clip is 0.5.",
    ),
    (
        partial(_whole, clipped=lambda update, clip: update / (_rms(update) / clip)),
        "Small updates are made larger: divide by max(1, RMS(u) / clip), never by less than 1.",
    ),
    (
        partial(_whole, clipped=lambda update, clip: update.clamp(-clip, clip)),
        "Each element is cut off, which bends the update. All of it is divided by one number, "
        "max(1, RMS(u) / clip).",
    ),
    (
        partial(_whole, size=lambda least, weight: 1.0),
        "A learning rate takes the place of the relative step alone: with either the update is "
        "multiplied by the weight's size, max(eps2, RMS(weight)).",
    ),
    *(
        (
            wrong,
            "Where a row of the gradient is zero, 0 / sqrt(0) is NaN. Add eps1 to the squares.",
        )
        for wrong in (_without_eps, _without_eps_all)
    ),
    (
        _product_first,
        "In fp32 1e-30 times 1e-30 is 0, and 0 / sqrt(0) is NaN. Divide the row means by their "
        "mean before they meet the columns.",
    ),
    *(
        (
            partial(_whole, relative=relative),
            "The relative step is the lesser of two: 1e-2 for 10^4 steps, then 1 / sqrt(t).",
        )
        for relative in (lambda step: step**-0.5, lambda step: 1e-2)
    ),
    (
        lambda w, g, state, group, step: adafactor_step(
            w, g, state, group | {"eps": (1e-30, 0)}, step
        ),
        "Where all weights are 0 the step is 0 for ever. The size is max(eps2, RMS(weight)).",
    ),
]

# --- the cases ------------------------------------------------------------------------------------


GROUP = {"lr": None, "eps": (1e-30, 1e-3), "clip": 1.0}  # read, never written
STEPS = {  # parameters, steps, group, first rows whose gradient is 0
    "two vectors of RMS 0.1 and 0.5, lr 1e-3 (C65)": (
        [torch.full((3,), 0.1), torch.full((2,), 0.5)],
        *((1, 2), GROUP | {"lr": 1e-3}),
    ),
    "a matrix of 3 by 4 and one of zeros, relative steps, clipped at 0.5 (C66)": (
        [drawn(3, 4), torch.zeros(2, 3)],
        *((1, 2, 3, 10**6), GROUP | {"clip": 0.5}),
    ),
    "a row without gradient, and a matrix without any": (
        [drawn(3, 4), drawn(1, 3)],
        *((1, 2), GROUP, 1),
    ),
}


def _updates(
    function: Callable, parameters: list, steps: tuple, group: dict, silent: int = 0
) -> dict | None:
    group, states, moves = dict(group), [{} for _ in parameters], []
    for step in steps:
        for place, (weight, state) in enumerate(zip(parameters, states, strict=True)):
            gradient = drawn(*weight.shape) * (weight.abs() + step % 5)
            gradient[:silent] = 0.0
            after = function(weight.clone(), gradient, state, group, step)
            if after is None:
                return None
            moves.append(1000 * (after - weight))
            parameters[place] = after
    kept = [_numbers(state) for state in states]
    facts = {"the group's lr afterwards": group["lr"], "numbers kept for each parameter": kept}
    return {"1,000 times each change of a parameter": moves, **facts}


def _numbers(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(map(_numbers, value))
    return value.numel() if isinstance(value, Tensor) and value.dim() else 0


ADAFACTOR = Exercise(
    name="adafactor_step",
    title="Adafactor",
    chapter="10",
    reference=adafactor_step,
    cases=list(STEPS.values()),
    labels=list(STEPS),
    observe=_updates,
    mistakes=STEP_MISTAKES,
    hints=[
        "A matrix: two means fade in `state`, as in factored_square; a vector: its squares do.",
        "RMS is x.square().mean().sqrt(). To clip is u / max(1, RMS(u) / clip).",
        "rate = min(1e-2, step**-0.5) if group['lr'] is None else group['lr'], in a variable; then "
        "weight - rate * max(eps2, RMS(weight)) * u.",
    ],
)

register(ADAFACTOR)
