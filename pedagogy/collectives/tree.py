"""Tree all-reduce: few steps, each with the whole tensor.

How it works
    Ranks add in pairs, then pairs of pairs (a binomial tree), until rank 0 holds the sum; then the
    same messages run backwards and carry the sum down. With 5 ranks:

        reduce     1 -> 0, 3 -> 2   |   2 -> 0   |   4 -> 0
        broadcast  0 -> 4           |   0 -> 2   |   0 -> 1, 2 -> 3

What it costs
    2 ceil(log2 N) steps against a ring's 2(N-1): for small tensors, where the latency of a message
    counts, the tree wins. Each step carries the whole tensor, and most ranks are idle in most
    steps: for large tensors the ring wins. `costs.communication.all_reduce_seconds` says where.

What real systems do differently
    NCCL's double binary tree lets every rank be an inner node of one tree and a leaf of another,
    and cuts the tensor into pieces: latency of a tree, bandwidth of a ring.

Source: Thakur, Rabenseifner and Gropp 2005, section 4.5 (reduce by a binomial tree).
"""

from __future__ import annotations

import torch

from pedagogy.collectives.chunks import flat_copy
from pedagogy.ranks import Group


def tree_steps(num_ranks: int) -> list[list[tuple[int, int]]]:
    """The steps in which a binomial tree reduces to rank 0: in each, the (sender, receiver) pairs.

    The broadcast is the same list read backwards, with sender and receiver exchanged.
    **Raises** ValueError where there is no rank.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; a tree has 1 rank or more")
    distances = [2**level for level in range((num_ranks - 1).bit_length())]
    return [
        [(rank, rank - distance) for rank in range(distance, num_ranks, 2 * distance)]
        for distance in distances
    ]


def tree_all_reduce(group: Group, x: torch.Tensor) -> torch.Tensor:
    """Every rank gets the sum of the ranks' tensors, as a new tensor.

    **Shapes** any, with any strides; the same shape and dtype on all ranks (not checked).
    **Bytes** all ranks together send 2(N-1) times `x`, as a ring does; rank 0 sends ceil(log2 N) of
    them. **Raises** ValueError for bool. **Source** Thakur et al. 2005.
    """
    result = flat_copy(x)
    received = torch.empty_like(result)
    steps = tree_steps(group.size)
    for sender, receiver in (pair for step in steps for pair in step):
        if group.rank == sender:
            group.send_(result, receiver)
        elif group.rank == receiver:
            result += group.recv_(received, sender)
    for sender, receiver in (pair for step in reversed(steps) for pair in step):
        if group.rank == receiver:
            group.send_(result, sender)
        elif group.rank == sender:
            group.recv_(result, receiver)
    return result.view(x.shape)
