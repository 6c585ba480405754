"""All-reduces as they are got wrong: `mutant(group, x)`, with the signature of the right ones."""

import itertools

import torch

from pedagogy import collectives
from pedagogy.collectives import ring_steps, tree_steps
from pedagogy.collectives.chunks import chunk_sizes


def ring_with_chunks_off_by_one(group, x):
    """The all-gather starts with the chunk that the reduce-scatter started with."""
    result = x.detach().clone().contiguous().view(-1)
    chunks = result.split(chunk_sizes(result.numel(), group.size))
    received = torch.empty_like(chunks[0])
    for step in ring_steps(group.size):
        out, into = step[group.rank], step[(group.rank - 1) % group.size]
        shift = -1 if out.phase == "all_gather" else 0
        out_chunk, into_chunk = (chunks[(t.chunk + shift) % group.size] for t in (out, into))
        buffer = received[: into_chunk.numel()]
        group.exchange([(out_chunk, out.receiver)], [(buffer, into.sender)])
        into_chunk.copy_(buffer + into_chunk if out.phase == "reduce_scatter" else buffer)
    return result.view(x.shape)


def ring_that_adds_in_both_phases(group, x):
    """The finished sums are added once more instead of stored."""
    result = x.detach().clone().contiguous().view(-1)
    chunks = result.split(chunk_sizes(result.numel(), group.size))
    for step in ring_steps(group.size):
        out, into = step[group.rank], step[(group.rank - 1) % group.size]
        buffer = torch.empty_like(chunks[into.chunk])
        group.exchange([(chunks[out.chunk], out.receiver)], [(buffer, into.sender)])
        chunks[into.chunk].add_(buffer)
    return result.view(x.shape)


def tree_without_the_broadcast(group, x):
    """Rank 0 has the sum, and nobody else."""
    result = x.detach().clone().contiguous()
    for sender, receiver in itertools.chain(*tree_steps(group.size)):
        if group.rank == sender:
            group.send_(result, receiver)
        elif group.rank == receiver:
            result = result + group.recv_(torch.empty_like(result), sender)
    return result


def ring_of_the_raw_storage(group, x):
    """The strides are ignored: what lies in memory from the first element on is sent."""
    raw = x.detach().as_strided((x.numel(),), (1,)).clone() if x.numel() > 1 else x
    return collectives.ring_all_reduce(group, raw).view(x.shape)


def ring_in_place(group, x):
    """The input is overwritten."""
    return x.copy_(collectives.ring_all_reduce(group, x)) if x.is_contiguous() else x.clone()


MUTANTS = [
    ring_with_chunks_off_by_one,
    ring_that_adds_in_both_phases,
    tree_without_the_broadcast,
    ring_in_place,
]
