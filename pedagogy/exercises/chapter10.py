"""Chapter 10: Adafactor, its second moment from row and column means, and its whole step.

Moments in 8 bits and SM3 are in `chapter10_states`, predictions in `chapter10_predictions`.
(Adam's step is an exercise of chapter 00a.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def factored_square(gradients: Sequence[Tensor], eps: float = 1e-30) -> Tensor:
    """Adafactor's estimate of the second moment after these gradients."""
    rows = columns = 0.0
    for step, gradient in enumerate(gradients, start=1):
        square, kept = gradient**2 + eps, 1 - step**-0.8
        rows = kept * rows + (1 - kept) * square.mean(-1, keepdim=True)  # (..., n, 1)
        columns = kept * columns + (1 - kept) * square.mean(-2, keepdim=True)  # (..., 1, m)
    return rows / rows.mean(-2, keepdim=True) * columns


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


def _estimate(
    gradients: Sequence[Tensor],
    eps: float = 1e-30,
    kept_at: Callable[[int], float] = lambda step: 1 - step**-0.8,
    scale: Callable[[Tensor], Tensor] = lambda rows: rows.mean(-2, keepdim=True),
    product_first: bool = False,
) -> Tensor:
    rows = columns = 0.0
    for step, gradient in enumerate(gradients, start=1):
        square, kept = gradient**2 + eps, kept_at(step)
        rows = kept * rows + (1 - kept) * square.mean(-1, keepdim=True)
        columns = kept * columns + (1 - kept) * square.mean(-2, keepdim=True)
    return rows * columns / scale(rows) if product_first else rows / scale(rows) * columns


def _plain_mean(gradients: Sequence[Tensor], eps: float = 1e-30) -> Tensor:
    return factored_square([torch.stack([g**2 for g in gradients]).mean(0).sqrt()], eps)


SQUARE_MISTAKES = [
    (
        partial(_estimate, scale=lambda rows: 1.0),
        "Row mean times column mean is a fourth power of g. Divide by the mean of the row means.",
    ),
    (
        lambda gradients, eps=1e-30: _estimate(gradients, 0.0),
        "Without eps a row of zeros gives 0 / sqrt(0), NaN, and all zeros give 0 / 0. Add eps to "
        "the squares.",
    ),
    (
        partial(_estimate, product_first=True),
        "In fp32 1e-30 times 1e-30 is 0, and 0 / sqrt(0) is NaN. Divide the row means by their "
        "mean before they meet the columns.",
    ),
    (
        lambda gradients, eps=1e-30: _estimate(gradients, 0.0) + eps,
        "Added to the estimate eps comes too late: where all is zero, 0 / 0 was taken before. Add "
        "it to the squares.",
    ),
    (
        partial(_estimate, scale=lambda rows: rows.mean()),
        "The mean of all row means was taken. Each matrix of the last two dimensions has its own: "
        "mean(-1) of the row means, the dimension kept.",
    ),
    (
        partial(_estimate, kept_at=lambda step: step**-0.8),
        "Kept and new have changed places: t^-0.8, which is 1 in the first step, is the new one's "
        "weight, and kept is 1 - t^-0.8.",
    ),
    (
        _plain_mean,
        "That is the plain mean over all steps: none fades. mean <- kept mean + (1 - kept) new, "
        "step by step.",
    ),
    (
        partial(_estimate, kept_at=lambda step: 0.999),
        "A constant rate of 0.999 starts far below, and nothing corrects for it here. kept = 1 - "
        "t^-0.8 is 0 in the first step.",
    ),
    (
        lambda gradients, eps=1e-30: gradients[-1] ** 2 + eps,
        "Those are the last squares themselves: a number for each parameter, and nothing of the "
        "steps before. Keep the means of rows and columns.",
    ),
    (
        lambda gs, eps=1e-30: factored_square([g.movedim(-1, 0) for g in gs], eps).movedim(0, -1),
        "Rows and columns are those of the last two dimensions: mean(-1) and mean(-2), whatever "
        "stands before them.",
    ),
]


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


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


FOUR = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
GRADIENTS = {
    "[[1, 2], [3, 4]], one step (C67)": [FOUR],
    "a row of zeros": [FOUR * torch.tensor([[1.0], [0.0]])] * 2,
    "3 by 4, five steps": list(_drawn(5, 3, 4)),
    "2 by 3 by 4 (C67)": list(_drawn(2, 2, 3, 4)),
    "all zeros": [torch.zeros(2, 3)],
}


def _with_quotient(function: Callable, *gradients: Tensor) -> dict | None:
    v = function([gradient.clone() for gradient in gradients])
    if v is None:
        return None
    if not isinstance(v, Tensor) or v.shape != gradients[-1].shape:
        raise Refused(f"a tensor of shape {tuple(gradients[-1].shape)} was asked for, the estimate")
    return {"the estimate": v, "g / sqrt(the estimate)": gradients[-1] / v.sqrt()}


GROUP = {"lr": None, "eps": (1e-30, 1e-3), "clip": 1.0}  # read, never written
STEPS = {  # parameters, steps, group, first rows whose gradient is 0
    "two vectors of RMS 0.1 and 0.5, lr 1e-3 (C65)": (
        [torch.full((3,), 0.1), torch.full((2,), 0.5)],
        *((1, 2), GROUP | {"lr": 1e-3}),
    ),
    "a matrix of 3 by 4 and one of zeros, relative steps, clipped at 0.5 (C66)": (
        [_drawn(3, 4), torch.zeros(2, 3)],
        *((1, 2, 3, 10**6), GROUP | {"clip": 0.5}),
    ),
    "a row without gradient, and a matrix without any": (
        [_drawn(3, 4), _drawn(1, 3)],
        *((1, 2), GROUP, 1),
    ),
}


def _updates(
    function: Callable, parameters: list, steps: tuple, group: dict, silent: int = 0
) -> dict | None:
    group, states, moves = dict(group), [{} for _ in parameters], []
    for step in steps:
        for place, (weight, state) in enumerate(zip(parameters, states, strict=True)):
            gradient = _drawn(*weight.shape) * (weight.abs() + step % 5)
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


FACTORED = Exercise(
    name="factored_square",
    title="A square from its rows and columns",
    chapter="10",
    reference=factored_square,
    cases=[tuple(case) for case in GRADIENTS.values()],
    labels=list(GRADIENTS),
    observe=_with_quotient,
    mistakes=SQUARE_MISTAKES,
    hints=[
        "square.mean(-1, keepdim=True) has the row means, (..., n, 1), mean(-2, keepdim=True) the "
        "column means, (..., 1, m): their product is (..., n, m).",
        "kept = 1 - step**-0.8, with steps from 1: 0 at first. Divide by rows.mean(-2, "
        "keepdim=True).",
        "Nothing but zeros: both means are 1e-30, and their product is 0 in fp32. Divide first.",
    ],
)

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

register(FACTORED, ADAFACTOR)
