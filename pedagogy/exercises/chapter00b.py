"""Chapter 00b: two collectives made of messages.

Single messages and the tree stand in `chapter00b_messages`, the grid of ranks in `chapter00b_grid`,
the predictions in `chapter00b_predictions`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise, bytes_sent_at_most, messages_only
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group

RANKS = 4

# --- all_gather ------------------------------------------------------------------------------


def gather_around(group: Group, x: Tensor) -> list[Tensor]:
    """The tensors of all ranks, by rank: what arrived in one step is passed on in the next."""
    rank, size = group.rank, group.size
    parts = [torch.empty_like(x) for _ in range(size)]
    parts[rank].copy_(x)
    for step in range(size - 1):
        out, into = (rank - step) % size, (rank - step - 1) % size
        group.exchange([(parts[out], (rank + 1) % size)], [(parts[into], (rank - 1) % size)])
    return parts


def _collected_by_rank_0(group, x):
    size = group.size
    if group.rank == 0:
        parts = [x.clone()] + [group.recv(other) for other in range(1, size)]
        for other in range(1, size):
            for part in parts:
                group.send(part, other)
        return parts
    group.send(x, 0)
    return [group.recv(0) for _ in range(size)]


def _in_order_of_arrival(group, x):
    parts = gather_around(group, x)
    return [parts[(group.rank - step) % group.size] for step in range(group.size)]


def _always_its_own(group, x):
    rank, size = group.rank, group.size
    parts = [x.clone() for _ in range(size)]
    for step in range(size - 1):
        into = (rank - step - 1) % size
        group.exchange([(x, (rank + 1) % size)], [(parts[into], (rank - 1) % size)])
    return parts


def _own_place_empty(group, x):
    parts = gather_around(group, x)
    parts[group.rank].zero_()
    return parts


def _ready_made_gather(group, x):
    return group.all_gather(x)


def _all_send_first(group, x):
    others = [other for other in range(group.size) if other != group.rank]
    for other in others:
        group.send(x, other)
    parts = {group.rank: x.clone(), **{other: group.recv(other) for other in others}}
    return [parts[rank] for rank in range(group.size)]


GATHER_AROUND = Exercise(
    name="gather_around",
    title="An all_gather made of messages",
    chapter="00b",
    reference=gather_around,
    cases=[
        lambda rank: (torch.arange(4.0) + 10 * rank,),
        lambda rank: (torch.full((2, 3), rank, dtype=torch.int64),),
    ],
    ranks=RANKS,
    # (N - 1) times what a rank holds: 3 * 16 bytes in the first case, 3 * 48 in the second
    targets=[messages_only, bytes_sent_at_most(3 * 16 + 3 * 48)],
    mistakes=[
        (
            _collected_by_rank_0,
            "Rank 0 collects everything and sends it to everybody: let each rank pass on what it "
            "received, and no link is busier than another.",
        ),
        (
            _in_order_of_arrival,
            "The list is in the order of arrival: what arrives in step s was rank - s - 1's.",
        ),
        (
            _always_its_own,
            "Each rank sends its own tensor again and again: after the first step, pass on what "
            "arrived in the step before.",
        ),
        (
            _all_send_first,
            "Every rank sends first, and a send ends when its receiver takes the message: "
            "group.exchange sends and receives at the same time.",
        ),
        (_own_place_empty, "The rank's own tensor is missing from its list."),
        (_ready_made_gather, "This is the collective itself: build it from messages."),
    ],
    hints=[
        "Make a list of N buffers first and put the own tensor into its place.",
        "There are N - 1 steps. In each of them group.exchange([(tensor, right)], [(buffer, "
        "left)]) sends and receives at the same time, so that nobody waits for the other.",
        "In step s, rank r sends the part of rank r - s and receives that of rank r - s - 1, all "
        "modulo N.",
    ],
)

# --- reduce_scatter --------------------------------------------------------------------------


def scatter_sum(group: Group, xs: list[Tensor]) -> Tensor:
    """The sum over ranks of their `xs[rank]`: everybody's part for this rank, added up."""
    rank = group.rank
    others = [other for other in range(group.size) if other != rank]
    buffers = [torch.empty_like(xs[rank]) for _ in others]
    sends = [(xs[other], other) for other in others]
    receives = list(zip(buffers, others, strict=True))
    group.exchange(sends, receives)
    total = xs[rank].clone()
    for buffer in buffers:
        total += buffer
    return total


def _everything_to_everybody(group, xs):
    others = [other for other in range(group.size) if other != group.rank]
    full = torch.stack(xs)
    buffers = [torch.empty_like(full) for _ in others]
    group.exchange([(full, o) for o in others], list(zip(buffers, others, strict=True)))
    return (full + sum(buffers))[group.rank]


def _own_part_forgotten(group, xs):
    return scatter_sum(group, xs) - xs[group.rank]


def _mean(group, xs):
    return scatter_sum(group, xs) / group.size


def _adds_into_its_argument(group, xs):
    xs[group.rank] += scatter_sum(group, xs) - xs[group.rank]
    return xs[group.rank]


def _its_own_part_to_all(group, xs):
    rank = group.rank
    others = [other for other in range(group.size) if other != rank]
    buffers = [torch.empty_like(xs[rank]) for _ in others]
    group.exchange([(xs[rank], o) for o in others], list(zip(buffers, others, strict=True)))
    return xs[rank] + sum(buffers)


def _ready_made_reduce_scatter(group, xs):
    return group.reduce_scatter(xs)


SCATTER_SUM = Exercise(
    name="scatter_sum",
    title="A reduce_scatter made of messages",
    chapter="00b",
    reference=scatter_sum,
    cases=[
        lambda rank: ([torch.full((3,), 10.0 * rank + part) for part in range(RANKS)],),
        lambda rank: ([torch.arange(2.0) * (rank + 1) * (part + 1) for part in range(RANKS)],),
    ],
    ranks=RANKS,
    # (N - 1)/N of what a rank holds: 36 of 48 bytes in the first case, 24 of 32 in the second
    targets=[messages_only, bytes_sent_at_most(36 + 24)],
    mistakes=[
        (
            _everything_to_everybody,
            "Every rank sends all its parts to all the others: rank i needs xs[i] and no more.",
        ),
        (_own_part_forgotten, "The rank's own part is missing from the sum."),
        (_mean, "This is the mean: a reduce_scatter adds, and does not divide."),
        (
            _adds_into_its_argument,
            "The sum is right, but it overwrites the gradients that the caller still holds: add "
            "into a copy.",
        ),
        (
            _its_own_part_to_all,
            "Each rank sends xs[rank], the part that it should keep: xs[i] belongs to rank i.",
        ),
        (_ready_made_reduce_scatter, "This is the collective itself: build it from messages."),
    ],
    hints=[
        "Rank r needs xs[r] of every other rank, and owes rank i its own xs[i].",
        "One group.exchange is enough: N - 1 sends and N - 1 receives, each with a buffer of its "
        "own.",
        "Start from xs[rank].clone() and add the N - 1 buffers.",
    ],
)

register(GATHER_AROUND, SCATTER_SUM)
