"""Chapter 01: a ring all-reduce from messages. Halving and doubling is in `chapter01_halving`."""

from __future__ import annotations

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise, bytes_sent_at_most, messages_only
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group


def ring_sum(group: Group, x: Tensor) -> Tensor:
    """The sum of the ranks' tensors; each rank talks to its two neighbours only."""
    rank, size = group.rank, group.size
    right, left = (rank + 1) % size, (rank - 1) % size
    result = x.flatten().clone()
    chunks = result.tensor_split(size)  # views: what is written to them is in `result`
    for step in range(size - 1):  # reduce-scatter
        sent, received = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        buffer = torch.empty_like(received)
        group.exchange([(sent, right)], [(buffer, left)])
        received += buffer
    for step in range(size - 1):  # all-gather
        sent, received = chunks[(rank - step + 1) % size], chunks[(rank - step) % size]
        group.exchange([(sent, right)], [(received, left)])
    return result.view(x.shape)


def _half_a_ring(group, x):
    """Reduce-scatter, as it should be: the mistakes below come after it."""
    rank, size = group.rank, group.size
    result = x.flatten().clone()
    chunks = result.tensor_split(size)
    for step in range(size - 1):
        sent, received = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        buffer = torch.empty_like(received)
        group.exchange([(sent, (rank + 1) % size)], [(buffer, (rank - 1) % size)])
        received += buffer
    return result, chunks


def _no_all_gather(group, x):
    return _half_a_ring(group, x)[0].view(x.shape)


def _gathered(group, chunks, first_sent):
    rank, size = group.rank, group.size
    for step in range(size - 1):
        sent, received = (chunks[(rank + first_sent - step - i) % size] for i in (0, 1))
        group.exchange([(sent, (rank + 1) % size)], [(received, (rank - 1) % size)])


def _gathers_from_its_own_chunk(group, x):
    result, chunks = _half_a_ring(group, x)
    _gathered(group, chunks, 0)
    return result.view(x.shape)


def _adds_in_both_halves(group, x):
    result, chunks = _half_a_ring(group, x)
    rank, size = group.rank, group.size
    for step in range(size - 1):
        received = chunks[(rank - step) % size]
        buffer = torch.empty_like(received)
        sends = [(chunks[(rank + 1 - step) % size], (rank + 1) % size)]
        group.exchange(sends, [(buffer, (rank - 1) % size)])
        received += buffer
    return result.view(x.shape)


def _all_receive_first(group, x):
    result = x.clone()
    for _ in range(group.size - 1):
        result = x + group.recv((group.rank - 1) % group.size)
        group.send(result, (group.rank + 1) % group.size)
    return result


def _whole_tensor_around(group, x):
    result, passed = x.clone(), x.clone()
    for _ in range(group.size - 1):
        received = torch.empty_like(passed)
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        group.exchange([(passed, right)], [(received, left)])
        result, passed = result + received, received
    return result


RING_SHAPES = [(8,), (3, 5)]


def tensor_of(shape):
    """A case: a tensor of that shape, another one on each rank."""

    def make(rank: int) -> tuple:
        return (torch.randn(shape, generator=torch.Generator().manual_seed(rank)),)

    return make


def _ring_limit(ranks: int) -> int:
    """Bytes that a rank sends at most: 2(N-1) chunks, of which none is above ceil(n/N)."""
    numels = [torch.Size(shape).numel() for shape in RING_SHAPES]
    return sum(4 * 2 * (ranks - 1) * -(-numel // ranks) for numel in numels)


RING = Exercise(
    name="ring_sum",
    title="A ring all-reduce",
    chapter="01",
    reference=ring_sum,
    cases=[tensor_of(shape) for shape in RING_SHAPES],
    labels=["8 elements", "15 elements in 3 rows"],
    ranks=4,
    targets=[messages_only, bytes_sent_at_most(_ring_limit(4))],
    mistakes=[
        (
            _no_all_gather,
            "The second half is missing: after the reduce-scatter rank r holds one finished chunk, "
            "r+1, and partial sums in the others.",
        ),
        (
            _gathers_from_its_own_chunk,
            "Each chunk holds the values of one rank only. Either the first half stores what "
            "arrives instead of adding it, or the second half starts with chunk r: it is chunk r+1 "
            "that rank r has finished.",
        ),
        (
            _adds_in_both_halves,
            "In the second half the chunks that arrive are finished: store them; adding counts "
            "some ranks twice.",
        ),
        (
            _all_receive_first,
            "All ranks receive before they send, so nobody ever sends. Use group.exchange, which "
            "does both at once.",
        ),
        (
            _whole_tensor_around,
            "Whole tensors travel, around the ring or through one rank: cut yours into group.size "
            "chunks, and each step carries one.",
        ),
    ],
    hints=[
        "chunks = result.tensor_split(group.size) gives views: writing to a chunk writes to "
        "result.",
        "Step s of the first half: send chunk (rank - s) to the right, receive chunk "
        "(rank - s - 1) from the left into a buffer, and add it. All modulo group.size.",
        "Step s of the second half: send chunk (rank - s + 1), receive chunk (rank - s) straight "
        "into its place. group.exchange([(sent, right)], [(received, left)]) does both at once.",
    ],
)

register(RING)
