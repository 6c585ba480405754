"""Chapter 03: a feed-forward layer cut over ranks, with f and g made by hand.

The loss of a vocabulary that is cut stands in `chapter03_loss`, attention in pieces in
`chapter03_softmax` and `chapter03_ring`, bytes in `chapter03_bytes`, the predictions in
`chapter03_predictions`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pedagogy.exercises.attempt import Outcome
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


# --- mistakes: the same layer with one part exchanged ---------------------------------------------


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, there: Callable, back: Callable):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient), None, None


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def _copies(group: Group, x: Tensor) -> Tensor:
    return _Pair.apply(x, _same, group.all_reduce)


def _sums(group: Group, x: Tensor) -> Tensor:
    return _Pair.apply(x, group.all_reduce, _same)


def _layer(group, x, w_in, b_in, w_out, b_out, f=_copies, g=_sums):
    z = functional.gelu(functional.linear(f(group, x), w_in, b_in))
    return g(group, functional.linear(z, w_out)) + b_out


def _no_f(group, *tensors):
    return _layer(group, *tensors, f=lambda group, x: x)


def _no_g(group, *tensors):
    return _layer(group, *tensors, g=lambda group, x: x)


def _g_without_history(group, *tensors):
    return _layer(group, *tensors, g=lambda group, x: group.all_reduce(x))


def _g_sums_twice(group, *tensors):
    return _layer(group, *tensors, g=lambda group, x: _Pair.apply(x, *[group.all_reduce] * 2))


def _f_sums_twice(group, *tensors):
    return _layer(group, *tensors, f=lambda group, x: _Pair.apply(x, *[group.all_reduce] * 2))


def _bias_on_every_rank(group, x, w_in, b_in, w_out, b_out):
    z = functional.gelu(functional.linear(_copies(group, x), w_in, b_in))
    return _sums(group, functional.linear(z, w_out, b_out))


def _bias_divided(group, x, w_in, b_in, w_out, b_out):
    return _bias_on_every_rank(group, x, w_in, b_in, w_out, b_out / group.size)


def _bias_on_rank_0(group, x, w_in, b_in, w_out, b_out):
    own = b_out if group.rank == 0 else b_out * 0
    return _bias_on_every_rank(group, x, w_in, b_in, w_out, own)


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
    mistakes=[
        (
            _no_f,
            "The output is right, and the gradient of x is this rank's part of a sum: each rank "
            "used x for its own columns. Send x through f, whose backward is an all_reduce.",
        ),
        (
            _no_g,
            "Each rank has its part of every dot product, and nobody adds the parts up: that is g.",
        ),
        (
            _g_without_history,
            "group.all_reduce returns a tensor that knows nothing of its argument, so backward "
            "stops there. Put it into the forward of an autograd Function.",
        ),
        (
            _g_sums_twice,
            "g's backward sums too. Behind g every rank computes the same, so each already has the "
            "whole gradient of y, and their sum is group.size times too large.",
        ),
        (
            _f_sums_twice,
            "f sums x in the forward. All ranks hold the same x: f hands it on as it is, and sums "
            "its gradient alone.",
        ),
        (
            _bias_on_every_rank,
            "b_out is added on every rank before the sum, so it is in y group.size times. Add it "
            "once, behind g.",
        ),
        (
            _bias_divided,
            "b_out / group.size before the sum gives the right y and a gradient of b_out that is "
            "divided as well. Add b_out whole, behind g.",
        ),
        (
            _bias_on_rank_0,
            "Only rank 0 adds b_out, so the others' copies get no gradient and will drift apart "
            "from it. Add it on every rank, behind g.",
        ),
    ],
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
