"""Chapter 03: the layer of `parallel_mlp` with one part exchanged, and what to say about it.

A layer on two ranks is five steps, f, columns, GELU, rows, g, and a bias behind them. Most answers
that go wrong have one step too many, too few or in another place, so a mistake is `_layer` with one
other argument.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pedagogy.ranks import Group


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


def _sums_twice(group: Group, x: Tensor) -> Tensor:
    return _Pair.apply(x, group.all_reduce, group.all_reduce)


def _nothing(group: Group, x: Tensor) -> Tensor:
    return x


def _layer(
    group, x, w_in, b_in, w_out, b_out, f=_copies, bend=functional.gelu, g=_sums, bias=_nothing
):
    z = bend(functional.linear(f(group, x), w_in, b_in))
    return g(group, functional.linear(z, w_out)) + bias(group, b_out)


def _no_f(group, *tensors):
    return _layer(group, *tensors, f=_nothing)


def _no_g(group, *tensors):
    return _layer(group, *tensors, g=_nothing)


def _g_without_history(group, *tensors):
    return _layer(group, *tensors, g=lambda group, x: group.all_reduce(x))


def _g_sums_twice(group, *tensors):
    return _layer(group, *tensors, g=_sums_twice)


def _f_sums_twice(group, *tensors):
    return _layer(group, *tensors, f=_sums_twice)


def _f_and_g_swapped(group, *tensors):
    return _layer(group, *tensors, f=_sums, g=_copies)


def _g_before_gelu(group, *tensors, behind=_nothing):
    return _layer(group, *tensors, bend=lambda h: functional.gelu(_sums(group, h)), g=behind)


def _g_before_gelu_too(group, *tensors):
    return _g_before_gelu(group, *tensors, behind=_sums)


def _no_gelu(group, *tensors):
    return _layer(group, *tensors, bend=lambda h: h)


def _no_b_in(group, x, w_in, b_in, w_out, b_out):
    return _layer(group, x, w_in, None, w_out, b_out)


def _no_b_out(group, x, w_in, b_in, w_out, b_out):
    return _layer(group, x, w_in, b_in, w_out, 0)


def _bias_on_every_rank(group, x, w_in, b_in, w_out, b_out):
    z = functional.gelu(functional.linear(_copies(group, x), w_in, b_in))
    return _sums(group, functional.linear(z, w_out, b_out))


def _bias_divided(group, x, w_in, b_in, w_out, b_out):
    return _bias_on_every_rank(group, x, w_in, b_in, w_out, b_out / group.size)


def _bias_on_rank_0(group, x, w_in, b_in, w_out, b_out):
    own = b_out if group.rank == 0 else b_out * 0
    return _bias_on_every_rank(group, x, w_in, b_in, w_out, own)


def _bias_through_f(group, *tensors):
    return _layer(group, *tensors, bias=_copies)


def _weights_gathered(group, x, w_in, b_in, w_out, b_out):
    w_in, b_in = (torch.cat(group.all_gather(slice_)) for slice_ in (w_in, b_in))
    z = functional.gelu(functional.linear(x, w_in, b_in))
    return functional.linear(z, torch.cat(group.all_gather(w_out), 1), b_out)


_BENT = (
    "GELU belongs to single columns of A, and each rank has whole ones: a sum before it adds "
    "columns that have nothing to do with one another. g stands behind the rows of B, once."
)

MISTAKES = [
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
        _f_and_g_swapped,
        "f and g have changed places: x is whole on every rank and wants no sum forward, the parts "
        "behind the rows of B do.",
    ),
    (_g_before_gelu, _BENT),
    (_g_before_gelu_too, _BENT),
    (_no_gelu, "GELU is missing: it stands between the columns of A and the rows of B."),
    (_no_b_in, "b_in is missing: each rank adds its slice of it to its columns, before GELU."),
    (_no_b_out, "b_out is missing: every rank adds it once, behind g."),
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
    (
        _bias_through_f,
        "b_out went through f, whose backward sums gradients that are whole on every rank already: "
        "its gradient is group.size times too large. Add it as it is.",
    ),
    (
        _weights_gathered,
        "The weights are gathered, so every rank computes the whole layer, and the slices get no "
        "gradient. They stay where they are: a sum of the results is enough.",
    ),
]
