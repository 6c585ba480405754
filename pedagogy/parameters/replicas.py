"""Make replicas equal, and keep them equal.

Why it exists
-------------
Replicas that start from different weights never agree again, however well their gradients are
averaged; so they begin with a broadcast, buffers included. After that, averaging the same
gradients everywhere keeps them equal. Both move many tensors, so both go bucket by bucket: one
message for a bucket, and one bucket's worth of extra memory.

Every rank must pass the same tensors in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pedagogy.parameters.buckets import BUCKET_BYTES, bucket
from pedagogy.parameters.flat import flatten, unflatten, unique_parameters

if TYPE_CHECKING:
    from pedagogy.ranks import Group


@torch.no_grad()
def broadcast(
    group: Group, tensors: Iterable[Tensor], source: int = 0, bucket_bytes: int = BUCKET_BYTES
) -> None:
    """All tensors have the values of rank `source`, in place; any dtype, tied tensors once.

    **Bytes** the sum of the sizes, from `source` to every other rank.
    **Memory** one bucket: up to `bucket_bytes` and one tensor.
    """
    for members in bucket(unique_parameters(tensors), bucket_bytes):
        flat = flatten(members)
        group.broadcast_(flat, source)
        _copy_back(flat, members)


@torch.no_grad()
def average(group: Group, tensors: Iterable[Tensor], bucket_bytes: int = BUCKET_BYTES) -> None:
    """All tensors hold the mean over the group, in place; tied tensors once.

    **Bytes** those of one all_reduce over the sum of the sizes.
    **Memory** one bucket: up to `bucket_bytes` and one tensor.
    **Raises** ValueError for tensors of integers, whose mean would be rounded.
    """
    tensors = unique_parameters(tensors)
    whole = [str(t.dtype) for t in tensors if not (t.is_floating_point() or t.is_complex())]
    if whole:
        raise ValueError(f"a mean of {whole[0]} would be rounded: {len(whole)} such tensors")
    _reduce(group, tensors, "mean", bucket_bytes)


@torch.no_grad()
def add_up(group: Group, tensors: Iterable[Tensor], bucket_bytes: int = BUCKET_BYTES) -> None:
    """All tensors hold the sum over the group, in place; tied tensors once.

    **Bytes** and **Memory** as `average`.
    """
    _reduce(group, unique_parameters(tensors), "sum", bucket_bytes)


def _reduce(group: Group, tensors: list[Tensor], op: str, bucket_bytes: int) -> None:
    for members in bucket(tensors, bucket_bytes):
        _copy_back(group.all_reduce_(flatten(members), op), members)


def _copy_back(flat: Tensor, tensors: list[Tensor]) -> None:
    """Write each piece of the buffer into its tensor."""
    for tensor, piece in zip(tensors, unflatten(flat, tensors), strict=True):
        tensor.copy_(piece)
