"""Chapter 09: few values for many weights, and the weights behind values of one bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def shared_values(values: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """(codebook, indices): k-means in one dimension, from `start`, until nothing changes."""
    codebook, before = start.clone(), None
    while True:
        indices = (values[:, None] - codebook).abs().argmin(1)
        if before is not None and torch.equal(indices, before):
            return codebook, indices
        before = indices
        for number in range(len(codebook)):
            if (indices == number).any():  # an empty one stays where it is
                codebook[number] = values[indices == number].mean()


def binary_step(
    latent: Tensor, gradient_of: Callable[[Tensor], Tensor], lr: float
) -> tuple[Tensor, Tensor]:
    """(what the layer computes with, the real weights behind it after the step)."""
    binary = torch.where(latent >= 0, 1.0, -1.0)
    gradient = gradient_of(binary) * (latent.abs() <= 1)  # straight through, or not at all
    return binary, (latent - lr * gradient).clamp(-1, 1)


# --- mistakes -------------------------------------------------------------------------------------


def _nearest(values: Tensor, codebook: Tensor) -> Tensor:
    return (values[:, None] - codebook).abs().argmin(1)


def _halfway(values: Tensor, codebook: Tensor) -> Tensor:
    return torch.bucketize(values, (codebook[1:] + codebook[:-1]) / 2)


def _means(values: Tensor, indices: Tensor, numbers: Tensor) -> Tensor:
    return torch.stack([values[indices == number].mean() for number in numbers])


def _kept(values: Tensor, indices: Tensor, codebook: Tensor) -> Tensor:
    return codebook.index_put((indices.unique(),), _means(values, indices, indices.unique()))


def _clustered(
    values: Tensor,
    start: Tensor,
    rounds: int = 100,
    nearest: Callable = _nearest,
    means: Callable = _kept,
) -> tuple[Tensor, Tensor]:
    for _ in range(rounds):
        start = means(values, nearest(values, start), start)
    return start, nearest(values, start)


VALUES_MISTAKES = [
    (
        partial(_clustered, means=lambda v, i, codebook: _means(v, i, torch.arange(len(codebook)))),
        "A value that no weight joins has the mean of nothing, NaN, and nothing is nearer than "
        "NaN. Leave it where it is, or move it to a weight.",
    ),
    (
        partial(_clustered, means=lambda v, i, codebook: _means(v, i, i.unique())),
        "Values that no weight joins are left out, and the others change their numbers. All k "
        "stay.",
    ),
    (
        lambda v, start: (_kept(v, _nearest(v, start), start), _nearest(v, start)),
        "One round is not enough: when the values have moved, some weights are nearer to another "
        "one. Again, until no weight changes.",
    ),
    *(
        (
            partial(_clustered, rounds=rounds),
            "A fixed number of rounds is too few here, and too many elsewhere. Go on until no "
            "weight changes its value.",
        )
        for rounds in (1, 10)
    ),
    (
        partial(_clustered, nearest=_halfway),
        "The midpoints between the values separate them only if the values are in order, and "
        "`start` need not be. Sort it, or compare distances.",
    ),
]


def _stepped(
    latent: Tensor,
    gradient_of: Callable,
    lr: float,
    through: Callable[[Tensor, Tensor], Tensor] = lambda g, latent: g * (latent.abs() <= 1),
    zero: float = 1.0,
    limit: float = 1.0,
) -> tuple[Tensor, Tensor]:
    binary = torch.where(latent == 0, zero, latent.sign())
    return binary, (latent - lr * through(gradient_of(binary), latent)).clamp(-limit, limit)


def _signs_after(_: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(latent >= 0, 1.0, -1.0), latent


BINARY_MISTAKES = [
    (
        partial(_stepped, zero=0.0),
        "torch.sign(0) is 0, a third value, which no bit can hold. +1 where latent >= 0, else -1.",
    ),
    (
        partial(_stepped, zero=-1.0),
        "0 becomes -1. Of the two values it has the upper one here: +1 where latent >= 0, else -1.",
    ),
    (
        lambda latent, gradient_of, lr: (
            _stepped(latent, gradient_of, lr)[0],
            _stepped(latent, lambda binary: gradient_of(latent), lr)[1],
        ),
        "The gradient is asked for at the real weights. The layer has computed with the binary "
        "ones: gradient_of(binary).",
    ),
    (
        lambda latent, gradient_of, lr: _signs_after(*_stepped(latent, gradient_of, lr)),
        "The binary weights are those after the step. Asked for are those before, with which the "
        "layer has computed.",
    ),
    (
        lambda latent, gradient_of, lr: _stepped(latent, gradient_of, -lr),
        "The step goes up the gradient: latent - lr * gradient.",
    ),
    *(
        (
            partial(_stepped, through=through),
            "The gradient passes everywhere, or is clipped by its own size. What decides is the "
            "real weight: it passes whole where |latent| <= 1, else not at all.",
        )
        for through in (lambda gradient, latent: gradient, lambda g, latent: g.clamp(-1, 1))
    ),
    (
        partial(_stepped, through=lambda gradient, latent: gradient * (latent.abs() < 1)),
        "At exactly 1 nothing passes. That is where clamped weights stand, and they would never "
        "leave it again: <=.",
    ),
    (
        partial(_stepped, limit=float("inf")),
        "The real weights leave [-1, 1], where no gradient reaches them any more: they never come "
        "back. Clamp them after the step.",
    ),
    (
        lambda latent, gradient_of, lr: _stepped(
            *(torch.where(latent >= 0, 1.0, -1.0), gradient_of, lr),
        ),
        "The step starts from the binary weights, and steps smaller than 1 change no sign, ever. "
        "The real weights keep what small steps add up to.",
    ),
]

# --- the cases ------------------------------------------------------------------------------------

_NORMAL = torch.randn(200, generator=torch.Generator().manual_seed(9)).tolist()
VALUES = {
    "[0, 0, 0, 10] from [0, 10, 20] (C71)": ([0.0, 0.0, 0.0, 10.0], [0.0, 10.0, 20.0]),
    "all are equal (C71)": ([5.0] * 6, [5.0] * 4),
    "200 normal weights": (_NORMAL, [-2.0, -1.9, -1.8, -1.7]),
    "12 weights, values in no order": (_NORMAL[:12], [0.5, -1.0, 2.0]),
}


def _shared(function: Callable, values: list, start: list) -> dict | None:
    answer = function(torch.tensor(values), torch.tensor(start))
    if answer is None:
        return None
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Refused("two tensors were asked for: codebook and indices")
    codebook, indices = map(torch.as_tensor, answer)
    if indices.is_floating_point() or indices.shape != (len(values),):
        raise Refused(f"indices are {len(values)} integers, the number of each weight's value")
    finite = bool(codebook.isfinite().all())
    return {
        "the number of values": len(codebook),
        "every value is finite": finite,
        "the shared weights, codebook[indices]": codebook[indices] if finite else 0 * indices,
    }


BINARY = {  # latent weights, gradient by step and binary weights, lr, steps
    "the seven of C76, gradient 1": (
        [-2.0, -1.5, -0.9, 0.0, 0.9, 1.5, 2.0],
        *(lambda step, binary: torch.ones(7), 1.0, 1),
    ),
    "a gradient that turns round": (
        [0.5, -0.5],
        *(lambda step, binary: torch.full((2,), -1.0 if step < 8 else 1.0), 0.25, 16),
    ),
    "gradients of 3": ([0.4, -0.4, 0.0], lambda step, binary: 3.0 * binary, 0.1, 3),
}


def _binary_steps(
    function: Callable, numbers: list, gradient: Callable, lr: float, steps: int
) -> dict | None:
    latent, computed, behind = torch.tensor(numbers), [], []
    for step in range(steps):
        answer = function(latent.clone(), partial(gradient, step), lr)
        if answer is None:
            return None
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise Refused("two tensors were asked for: the binary and the latent weights")
        computed.append(answer[0])
        behind.append(latent := answer[1])
    return {"the binary weights, by step": computed, "the latent weights, by step": behind}


SHARED = Exercise(
    name="shared_values",
    title="Values that many weights share",
    chapter="09",
    reference=shared_values,
    cases=list(VALUES.values()),
    labels=list(VALUES),
    observe=_shared,
    mistakes=VALUES_MISTAKES,
    hints=[
        "(values[:, None] - codebook).abs() is a distance for each weight and value; argmin(1) is "
        "the number of the nearest.",
        "values[indices == number].mean() is the new value, if there is such a weight at all.",
        "Stop when the indices are those of the round before.",
    ],
)

ONE_BIT = Exercise(
    name="binary_step",
    title="Straight through a sign",
    chapter="09",
    reference=binary_step,
    cases=list(BINARY.values()),
    labels=list(BINARY),
    observe=_binary_steps,
    mistakes=BINARY_MISTAKES,
    hints=[
        "torch.where(latent >= 0, 1.0, -1.0) has two values, also at 0.",
        "gradient_of(binary) * (latent.abs() <= 1) is what reaches the real weights.",
        "The step moves the latent weights, then .clamp(-1, 1).",
    ],
)

register(SHARED, ONE_BIT)
