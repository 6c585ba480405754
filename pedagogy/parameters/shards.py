"""A tensor cut into equal pieces, one for each rank, padded where it does not divide.

Why it exists
-------------
ZeRO keeps a piece of every tensor on each rank, and collectives such as all_gather want pieces of
equal size. 10 values on 4 ranks are pieces of 3: ranks 0 to 2 hold 3, rank 3 holds 1 and two
zeros. The padding is at the end of the full tensor, never inside it; it may be a whole shard (5
values on 4 ranks are 2, 2, 1 and 0). Zeros are harmless to a sum and to a norm, and an optimizer
leaves a zero with a zero gradient where it is.

What it costs
-------------
ceil(n / N) values on each rank: at most N - 1 values of padding in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from pedagogy.ranks import Group


def shard_numel(numel: int, size: int) -> int:
    """Values on each of `size` ranks, padding included: ceil(numel / size).

    **Raises** ValueError if there is no rank.
    """
    if size < 1:
        raise ValueError(f"{size} ranks: there must be at least 1")
    return -(-numel // size)


def shard(full: Tensor, rank: int, size: int) -> Tensor:
    """The piece of `full` that rank `rank` of `size` holds: a new 1-D tensor, zeros at the end.

    **Shapes** any -> `(ceil(numel / size),)`.
    **Raises** ValueError if there is no such rank.
    """
    width = shard_numel(full.numel(), size)
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size} ranks: must be between 0 and {size - 1}")
    piece = full.detach().reshape(-1)[rank * width : (rank + 1) * width]
    return functional.pad(piece, (0, width - piece.numel())).clone()


def unshard(shards: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """The full tensor from the shards of all ranks, in order; a new tensor.

    **Shapes** `(ceil(numel / size),)` each -> `shape`.
    **Raises** ValueError if the shards do not have the size that `shape` needs.
    """
    numel = math.prod(shape)
    width = shard_numel(numel, len(shards))
    sizes = [piece.numel() for piece in shards]
    if any(size != width for size in sizes):
        raise ValueError(
            f"shards of {sizes} values for a tensor of shape {tuple(shape)}: "
            f"each of {len(shards)} must have {width}"
        )
    return torch.cat([piece.reshape(-1) for piece in shards])[:numel].view(tuple(shape))


def gather(group: Group, piece: Tensor, shape: Sequence[int]) -> Tensor:
    """The full tensor on every rank, from the shard that each rank holds.

    **Bytes** each rank sends (N-1)/N of the full tensor, padding included.
    """
    return unshard(group.all_gather(piece), shape)
