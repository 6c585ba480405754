"""Chapter 00a: Adam's update, and how far its first step goes."""

from __future__ import annotations

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register


def adam_step(
    weight: Tensor,
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """New weight and moments after step number `step` (1, 2, ...); Kingma and Ba 2015, alg. 1."""
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    return weight - lr * m_hat / (v_hat.sqrt() + eps), m, v


def _moments(gradient, m, v, beta1=0.9, beta2=0.999):
    return beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2


def _uncorrected(weight, gradient, m, v, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v = _moments(gradient, m, v, beta1, beta2)
    return weight - lr * m / (v.sqrt() + eps), m, v


def _eps_inside(weight, gradient, m, v, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v = _moments(gradient, m, v, beta1, beta2)
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return weight - lr * m_hat / (v_hat + eps).sqrt(), m, v


def _from_zero(weight, gradient, m, v, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    return adam_step(weight, gradient, m, v, step + 1, lr, beta1, beta2, eps)


def _betas_swapped(weight, gradient, m, v, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    return adam_step(weight, gradient, m, v, step, lr, beta2, beta1, eps)


def _corrected_in_memory(weight, gradient, m, v, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    weight, m, v = adam_step(weight, gradient, m, v, step, lr, beta1, beta2, eps)
    return weight, m / (1 - beta1**step), v / (1 - beta2**step)


def _no_root(weight, gradient, m, v, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v = _moments(gradient, m, v, beta1, beta2)
    return weight - lr * m / (1 - beta1**step) / (v / (1 - beta2**step) + eps), m, v


def _no_square(weight, gradient, m, v, step, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return weight - lr * m_hat / (v_hat.sqrt() + eps), m, v


def _adam_cases() -> list[tuple]:
    draw = torch.Generator().manual_seed(0)
    weight, gradient, m = torch.randn(3, 2, 3, generator=draw)
    v = torch.rand(2, 3, generator=draw)
    zero = torch.zeros(2, 3)
    return [
        (weight, gradient, zero, zero, 1, 0.1, 0.9, 0.999, 1e-8),
        (weight, gradient, m, v, 3, 0.1, 0.9, 0.999, 1e-8),
        (weight, 1e-3 * gradient, 1e-3 * m, 1e-6 * v, 7, 0.1, 0.8, 0.95, 1e-3),
    ]


ADAM = Exercise(
    name="adam_step",
    title="Adam's update",
    chapter="00a",
    reference=adam_step,
    cases=_adam_cases(),
    labels=["first update, m = v = 0", "third update", "seventh update, other betas, large eps"],
    mistakes=[
        (
            _uncorrected,
            "The bias correction is missing: m and v start at zero, so after the first step they "
            "are a tenth of the gradient and a thousandth of its square.",
        ),
        (
            _eps_inside,
            "eps stands inside the square root; it belongs beside it, sqrt(v_hat) + eps.",
        ),
        (_from_zero, "The exponent is one too large: `step` is 1 at the first update already."),
        (_betas_swapped, "beta1 belongs to m, beta2 to v; they are swapped."),
        (
            _corrected_in_memory,
            "The corrected moments are returned. Only this update uses m_hat and v_hat; what is "
            "kept for the next step is m and v.",
        ),
        (
            _no_root,
            "The root is missing: v is a mean of squares, and it is sqrt(v_hat) that has the size "
            "of a gradient.",
        ),
        (
            _no_square,
            "v takes in the gradient, not its square; where that is negative it has no root.",
        ),
    ],
    hints=[
        "m is a running mean of the gradient, v of its square: m = beta1 m + (1 - beta1) g.",
        "Divide m by 1 - beta1**step and v by 1 - beta2**step, in new variables.",
        "The weight moves by -lr * m_hat / (sqrt(v_hat) + eps). Return (weight, m, v).",
    ],
)

FIRST_ADAM_STEP = Prediction(
    name="first_adam_step",
    chapter="00a",
    question="lr is 0.001 and the first gradient 1000: by which distance does Adam move the "
    "weight?",
    key=lambda: _first_move(1000.0, 0.001),
    tolerance=1e-5,
    mistakes=[
        (1.0, "lr times gradient is SGD. Adam divides by the size of the gradient."),
        (-0.001, "that is its direction as well; the distance is 0.001."),
        (1e-6, "the gradient's size cancels: it stands above and below."),
    ],
    because="m_hat / sqrt(v_hat) is g / |g| at the first step, whatever the gradient.",
)


def _first_move(gradient: float, lr: float) -> float:
    zero = torch.zeros(1)
    moved, _, _ = adam_step(zero, torch.tensor([gradient]), zero, zero, 1, lr)
    return -moved.item()


register(ADAM, FIRST_ADAM_STEP)
