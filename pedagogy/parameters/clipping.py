"""The norm of a gradient that no rank holds whole, with each parameter counted once.

Why it exists
-------------
Clipping scales all gradients by one factor that depends on the norm of *all* of them. When a model
is cut, no rank has them all, and some ranks hold the same ones: under tensor parallelism a weight
is sharded, a LayerNorm is replicated. Summing everything over the ranks counts the LayerNorm
twice; summing nothing leaves out the other shards. If ranks then disagree about the factor, their
replicas drift apart, silently.

How it works
------------
The caller sorts the gradients into *parts*: a part is the list of groups over which its tensors
are **cut**, and the tensors that this rank holds of it. Each part's sum of squares is all-reduced
over just those groups, and the parts are added:

    norm^2 = sum over parts of all_reduce(sum of squares of the part's tensors here)

So a replicated tensor belongs to a part without groups, `((), tensors)`, one cut by tensor
parallelism to `((tp,), tensors)`, one cut by stage and by tensor to `((pp, tp), tensors)`. Two
examples with two ranks: replicated gradients [3, 0], shards with squares 8 and 8: sqrt(9 + 8 + 8)
= 5. Adding all over the ranks gives sqrt(18 + 16) = 5.83; adding nothing, sqrt(9 + 8) = 4.12.

Every rank must name the same parts in the same order, an empty part included. A tied parameter
that lives on two stages is named on one of them. A tensor's norm is taken in fp32 (fp16 squares
would overflow), the sum over tensors in float64 on every rank, whatever their dtypes.

Source of the clipping rule: Pascanu, Mikolov, Bengio 2013, algorithm 1; the 1e-6 is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pedagogy.parameters.flat import unique_parameters

if TYPE_CHECKING:
    from pedagogy.ranks import Group


class Part(NamedTuple):
    """Gradients that are cut over the same groups, as far as this rank holds them."""

    groups: tuple[Group, ...]
    tensors: Sequence[Tensor]


@torch.no_grad()
def global_norm(parts: Sequence[Part | tuple]) -> Tensor:
    """The 2-norm of all gradients together, the same on all ranks; tied tensors count once.

    **Shapes** any -> `()`, float64.
    **Bytes** one all_reduce of a single number for each part and group.
    """
    parts = [Part(tuple(groups), unique_parameters(tensors)) for groups, tensors in parts]
    holders = [holder for part in parts for holder in (*part.tensors, *part.groups)]
    device = holders[0].device if holders else "cpu"
    total = torch.zeros((), dtype=torch.float64, device=device)
    for groups, tensors in parts:
        squares = torch.zeros_like(total)
        for tensor in map(_as_real, tensors):
            wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
            squares += torch.linalg.vector_norm(tensor, dtype=wide).double().square()
        for group in groups:
            squares = group.all_reduce(squares)
        total += squares
    return total.sqrt()


@torch.no_grad()
def clip_by_global_norm(parts: Sequence[Part | tuple], max_norm: float) -> Tensor:
    """All gradients are scaled, in place, so that their global norm is at most `max_norm`.

    Returns the norm before clipping. Gradients below the limit are multiplied by 1.
    **Raises** ValueError unless `max_norm` is positive.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm {max_norm}: must be positive")
    norm = global_norm(parts)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for tensor in unique_parameters(t for _, tensors in parts for t in tensors):
        tensor.mul_(factor.to(tensor.device, tensor.dtype))
    return norm


def _as_real(tensor: Tensor) -> Tensor:
    """A complex number counts as two real ones."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
