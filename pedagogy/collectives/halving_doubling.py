"""Halving-doubling all-reduce: the bytes of a ring in the steps of a tree.

How it works
    *Recursive halving*: a rank and a partner N/2 away each send the half that the other will own
    and add what they get to the half that they keep; then the same with a partner N/4 away and
    half of the half, until each owns the sum of 1/N of the tensor. *Recursive doubling* runs the
    same exchanges backwards and puts the parts together. With 4 ranks, what rank 0 owns:

        halving    [0 1 2 3]  --2-->  [0 1]  --1-->  [0]
        doubling   [0]        --1-->  [0 1]  --2-->  [0 1 2 3]

    The number of ranks must be a power of two, so the ranks beyond the largest one fold in first:
    each gives its tensor to a rank inside, and gets the finished sum at the end.

What it costs
    2 log2 P steps and 2(P-1)/P of the tensor for P = 2^k ranks: best of both in theory. The
    partners are far apart, so on a real network many messages cross the same links, where a ring's
    never do; and folding in costs two more steps with the whole tensor.

Source: Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, section 4.5.
"""

from __future__ import annotations

import torch

from pedagogy.collectives.chunks import flat_copy
from pedagogy.ranks import Group


def halving_doubling_all_reduce(group: Group, x: torch.Tensor) -> torch.Tensor:
    """Every rank gets the sum of the ranks' tensors, as a new tensor.

    **Shapes** any, with any strides; the same shape and dtype on all ranks (not checked).
    **Bytes** with P = 2^k <= N ranks in the exchange, each of them sends 2(P-1)/P of `x`; N - P
    ranks send `x` once more, each to a partner that sends the sum back.
    **Raises** ValueError for bool. **Source** Rabenseifner 2004.
    """
    result = flat_copy(x)
    received = torch.empty_like(result)
    inside = 2 ** (group.size.bit_length() - 1)  # the largest power of two that fits
    if group.rank >= inside:
        group.send_(result, group.rank - inside)
        group.recv_(result, group.rank - inside)
        return result.view(x.shape)
    outsider = group.rank + inside
    if outsider < group.size:
        result += group.recv_(received, outsider)
    _halve_and_double(group, result, received, inside)
    if outsider < group.size:
        group.send_(result, outsider)
    return result.view(x.shape)


def _halve_and_double(
    group: Group, result: torch.Tensor, received: torch.Tensor, inside: int
) -> None:
    """Afterwards `result` holds the sum over ranks 0 to `inside - 1`, a power of two."""
    start, end = 0, result.numel()  # what this rank still owns
    history = []
    distance = inside // 2
    while distance:
        partner = group.rank ^ distance
        middle = (start + end + 1) // 2
        low, high = slice(start, middle), slice(middle, end)
        kept, given = (low, high) if group.rank < partner else (high, low)
        group.exchange([(result[given], partner)], [(received[kept], partner)])
        result[kept] += received[kept]
        history.append((partner, kept, given))
        start, end = kept.start, kept.stop
        distance //= 2
    for partner, kept, given in reversed(history):
        group.exchange([(result[kept], partner)], [(result[given], partner)])
