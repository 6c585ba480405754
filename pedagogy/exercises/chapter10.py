"""Chapter 10: Adafactor's second moment, from the means of rows and columns.

Its whole step is in `chapter10_step`, moments in 8 bits and SM3 in `chapter10_states`, predictions
in `chapter10_predictions`. (Adam's step is an exercise of chapter 00a.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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


# --- the cases ------------------------------------------------------------------------------------


def drawn(*shape: int) -> Tensor:
    """The same random numbers for one number of dimensions, whenever they are drawn."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


FOUR = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
GRADIENTS = {
    "[[1, 2], [3, 4]], one step (C67)": [FOUR],
    "a row of zeros": [FOUR * torch.tensor([[1.0], [0.0]])] * 2,
    "3 by 4, five steps": list(drawn(5, 3, 4)),
    "2 by 3 by 4 (C67)": list(drawn(2, 2, 3, 4)),
    "all zeros": [torch.zeros(2, 3)],
}


def _with_quotient(function: Callable, *gradients: Tensor) -> dict | None:
    v = function([gradient.clone() for gradient in gradients])
    if v is None:
        return None
    if not isinstance(v, Tensor) or v.shape != gradients[-1].shape:
        raise Refused(f"a tensor of shape {tuple(gradients[-1].shape)} was asked for, the estimate")
    return {"the estimate": v, "g / sqrt(the estimate)": gradients[-1] / v.sqrt()}


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

register(FACTORED)
