"""Ring all-reduce: each rank talks to its two neighbours only, and every link is always busy.

How it works
    The tensor is cut into N chunks. In the first half (*reduce-scatter*, N-1 steps) each chunk
    travels once around the ring and is added to on the way; afterwards rank r holds the finished
    sum of chunk r+1. In the second half (*all-gather*, N-1 steps) the finished chunks travel
    around once more. With 3 ranks, what each rank sends to its right neighbour:

                        rank 0     rank 1     rank 2
        reduce_scatter  chunk 0    chunk 1    chunk 2      [1]  the rank's own part
                        chunk 2    chunk 0    chunk 1      [2]  what it received, plus its own part
        all_gather      chunk 1    chunk 2    chunk 0      [3]  finished sums, passed on as they are
                        chunk 0    chunk 1    chunk 2

What it costs
    2(N-1) messages of 1/N of the tensor each: 2(N-1)/N of the tensor in bytes, under twice the
    tensor for any N, and no algorithm that leaves the sum on all ranks sends less (Patarasuk and
    Yuan). The price is latency: 2(N-1) steps, one after the other, so a small tensor on many ranks
    is better served by a tree.

How it is kept fast
    A chunk is received straight into its place in the result, where the own part is added to it:
    no receive buffer, and one pass over the memory less. The receive of the next step is posted
    before this one's is waited for: gloo's sender asks first whether somebody waits, and so finds
    the answer there. Small tensors, all latency, gain most.

What real systems do differently
    gloo and NCCL cut each chunk once more, so that adding one piece overlaps receiving the next,
    and NCCL runs several rings over different links at once.

Sources: Patarasuk and Yuan 2009 (bandwidth-optimal all-reduce); Gibiansky 2017 (Baidu) and Sergeev
and Del Balso 2018 (Horovod), which brought it to training.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from pedagogy.collectives.chunks import chunk_sizes, flat
from pedagogy.ranks import Group


class Transfer(NamedTuple):
    """One message; `phase` is "reduce_scatter" (added on arrival) or "all_gather" (stored)."""

    sender: int
    receiver: int
    chunk: int
    phase: str


def ring_steps(num_ranks: int) -> list[list[Transfer]]:
    """The steps of a ring all-reduce, in each step one transfer by each rank, in order of ranks.

    **Raises** ValueError where there is no rank.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; a ring has 1 rank or more")
    phases = [("reduce_scatter", 0), ("all_gather", 1)]
    return [
        [
            Transfer(rank, (rank + 1) % num_ranks, (rank + shift - step) % num_ranks, phase)
            for rank in range(num_ranks)
        ]
        for phase, shift in phases
        for step in range(num_ranks - 1)
    ]


def ring_all_reduce(group: Group, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Every rank gets the sum of the ranks' tensors, as a new tensor, or in `out`.

    **Shapes** any, with any strides; the same shape and dtype on all ranks (not checked).
    **Bytes** each rank sends 2(N-1)/N of `x`; where N does not divide the number of elements, every
    chunk twice but for the two that it does not pass on.
    **Raises** ValueError for bool, or an `out` that is not dense, not like `x`, or a part of it.
    **Source** Patarasuk and Yuan 2009.
    """
    own = flat(x)
    result = torch.empty_like(own) if out is None else _checked(out, x).view(-1)
    if group.size == 1:
        return result.copy_(own).view(x.shape)
    sizes = chunk_sizes(own.numel(), group.size)
    own_chunks, chunks = own.split(sizes), result.split(sizes)
    left = (group.rank - 1) % group.size
    steps = [(step[group.rank], step[left]) for step in ring_steps(group.size)]
    sources = [own_chunks] + [chunks] * (len(steps) - 1)  # [1]
    sends = [
        (source[sent.chunk], sent.receiver)
        for source, (sent, _) in zip(sources, steps, strict=True)
    ]
    receives = [(chunks[received.chunk], received.sender) for _, received in steps]
    for step in _in_turn(group, sends, receives):
        _, received = steps[step]
        if received.phase == "reduce_scatter":
            chunks[received.chunk].add_(own_chunks[received.chunk])  # [2]
    return result.view(x.shape)


Message = tuple[torch.Tensor, int]  # what, and to or from which rank


def _in_turn(group: Group, sends: list[Message], receives: list[Message]) -> Iterator[int]:
    """Each send and receive in turn, as a pair; yields its number when the buffer is full."""
    if group.backend == "nccl":  # a pair must be grouped, so nothing can be posted ahead
        for step, pair in enumerate(zip(sends, receives, strict=True)):
            group.exchange([pair[0]], [pair[1]])
            yield step
        return
    sent = []
    ahead = group.irecv_(*receives[0])
    for step, send in enumerate(sends):
        current = ahead
        if step + 1 < len(receives):
            ahead = group.irecv_(*receives[step + 1])
        sent.append(group.isend_(*send))
        current.wait()
        yield step
        if step:
            sent.pop(0).wait()  # done long ago: the ring has gone on since
    sent.pop().wait()


def _checked(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if (out.shape, out.dtype) != (x.shape, x.dtype) or not out.is_contiguous():
        raise ValueError(
            f"out is {tuple(out.shape)} {out.dtype}, strides {out.stride()}; it must be dense, "
            f"{tuple(x.shape)} {x.dtype}"
        )
    if out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and out.numel():
        raise ValueError(f"out shares the memory of x ({x.numel()} elements), which is still read")
    return out
