"""SM3: a bound on every squared sum, from one number for each row and each column.

How it works
------------
Adagrad divides by the root of the sum of all squared gradients, a number for each parameter. SM3
covers the parameters with sets, for a matrix its rows and its columns, and keeps one number mu for
each set. A parameter's sum is then bounded by the least mu of the sets that hold it:

    I    mu(r) += max over j in r of g_j^2                     nu_i = min over r with i of mu(r)
    II   nu_i = min over r with i of mu(r) + g_i^2             mu(r) = max over j in r of nu_j

II is tighter: it never exceeds I, and neither is ever below the true sum. n + m numbers for a
matrix; a vector is its own cover, and SM3 is Adagrad there.

The update is lr g / sqrt(nu), and 0 where nu is 0. Like Adagrad's, it only ever shrinks.

Source: Anil, Gupta, Koren, Singer 2019, algorithms SM3-I and SM3-II.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pedagogy.optimizers.adam import PerParameter, check_range


class SM3(PerParameter):
    """SM3-I or II (`variant` 1 or 2); `momentum` averages the updates and costs 4 bytes each.

    **Memory** without momentum: 4 bytes for each index of each dimension, n + m for a matrix.
    **Raises** ValueError for another variant, a negative rate, or a momentum outside 0 .. 1.
    Source: Anil et al. 2019, sections 3 and 4.
    """

    def __init__(
        self, params: Iterable, lr: float, momentum: float = 0.0, variant: int = 2
    ) -> None:
        check_range(lr=lr)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}: must be at least 0 and below 1")
        if variant not in (1, 2):
            raise ValueError(f"variant is {variant}: SM3-I is 1, SM3-II is 2")
        super().__init__(params, {"lr": lr, "momentum": momentum, "variant": variant})

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Bound the sums of squares, divide by their root."""
        gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))  # sums in 16
        if "covers" not in state:  # bits soon stop growing, and are no bound any more
            sizes = parameter.shape or (1,)
            state["covers"] = [gradient.new_zeros(size) for size in sizes]
        bound = sm3_one if group["variant"] == 1 else sm3_two
        nu = bound(state["covers"], gradient.square())
        update = torch.where(nu > 0, gradient / nu.sqrt(), 0.0)
        if group["momentum"]:
            mean = state.setdefault("mean", torch.zeros_like(update))
            update = mean.lerp_(update, 1 - group["momentum"])
        parameter.sub_(update, alpha=group["lr"])


def sm3_one(covers: list[Tensor], square: Tensor) -> Tensor:
    """SM3-I: each cover grows by the largest square in it; the bound is read afterwards."""
    for dim, cover in enumerate(covers):
        cover += largest(square, dim)
    return least(covers, square)


def sm3_two(covers: list[Tensor], square: Tensor) -> Tensor:
    """SM3-II: the bound grows by each square; each cover is the largest bound in it."""
    nu = least(covers, square) + square
    for dim, cover in enumerate(covers):
        cover.copy_(largest(nu, dim))
    return nu


def least(covers: list[Tensor], like: Tensor) -> Tensor:
    """For each element the least of its covers' numbers; the shape of `like`."""
    if not like.dim():
        return covers[0].view(())
    shaped = []
    for dim, cover in enumerate(covers):
        shape = [1] * like.dim()
        shape[dim] = -1
        shaped.append(cover.view(shape))
    nu = shaped[0].expand_as(like)
    for other in shaped[1:]:
        nu = torch.minimum(nu, other)
    return nu


def largest(values: Tensor, dim: int) -> Tensor:
    """The largest value of each slice along `dim`: (values.shape[dim],)."""
    if not values.dim():
        return values.view(1)
    return values.movedim(dim, 0).flatten(1).amax(1) if values.dim() > 1 else values
