"""Chapter 00b: one message to a neighbour, and a broadcast along a tree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pedagogy.exercises.attempt import Outcome
from pedagogy.exercises.engine import Exercise, messages_only
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group

# --- one message to a neighbour --------------------------------------------------------------


def ring_pass(group: Group, x: Tensor) -> Tensor:
    """The tensor of the left neighbour; rank 0's left neighbour is the last rank."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.rank == 0:  # one rank sends first, and the circle is open
        group.send(x, right)
        return group.recv(left)
    received = group.recv(left)
    group.send(x, right)
    return received


def _all_receive_first(group, x):
    received = group.recv((group.rank - 1) % group.size)
    group.send(x, (group.rank + 1) % group.size)
    return received


def _all_send_first(group, x):
    group.send(x, (group.rank + 1) % group.size)
    return group.recv((group.rank - 1) % group.size)


def _the_other_way_around(group, x):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.rank % 2 == 0:
        group.send(x, left)
        return group.recv(right)
    received = group.recv(right)
    group.send(x, left)
    return received


def _line(group, x):
    if group.rank < group.size - 1:
        group.send(x, group.rank + 1)
    return group.recv(group.rank - 1) if group.rank > 0 else x


def _own_tensor(group, x):
    ring_pass(group, x)
    return x


def _passes_on_what_it_received(group, x):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.rank == 0:
        group.send(x, right)
        return group.recv(left)
    received = group.recv(left)
    group.send(received, right)
    return received


def _ready_made_pass(group, x):
    parts = [x[..., :0].clone() for _ in range(group.size)]
    parts[(group.rank + 1) % group.size] = x
    return group.all_to_all(parts)[(group.rank - 1) % group.size]


RING_PASS = Exercise(
    name="ring_pass",
    title="Pass a tensor around",
    chapter="00b",
    reference=ring_pass,
    cases=[
        lambda rank: (torch.full((3,), float(rank)),),
        lambda rank: (torch.arange(rank + 1.0).view(1, -1),),  # another shape on each rank
    ],
    ranks=4,
    targets=[messages_only],
    mistakes=[
        (
            _all_receive_first,
            "Every rank receives first, so nobody has sent anything yet: let one of them send "
            "first.",
        ),
        (
            _all_send_first,
            "Every rank sends first, and a send ends when its receiver takes the message: let one "
            "of them receive first.",
        ),
        (_the_other_way_around, "This is the right neighbour's tensor: send to rank + 1."),
        (_line, "The circle is open: the last rank sends to rank 0, so count modulo the size."),
        (_own_tensor, "Each rank gives back what it sent instead of what it received."),
        (
            _passes_on_what_it_received,
            "Every rank hands on what it received, so rank 0's tensor goes all the way around: "
            "send your own.",
        ),
        (_ready_made_pass, "A collective does the work here: one send and one recv are enough."),
    ],
    hints=[
        "The neighbours are (rank + 1) % size and (rank - 1) % size.",
        "If all ranks do the same thing first, nobody does the other. Use group.rank.",
        "Rank 0 sends and then receives; every other rank receives and then sends.",
    ],
)

# --- a broadcast along a tree ----------------------------------------------------------------

TREE_RANKS = 6
TREE_DEPTH = 3  # ceil(log2 6)


def tree_broadcast(group: Group, x: Tensor, source: int = 0) -> Tensor:
    """The tensor of rank `source`, on every rank, along a binomial tree.

    Places count from the source. In each round the places that hold the tensor, 0 to reach - 1,
    hand it to the places `reach` further on.
    """
    place, reach = (group.rank - source) % group.size, 1
    result = x.clone()
    while reach < group.size:
        if place < reach and place + reach < group.size:
            group.send(result, (place + reach + source) % group.size)
        elif reach <= place < 2 * reach:
            result = group.recv((place - reach + source) % group.size)
        reach *= 2
    return result


def _source_sends_to_all(group, x, source=0):
    if group.rank != source:
        return group.recv(source)
    for other in range(group.size):
        if other != source:
            group.send(x, other)
    return x.clone()


def _along_a_chain(group, x, source=0):
    place = (group.rank - source) % group.size
    result = group.recv((group.rank - 1) % group.size) if place > 0 else x.clone()
    if place < group.size - 1:
        group.send(result, (group.rank + 1) % group.size)
    return result


def _always_from_rank_0(group, x, source=0):
    return tree_broadcast(group, x, 0)


def _ready_made_broadcast(group, x, source=0):
    return group.broadcast(x, source)


def _case(length: int, source: int) -> Callable[[int], tuple]:
    """A case whose tensor no other case is as long as, so that the trace tells them apart."""
    return lambda rank: (torch.arange(float(length)) + 100 * rank, source)


LENGTHS = (5, 7)


def few_messages(function: Callable, outcome: Outcome) -> str | None:
    """A target: no rank sends more than ceil(log2 N) messages, nor waits for more hops.

    A tensor that all but the source lack takes N - 1 messages; fewer were not seen by the trace.
    """
    for length in LENGTHS:
        sends = [e for e in outcome.trace.of("send") if e.nbytes == 4 * length]
        if len(sends) < TREE_RANKS - 1:
            return f"the trace holds {len(sends)} messages with the tensor, and 5 ranks need it"
        parents = {event.peers[0]: event.rank for event in sends}
        most = max((sum(e.rank == rank for e in sends) for rank in range(TREE_RANKS)), default=0)
        if most > TREE_DEPTH:
            return f"one rank sends {most} messages, and {TREE_DEPTH} are enough on 6 ranks"
        deepest = max(_hops(rank, parents) for rank in range(TREE_RANKS))
        if deepest > TREE_DEPTH:
            return f"the last rank waits for {deepest} messages in turn, and 3 are enough"
    return None


def _hops(rank: int, parents: dict[int, int]) -> int:
    seen: set[int] = set()
    while rank in parents and rank not in seen:
        seen.add(rank)
        rank = parents[rank]
    return len(seen)


TREE_BROADCAST = Exercise(
    name="tree_broadcast",
    title="Broadcast along a tree",
    chapter="00b",
    reference=tree_broadcast,
    cases=[_case(LENGTHS[0], 0), _case(LENGTHS[1], 4)],
    ranks=TREE_RANKS,
    targets=[messages_only, few_messages],
    mistakes=[
        (
            _source_sends_to_all,
            "The source does all the sending: whoever has the tensor can pass it on, so that the "
            "holders double in each round.",
        ),
        (
            _along_a_chain,
            "This is a chain: every rank sends once, and the last one waits for all the others. "
            "Let every holder send in every round.",
        ),
        (_always_from_rank_0, "This broadcasts rank 0's tensor: count the places from `source`."),
        (_ready_made_broadcast, "This is the collective itself: build it from send and recv."),
    ],
    hints=[
        "After round k, 2^k ranks hold the tensor: 1, 2, 4, then all 6.",
        "Number the ranks from the source: place = (rank - source) % size. In the round with "
        "`reach` holders, place p < reach sends to place p + reach, if there is such a place.",
        "A rank in reach <= place < 2 * reach receives in this round, from place - reach. Turn a "
        "place into a rank with (place + source) % size.",
    ],
)

register(RING_PASS, TREE_BROADCAST)
