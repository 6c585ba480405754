"""Chapter 09: a student's loss, from a teacher's logits and from labels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def soft_and_hard_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    temperature: float,
    alpha: float,
) -> Tensor:
    """The loss of a student that learns from a teacher and from labels: a scalar."""
    log_p = (teacher_logits.detach() / temperature).log_softmax(1)
    log_q = (student_logits / temperature).log_softmax(1)
    soft = (log_p.exp() * (log_p - log_q)).sum(1).mean()
    hard = functional.cross_entropy(student_logits, labels)
    return alpha * temperature**2 * soft + (1 - alpha) * hard


# --- mistakes -------------------------------------------------------------------------------------


def _loss(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    temperature: float,
    alpha: float,
    divergence: Callable[[Tensor, Tensor], Tensor] = lambda p, q: (p.exp() * (p - q)).sum(1).mean(),
    logs: Callable[[Tensor], Tensor] = lambda logits: logits.log_softmax(1),
    power: int = 2,
    fixed: Callable[[Tensor], Tensor] = torch.detach,
    at: Callable[[float], float] = lambda temperature: 1.0,
) -> Tensor:
    """The reference with other parts; `divergence` gets log-probabilities, the teacher's first."""
    soft = divergence(logs(fixed(teacher) / temperature), logs(student / temperature))
    hard = functional.cross_entropy(student / at(temperature), labels)
    return alpha * temperature**power * soft + (1 - alpha) * hard


def _weights_exchanged(student, teacher, labels, temperature, alpha):
    return _loss(student, teacher, labels, temperature, 1 - alpha)


MISTAKES = [
    (
        partial(_loss, power=0),
        "T^2 is missing: the gradient of the soft term is of order 1/T^2, 400 times smaller at "
        "T = 20, and alpha means something else at each temperature.",
    ),
    (
        partial(_loss, power=1),
        "T stands there once. The gradient of the soft term is of order 1/T^2: one 1/T comes from "
        "the logits' division, another from the flatter probabilities. Multiply by T^2.",
    ),
    (
        partial(_loss, divergence=lambda p, q: (p.exp() * (p - q)).sum()),
        "The soft term is summed over the batch. Sum over classes, mean over the batch.",
    ),
    (
        _weights_exchanged,
        "alpha and 1 - alpha are exchanged: alpha is the share of the soft term.",
    ),
    (
        partial(_loss, divergence=lambda p, q: (p.exp() * (p - q)).mean()),
        "That is the mean over classes too. Sum over classes, mean over the batch.",
    ),
    (
        partial(_loss, divergence=lambda p, q: (q.exp() * (q - p)).sum(1).mean()),
        "That is KL(student || teacher). The teacher's probabilities are the weights: "
        "sum p (log p - log q), with p the teacher's.",
    ),
    (
        partial(_loss, fixed=lambda teacher: teacher),
        "A gradient reaches the teacher, which is not trained here: teacher_logits.detach().",
    ),
    (
        partial(_loss, logs=lambda logits: logits.softmax(1).log()),
        "A probability that underflows to 0 has no logarithm. log_softmax computes it without.",
    ),
    (
        partial(_loss, divergence=lambda p, q: -(p.exp() * q).sum(1).mean()),
        "That is the cross-entropy with the teacher, larger than KL by the teacher's own entropy. "
        "Its gradient is the same, but a perfect student has not the loss 0.",
    ),
    (
        partial(_loss, at=lambda temperature: temperature),
        "The labels' cross-entropy is taken at temperature T. It is that of the student as it will "
        "be used, at 1.",
    ),
]

# --- the cases ------------------------------------------------------------------------------------

_LOGITS = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(3))
_FOUR = (torch.tensor([[1.0, 2.0, 3.0]] * 4), torch.tensor([[3.0, 2.0, 1.0]] * 4))
_FAR = (torch.tensor([[1000.0, 0.0, -1000.0]]), torch.tensor([[-1000.0, 0.0, 1000.0]]))
CASES = {
    "four rows at T = 2 (C75)": (*_FOUR, torch.tensor([0, 1, 2, 0]), 2.0, 1.0),
    "five rows at T = 4, alpha 0.7": (*_LOGITS, torch.tensor([3, 1, 0, 0, 2]), 4.0, 0.7),
    "logits of 1,000 at T = 1": (*_FAR, torch.tensor([0]), 1.0, 0.5),
}


def _loss_and_gradients(
    function: Callable, student: Tensor, teacher: Tensor, *others
) -> dict | None:
    student, teacher = student.clone().requires_grad_(), teacher.clone().requires_grad_()
    loss = function(student, teacher, *others)
    if loss is None:
        return None
    if not isinstance(loss, Tensor) or not loss.requires_grad or loss.dim():
        raise Refused("a scalar tensor was asked for that has a gradient for the student's logits")
    loss.backward()
    reached = teacher.grad is not None and bool(teacher.grad.any())
    return {
        "the loss": loss.detach(),
        "the gradient of the student's logits": student.grad,
        "a gradient reaches the teacher": reached,
    }


SOFT_AND_HARD = Exercise(
    name="soft_and_hard_loss",
    title="What a student learns from a teacher",
    chapter="09",
    reference=soft_and_hard_loss,
    cases=list(CASES.values()),
    labels=list(CASES),
    observe=_loss_and_gradients,
    mistakes=MISTAKES,
    hints=[
        "log p and log q are (logits / temperature).log_softmax(1), the teacher's detached.",
        "KL(p || q) = sum over classes of p (log p - log q), with p = log_p.exp(); then the mean "
        "over the batch, times T^2.",
        "The other term is torch.nn.functional.cross_entropy(student_logits, labels), without T.",
    ],
)

register(SOFT_AND_HARD)
