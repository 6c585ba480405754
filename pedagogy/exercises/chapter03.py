"""Chapter 03: a feed-forward layer cut over ranks, with f and g made by hand.

Its mistakes stand in `chapter03_wrong_layers`, the loss of a vocabulary that is cut in
`chapter03_loss`, attention in pieces in `chapter03_softmax` and `chapter03_ring`, bytes in
`chapter03_bytes`, the predictions in `chapter03_predictions` and `chapter03_cuts`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pedagogy.exercises.attempt import Outcome
from pedagogy.exercises.chapter03_wrong_layers import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group


def parallel_mlp(
    group: Group, x: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
) -> Tensor:
    """GELU(x A + a) B + b on every rank, with every gradient, from this rank's slices of A and B.

    `x` and `b_out` are whole; `w_in`, `b_in` are this rank's columns of A and a, `w_out` its rows
    of B. Weights are stored as PyTorch stores them: (out_features, in_features).
    """

    class F(torch.autograd.Function):
        """Copies forward, sums backward."""

        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return group.all_reduce(gradient)

    class G(torch.autograd.Function):
        """Sums forward, copies backward."""

        @staticmethod
        def forward(ctx, part):
            return group.all_reduce(part)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    z = functional.gelu(functional.linear(F.apply(x), w_in, b_in))
    return G.apply(functional.linear(z, w_out)) + b_out  # the bias once, behind the sum


# --- the cases ------------------------------------------------------------------------------------

NAMES = ("x", "w_in", "b_in", "w_out", "b_out")
RANKS = 2


def whole_tensors(tokens: int, hidden: int, wide: int) -> list[Tensor]:
    """x, A, a, B, b of the layer before it is cut, the same at each call."""
    draw = torch.Generator().manual_seed(tokens)
    shapes = [(tokens, hidden), (wide, hidden), (wide,), (hidden, wide), (hidden,)]
    return [torch.randn(shape, generator=draw) for shape in shapes]


def _case(tokens: int, hidden: int, wide: int) -> Callable[[int], tuple]:
    def arguments(rank: int) -> tuple:
        x, w_in, b_in, w_out, b_out = whole_tensors(tokens, hidden, wide)
        pieces = [
            x,
            w_in.chunk(RANKS)[rank],
            b_in.chunk(RANKS)[rank],
            w_out.chunk(RANKS, 1)[rank],
            b_out,
        ]
        return tuple(piece.clone().requires_grad_() for piece in pieces)

    return arguments


def _output_and_gradients(function: Callable, group: Group, *tensors: Tensor) -> dict | None:
    with group.span("forward"):
        y = function(group, *tensors)
    if y is None:
        return None
    if y.requires_grad:
        factors = torch.arange(1.0, y.numel() + 1).view(y.shape) / y.numel()
        (y * factors).sum().backward()
    gradients = {
        f"the gradient of {name}": tensor.grad for name, tensor in zip(NAMES, tensors, strict=True)
    }
    return {"the output": y.detach(), **gradients}


def _one_all_reduce_each_way(function: Callable, outcome: Outcome) -> str | None:
    """A target: one all_reduce in forward, one in backward, and no other communication."""
    events = outcome.trace.of(rank=0)
    passes = [event for event in events if event.kind == "forward"]
    others = sorted({event.kind for event in events} - {"forward", "all_reduce"})
    if others:
        return f"it uses {', '.join(others)}; two all_reduces are enough, one each way"
    sums = [event for event in events if event.kind == "all_reduce"]
    forward = sum(any(one.start <= event.start < one.end for one in passes) for event in sums)
    cases = len(passes)
    if (forward, len(sums) - forward) == (cases, cases):
        return None
    return (
        f"it takes {forward / cases:g} all_reduces forward and {(len(sums) - forward) / cases:g} "
        "backward; one each way is enough"
    )


MLP = Exercise(
    name="parallel_mlp",
    title="Columns, then rows",
    chapter="03",
    reference=parallel_mlp,
    cases=[_case(3, 4, 8), _case(5, 2, 6)],
    labels=["3 tokens, hidden 4, 8 wide", "5 tokens, hidden 2, 6 wide"],
    observe=_output_and_gradients,
    ranks=RANKS,
    targets=[_one_all_reduce_each_way],
    mistakes=MISTAKES,
    hints=[
        "Columns of A: functional.linear(x, w_in, b_in) is this rank's slice, and GELU goes "
        "element by element. Rows of B: functional.linear(z, w_out) is a part of a sum.",
        "class F(torch.autograd.Function) has two static methods, forward(ctx, x) and "
        "backward(ctx, gradient). f returns x.view_as(x) and group.all_reduce(gradient).",
        "g is the reverse: forward sums, backward returns the gradient as it is. "
        "y = G.apply(part) + b_out.",
    ],
)

register(MLP)
