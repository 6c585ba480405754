"""Chapter 09: a mask that has exactly so many zeros, and holds them against momentum.

Values that many weights share, and weights of one bit, are in `chapter09_values`; what a student
learns from a teacher in `chapter09_teacher`, the file in `chapter09_file`, predictions in
`chapter09_predictions`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pedagogy.compression import magnitude_mask
from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def prune_step(
    weight: Tensor, mask: Tensor, momentum: Tensor, gradient: Tensor, sparsity: float, lr: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(weight, mask, momentum) after a step of SGD, momentum 0.9; what is pruned stays 0."""
    magnitude = torch.where(mask == 0, -1.0, weight.abs())  # what was pruned comes first
    mask = torch.ones_like(weight)
    mask[magnitude.argsort()[: round(sparsity * len(weight))]] = 0
    momentum = 0.9 * momentum + gradient
    return (weight - lr * momentum) * mask, mask, momentum


# --- mistakes -------------------------------------------------------------------------------------


def _wrong(
    *others: object,
    size: Callable[[Tensor, Tensor], Tensor] = lambda w, m: torch.where(m == 0, -1.0, w.abs()),
    number: Callable[[Tensor, float], float] = lambda mask, s: round(s * len(mask)),
    move: Callable = lambda w, m, momentum, lr: (w - lr * momentum) * m,
    see: Callable[[Tensor, Tensor], Tensor] = lambda gradient, mask: gradient,
) -> tuple[Tensor, Tensor, Tensor]:
    """The reference, with the parts that are given in the place of its own."""
    weight, mask, momentum, gradient, sparsity, lr = others
    order = size(weight, mask).argsort()
    mask, zeros = torch.ones_like(weight), number(mask, sparsity)
    mask[order[:zeros]] = 0
    momentum = 0.9 * momentum + see(gradient, mask)
    return move(weight, mask, momentum, lr), mask, momentum


def _by_threshold(weight, mask, momentum, gradient, sparsity, lr):
    zeros = round(sparsity * len(weight))
    if zeros:
        mask = mask * (weight.abs() > weight.abs().sort().values[zeros - 1])
    momentum = 0.9 * momentum + gradient
    return (weight - lr * momentum) * mask, mask, momentum


def _of_the_rest(mask: Tensor, sparsity: float) -> int:
    left = int(mask.sum())
    return len(mask) - left + round(sparsity * left)


def _chosen_after(weight, mask, momentum, gradient, sparsity, lr):
    momentum = 0.9 * momentum + gradient
    moved = weight - lr * momentum
    mask = magnitude_mask(moved, sparsity, mask)
    return moved * mask, mask, momentum


def _averaging(weight, mask, momentum, gradient, sparsity, lr):
    return prune_step(weight, mask, momentum, 0.1 * gradient, sparsity, lr)


def _before(weight: Tensor, mask: Tensor, momentum: Tensor, lr: float) -> Tensor:
    return weight * mask - lr * momentum


MISTAKES = [
    (
        partial(_wrong, move=_before, see=lambda gradient, mask: gradient * mask),
        "The gradient is masked, and momentum, which remembers gradients from before the pruning, "
        "moves the weight all the same. Multiply the weight by the mask after the step.",
    ),
    (
        partial(_wrong, move=_before),
        "The weight is masked before the step, and the step moves it away from 0. Multiply it by "
        "the mask afterwards.",
    ),
    (
        _by_threshold,
        "A threshold prunes all weights that are equal to it. The first round(sparsity n) of "
        "argsort are exactly so many, ties or not.",
    ),
    (
        partial(_wrong, number=_of_the_rest),
        "The sparsity is taken of the weights that are left. It is that of all: 50 % and then "
        "75 % of 8 weights are 4 zeros and then 6.",
    ),
    (
        partial(_wrong, size=lambda weight, mask: weight.abs()),
        "The old mask is not asked. A kept weight that is 0 looks like a pruned one, and a pruned "
        "one comes back in its place. Give the pruned ones the magnitude -1.",
    ),
    (
        partial(_wrong, number=lambda mask, sparsity: int(sparsity * len(mask))),
        "int cuts off: 60 % of 8 weights are 4.8, and 5 is nearer. Use round.",
    ),
    (
        partial(_wrong, size=lambda w, mask: torch.where(mask == 0, -torch.inf, w)),
        "The most negative weights are pruned. The least magnitudes are asked for: weight.abs().",
    ),
    (
        _chosen_after,
        "The mask is chosen after the step, from weights that have moved. First comes the mask, "
        "from the weights as they are given, then the step, then weight times mask.",
    ),
    (
        _averaging,
        "The gradient enters momentum by a tenth, as in a running mean. SGD adds all of it: "
        "0.9 momentum + gradient.",
    ),
]

# --- the cases ------------------------------------------------------------------------------------

SIGNS = [0.4, -0.7, 0.1, -0.2, 0.9, -0.5, 0.3, -0.8]
SLOPES = [1.0, -0.5, 0.3, 2.0, -1.0, 0.2, 0.7, -0.1]
CASES = {  # weights, the old mask, gradients by step, sparsity by step
    "half of 8 weights, then three quarters (C70)": (
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
        *([1.0] * 8, [[0.0] * 8] * 2, [0.5, 0.75]),
    ),
    "gradient 1, then pruned (C69)": ([0.5, 2.0], [1.0, 1.0], [[1.0, 1.0], [0.0, 1.0]], [0, 0.5]),
    "60 % of 8 weights of both signs": (SIGNS, [1.0] * 8, [SLOPES] * 2, [0.3, 0.6]),
    "all are equal": ([1.0] * 8, [1.0] * 8, [[1.0] * 8] * 2, [0.5, 0.5]),
    "kept weights that are 0": (
        [0.0] * 6 + [3.0, -4.0],
        [1.0] * 4 + [0.0] * 2 + [1.0] * 2,
        [SLOPES],
        [0.25],
    ),
}


def _steps(
    function: Callable, numbers: list, old: list, gradients: list, sparsities: list
) -> dict | None:
    weight, mask = torch.tensor(numbers), torch.tensor(old)
    momentum, zeros, weights = torch.zeros_like(weight), [], []
    for gradient, sparsity in zip(map(torch.tensor, gradients), sparsities, strict=True):
        answer = function(weight, mask, momentum, gradient, sparsity, 0.1)
        if answer is None:
            return None
        if not isinstance(answer, (tuple, list)) or len(answer) != 3:
            raise Refused("three tensors were asked for: weight, mask and momentum")
        weight, mask, momentum = answer
        zeros.append(int((mask == 0).sum()))
        weights.append(weight.sort().values)
    return {"zeros in the mask, by step": zeros, "weights after each step, in order": weights}


PRUNE = Exercise(
    name="prune_step",
    title="Zeros that stay",
    chapter="09",
    reference=prune_step,
    cases=list(CASES.values()),
    labels=list(CASES),
    observe=_steps,
    mistakes=MISTAKES,
    hints=[
        "argsort() of the magnitudes gives the places of the least ones first: the first "
        "round(sparsity * n) of them become 0 in a mask of ones.",
        "What was pruned must be pruned again: torch.where(mask == 0, -1.0, weight.abs()) puts it "
        "first.",
        "Step as if nothing were pruned, then multiply the weight by the new mask.",
    ],
)

register(PRUNE)
