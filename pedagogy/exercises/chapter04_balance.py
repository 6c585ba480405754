"""Chapter 04: the loss that keeps a gate from sending all tokens to one expert."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pedagogy.exercises.chapter04_wrong_losses import WRONG_LOSSES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def balance_loss(probabilities: Tensor, experts: Tensor) -> Tensor:
    """E sum_e f_e P_e: f_e the share of tokens that chose expert e, P_e its mean probability.

    `probabilities` (tokens, E), rows sum to 1; `experts` (tokens,). The gradient flows through P.
    """
    tokens, num_experts = probabilities.shape
    f = torch.bincount(experts, minlength=num_experts) / tokens
    return num_experts * (f * probabilities.mean(0)).sum()


# --- the cases ------------------------------------------------------------------------------------


def _without_gradient(wrong: Callable, probabilities: Tensor, experts: Tensor) -> Tensor:
    return wrong(probabilities.detach(), experts)


def _loss_and_gradient(function: Callable, probabilities: Tensor, experts: Tensor) -> dict | None:
    probabilities.requires_grad_()
    loss = function(probabilities, experts)
    if loss is None:
        return None
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.sum().backward()
    return {"the loss": loss, "the gradient of probabilities": probabilities.grad}


def _case(tokens: int, num_experts: int, chosen: list[int] | None) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(tokens)
    probabilities = (1.5 * torch.randn(tokens, num_experts, generator=draw)).softmax(-1)
    experts = probabilities.argmax(-1) if chosen is None else torch.tensor(chosen)
    return probabilities, experts


BALANCE = Exercise(
    name="balance_loss",
    title="One when balanced",
    chapter="04",
    reference=balance_loss,
    cases=[
        _case(6, 3, None),
        _case(5, 4, [2, 0, 0, 1, 0]),
        (torch.tensor([[1.0, 0, 0]]).repeat(4, 1), torch.zeros(4, dtype=torch.int64)),
    ],
    labels=[
        "6 tokens, 3 experts",
        "5 tokens, 4 experts, some chosen by chance, none the last",
        "all 4 tokens to one of 3 experts",
    ],
    observe=_loss_and_gradient,
    mistakes=[
        *WRONG_LOSSES,
        (
            partial(_without_gradient, balance_loss),
            "The value is right, but no gradient comes out: the gate would never learn from it. P "
            "must be computed from `probabilities` with tensors (no item(), no detach()).",
        ),
        *((partial(_without_gradient, wrong), why) for wrong, why in WRONG_LOSSES),
    ],
    hints=[
        "f = torch.bincount(experts, minlength=E) / tokens: (E,), without a gradient. "
        "P = probabilities.mean(0): (E,).",
        "Balanced, f and P are 1/E for each expert, so that sum f P is 1/E. The factor E makes it "
        "1.",
    ],
)

register(BALANCE)
