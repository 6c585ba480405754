"""Chapter 01: all-reduce from messages, as a ring and by halving and doubling."""

from __future__ import annotations

import torch
from torch import Tensor

from pedagogy.costs import communication
from pedagogy.exercises.engine import Exercise, bytes_sent_at_most
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group

# --- the ring --------------------------------------------------------------------------------


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


def _tensor_of(shape):
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
    cases=[_tensor_of(shape) for shape in RING_SHAPES],
    ranks=4,
    targets=[bytes_sent_at_most(_ring_limit(4))],
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
            "The sum is right, but the whole tensor goes around: cut it into group.size chunks, "
            "and each step carries one.",
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

# --- halving and doubling --------------------------------------------------------------------


def halve_and_double(group: Group, x: Tensor) -> Tensor:
    """The sum of the ranks' tensors, in 2 log2 N steps; N is a power of two and divides numel."""
    result = x.flatten().clone()
    start, end, distance = 0, result.numel(), group.size // 2
    history = []
    while distance:
        partner, middle = group.rank ^ distance, (start + end) // 2
        low, high = slice(start, middle), slice(middle, end)
        kept, given = (low, high) if group.rank < partner else (high, low)
        received = torch.empty_like(result[kept])
        group.exchange([(result[given], partner)], [(received, partner)])
        result[kept] += received
        history.append((partner, kept, given))
        start, end, distance = kept.start, kept.stop, distance // 2
    for partner, kept, given in reversed(history):
        group.exchange([(result[kept], partner)], [(result[given], partner)])
    return result.view(x.shape)


def _halved(group, x):
    result = x.flatten().clone()
    start, end, distance, history = 0, result.numel(), group.size // 2, []
    while distance:
        partner, middle = group.rank ^ distance, (start + end) // 2
        low, high = slice(start, middle), slice(middle, end)
        kept, given = (low, high) if group.rank < partner else (high, low)
        received = torch.empty_like(result[kept])
        group.exchange([(result[given], partner)], [(received, partner)])
        result[kept] += received
        history.append((partner, kept, given))
        start, end, distance = kept.start, kept.stop, distance // 2
    return result, history


def _never_doubled(group, x):
    return _halved(group, x)[0].view(x.shape)


def _doubled_in_the_same_order(group, x):
    result, history = _halved(group, x)
    for partner, kept, given in history:
        group.exchange([(result[kept], partner)], [(result[given], partner)])
    return result.view(x.shape)


def _whole_tensors(group, x):
    result, distance = x.flatten().clone(), group.size // 2
    while distance:
        partner = group.rank ^ distance
        received = torch.empty_like(result)
        group.exchange([(result, partner)], [(received, partner)])
        result += received
        distance //= 2
    return result.view(x.shape)


HALVING = Exercise(
    name="halve_and_double",
    title="A ring's bytes in a tree's steps",
    chapter="01",
    reference=halve_and_double,
    cases=[_tensor_of((8,)), _tensor_of((3, 4))],
    ranks=4,
    targets=[bytes_sent_at_most(round(communication.ring_all_reduce_bytes(4 * 20, 4)))],
    mistakes=[
        (
            _never_doubled,
            "Each rank ends with the finished sum of one quarter only: the exchanges must be run "
            "backwards to bring the quarters together.",
        ),
        (
            _doubled_in_the_same_order,
            "The second half repeats the exchanges from far to near. The last pair that halved "
            "must be the first to double: go through them in reverse.",
        ),
        (
            _whole_tensors,
            "The sum is right in log2 N steps, but each carries the whole tensor (recursive "
            "doubling). Give away one half, keep and add to the other.",
        ),
    ],
    hints=[
        "The partner at a distance d, a power of two, is group.rank ^ d.",
        "Remember [start, end), what you still own. The lower of two partners keeps the lower "
        "half.",
        "Keep a list of (partner, kept, given); the second half is the same list reversed, sending "
        "kept and receiving given.",
    ],
)

register(RING, HALVING)
