"""Communication that autograd can pass through.

The problem
    `group.all_reduce(x)` returns a tensor that knows nothing of `x`: backward stops there. A layer
    that is cut over ranks communicates in the *middle* of its forward, so each communication needs
    a backward, and the backward of a communication is a communication too.

How it works
    The gradient of "everyone gets a copy" is "sum over everyone", and the reverse. So the functions
    come in pairs, each the other's backward:

        forward             backward            name                    whose name
        nothing             all_reduce          copy_to                 Megatron's f
        all_reduce          nothing             reduce_from             Megatron's g
        all_gather          keep my slice       gather_from
        keep my slice       all_gather          split_to
        all_gather          reduce_scatter      gather                  sequence parallelism's g
        reduce_scatter      all_gather          reduce_scatter          its g bar
        all_to_all          all_to_all          all_to_all              mixture of experts

    `gather_from` and `gather` have the same forward. Where the ranks go on to compute *the same*
    thing with the whole, each already holds the full gradient: keep the slice. Where each computes
    something of its own with it, the gradients must be summed first: reduce_scatter.

The trap
    A gradient may arrive with any strides: that of a sum is one element, expanded. Who hands its
    raw storage to the transport, or reduces a contiguous copy and returns the original, gets a
    wrong gradient without any error. `Group` takes any strides and returns new tensors.

Sources: Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.function import once_differentiable

from pedagogy.ranks import Group

Move = Callable[[torch.Tensor], torch.Tensor]
Swap = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class _Pair(torch.autograd.Function):
    """`forward_move` on the way there, `backward_move` on the gradient."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, forward_move: Move, backward_move: Move) -> torch.Tensor:
        ctx.backward_move = backward_move
        return forward_move(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.backward_move(gradient), None, None


class _Exchange(torch.autograd.Function):
    """`swap` gives rank j the j-th tensor of every rank; gradients go home by the same way."""

    @staticmethod
    def forward(ctx, swap: Swap, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.swap = swap
        return tuple(swap(list(xs)))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.swap(list(gradients))


def copy_to(group: Group, x: torch.Tensor) -> torch.Tensor:
    """`x` as it is; its gradient is summed over the ranks. Megatron's f."""
    return _Pair.apply(x, _same, group.all_reduce)


def reduce_from(group: Group, x: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' `x`; its gradient passes as it is. Megatron's g."""
    return _Pair.apply(x, group.all_reduce, _same)


def gather_from(group: Group, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The ranks' `x`, concatenated along `dim`; backward keeps this rank's slice."""
    return _Pair.apply(x, _gather_move(group, dim), _slice_move(group, dim))


def split_to(group: Group, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """This rank's slice of `x` along `dim`; backward concatenates the ranks' gradients.

    **Raises** ValueError where the ranks do not divide the dimension.
    """
    _check_divides(group, x, dim)
    return _Pair.apply(x, _slice_move(group, dim), _gather_move(group, dim))


def gather(group: Group, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The ranks' `x`, concatenated along `dim`; backward sums the gradients and scatters them."""
    return _Pair.apply(x, _gather_move(group, dim), _scatter_move(group, dim))


def reduce_scatter(group: Group, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """This rank's slice along `dim` of the sum of the ranks' `x`; backward gathers the gradients.

    **Raises** ValueError where the ranks do not divide the dimension.
    """
    _check_divides(group, x, dim)
    return _Pair.apply(x, _scatter_move(group, dim), _gather_move(group, dim))


def all_to_all(group: Group, xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Rank j gets `xs[j]` of every rank; the gradients travel back the same way.

    **Shapes** free, rows of zero included. **Raises** ValueError as `Group.all_to_all`.
    """
    return exchange_by(group.all_to_all, xs)


def exchange_by(swap: Swap, xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """`all_to_all` by another way: `swap` must give what `group.all_to_all` would give."""
    return list(_Exchange.apply(swap, *xs))


def _same(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


def _gather_move(group: Group, dim: int) -> Move:
    return lambda x: torch.cat(group.all_gather(x), dim)


def _slice_move(group: Group, dim: int) -> Move:
    return lambda x: x.chunk(group.size, dim)[group.rank].clone()


def _scatter_move(group: Group, dim: int) -> Move:
    return lambda x: group.reduce_scatter(list(x.chunk(group.size, dim)))


def _check_divides(group: Group, x: torch.Tensor, dim: int) -> None:
    if x.shape[dim] % group.size:
        raise ValueError(
            f"dimension {dim} of a tensor of shape {tuple(x.shape)} is cut over {group.size} "
            f"ranks, but {x.shape[dim]} is not a multiple of {group.size}"
        )
