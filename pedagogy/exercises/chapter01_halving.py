"""Chapter 01: all-reduce from messages by halving and doubling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pedagogy.costs import communication
from pedagogy.exercises.attempt import Outcome
from pedagogy.exercises.chapter01_rings import ring_sum, tensor_of
from pedagogy.exercises.engine import Exercise, bytes_sent_at_most, messages_only
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group


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


def _four_messages(function: Callable, outcome: Outcome) -> str | None:
    """A target: 2 log2 4 messages from a rank for each of the two tensors."""
    sent = max(len(outcome.trace.of("send", rank=rank)) for rank in range(4))
    return f"a rank sends {sent} messages for 2 tensors, and 8 are enough" if sent > 8 else None


HALVING = Exercise(
    name="halve_and_double",
    title="A ring's bytes in a tree's steps",
    chapter="01",
    reference=halve_and_double,
    cases=[tensor_of((8,)), tensor_of((3, 4))],
    labels=["8 elements", "12 elements in 3 rows"],
    ranks=4,
    targets=[
        messages_only,
        bytes_sent_at_most(round(communication.ring_all_reduce_bytes(4 * 20, 4))),
        _four_messages,
    ],
    mistakes=[
        (
            ring_sum,
            "This is a ring, or costs as many messages: with half of its range in each message a "
            "rank needs 2 log2 N of them.",
        ),
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

register(HALVING)
