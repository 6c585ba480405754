"""Chapter 04: tokens to their experts, and weighted outputs back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pedagogy.exercises.attempt import Outcome, attempt
from pedagogy.exercises.chapter04_wrong_mixtures import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def mixture_forward(
    x: Tensor, weights: Tensor, experts_of: Tensor, experts: Sequence[Callable[[Tensor], Tensor]]
) -> Tensor:
    """Each token's weighted sum of its k experts' outputs; an expert runs on its own tokens alone.

    x (tokens, hidden); weights, experts_of (tokens, k), no expert twice in a row of it; experts map
    (rows, hidden) to (rows, hidden).
    """
    k = experts_of.size(1)
    order = experts_of.flatten().argsort(stable=True)  # choices, sorted by expert
    token = order // k  # whose choices these are
    counts = torch.bincount(experts_of.flatten(), minlength=len(experts)).tolist()
    parts = x[token].split(counts)
    outputs = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    weighted = outputs * weights.flatten()[order][:, None]
    return torch.zeros_like(x).index_add(0, token, weighted)


# --- the cases ------------------------------------------------------------------------------------


class CountedExpert:
    """tanh(rows W); `rows` says how many it was given in all, `calls` in how many calls."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.rows, self.calls = weight.requires_grad_(), 0, 0

    def __call__(self, rows: Tensor) -> Tensor:
        self.calls, self.rows = self.calls + 1, self.rows + rows.numel() // rows.size(-1)
        return torch.tanh(rows @ self.weight)


def gradient_of(tensor: Tensor) -> Tensor:
    """Its gradient; zeros where it has none."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def draw_experts(num_experts: int, hidden: int) -> list[CountedExpert]:
    """The same at each call."""
    draw = torch.Generator().manual_seed(num_experts)
    return [CountedExpert(torch.randn(hidden, hidden, generator=draw)) for _ in range(num_experts)]


CHOICES = {
    "5 tokens, 3 experts, k = 1": [[2], [0], [2], [2], [0]],
    "6 tokens, 4 experts, k = 2": [[3, 0], [0, 1], [1, 3], [0, 3], [0, 1], [3, 0]],
}


def inputs_of(label: str) -> tuple[Tensor, Tensor, Tensor, list[CountedExpert]]:
    """x, weights, experts_of and experts of a case."""
    experts_of = torch.tensor(CHOICES[label])
    draw = torch.Generator().manual_seed(len(experts_of))
    x = torch.randn(len(experts_of), 3, generator=draw).requires_grad_()
    weights = (0.1 + 0.4 * torch.rand(experts_of.shape, generator=draw)).requires_grad_()
    return x, weights, experts_of, draw_experts(3 if experts_of.size(1) == 1 else 4, 3)


def _output_and_gradients(
    function: Callable, x: Tensor, weights: Tensor, experts_of: Tensor, experts: list
) -> dict | None:
    y = function(x, weights, experts_of, experts)
    if y is None:
        return None
    if isinstance(y, Tensor) and y.requires_grad:
        (y * torch.arange(1.0, y.numel() + 1).view(y.shape)).sum().backward()
    return {
        "the output": y,
        "the gradient of x": gradient_of(x),
        "the gradient of weights": gradient_of(weights),
        "the rows that each expert was given": [expert.rows for expert in experts],
    }


def _calls(function: Callable, *arguments: object) -> list[int]:
    function(*arguments)
    return [expert.calls for expert in arguments[-1]]


def _one_call_each(function: Callable, outcome: Outcome) -> str | None:
    (found,) = attempt(function, MIXTURE.cases, None, _calls).value
    for label, calls in zip(MIXTURE.labels, found, strict=True):
        if max(calls) > 1:
            return (
                f"an expert ran {max(calls)} times, where one call is enough ({label}; the calls "
                f"of its experts are {calls}). Gather its rows first, of all tokens and choices"
            )
    return None


MIXTURE = Exercise(
    name="mixture_forward",
    title="There, and back again",
    chapter="04",
    reference=mixture_forward,
    cases=[lambda rank, label=label: inputs_of(label) for label in CHOICES],
    labels=list(CHOICES),
    observe=_output_and_gradients,
    targets=[_one_call_each],
    mistakes=MISTAKES,
    hints=[
        "With a loop over the experts: token, choice = (experts_of == e).nonzero(as_tuple=True) "
        "says which tokens chose expert e, and as which of their choices.",
        "Its output for these alone is experts[e](x[token]); the weights that belong to it are "
        "weights[token, choice].",
        "A token with k choices gets k contributions: add them, result.index_add(0, token, "
        "weighted), beginning with zeros.",
    ],
)

register(MIXTURE)
