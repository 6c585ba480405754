"""What every rank holds after each step of a collective, as plain data.

A state is `state[rank][chunk]`, the set of ranks whose contributions the chunk holds. A collective
is a first state and a list of steps; a step is a list of moves that happen at once. The ring's
steps are those that `pedagogy.collectives.ring` executes; nothing is drawn that is not run.

The ring's three collectives are one: all_reduce is a reduce_scatter followed by an all_gather.
Rank r of the ring's reduce_scatter ends with chunk r + 1, where the collective of that name leaves
chunk r on rank r: the chunks are numbered one lower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pedagogy.collectives.ring import ring_steps

State = list[list[frozenset[int]]]


class Move(NamedTuple):
    """One message: a chunk goes from sender to receiver and lands in a column there."""

    sender: int
    receiver: int
    chunk: int
    phase: str
    lands: int


class Collective(NamedTuple):
    """A collective, step by step; share is what one message carries, in tensors."""

    start: State
    steps: list[list[Move]]
    share: float
    columns: str
    what: str


def _own(ranks: int, columns: int) -> State:
    return [[frozenset({rank})] * columns for rank in range(ranks)]


def _moves(step: Sequence, shift: int, ranks: int) -> list[Move]:
    shifted = [(s, r, (chunk + shift) % ranks, phase) for s, r, chunk, phase in step]
    return [Move(s, r, chunk, phase, chunk) for s, r, chunk, phase in shifted]


def all_reduce(ranks: int) -> Collective:
    """Every rank ends with the sum of all, by the ring: 2 (N - 1) steps of 1/N tensor."""
    steps = [_moves(step, 0, ranks) for step in ring_steps(ranks)]
    what = "every rank ends with every chunk's sum"
    return Collective(_own(ranks, ranks), steps, 1 / ranks, "chunk", what)


def reduce_scatter(ranks: int) -> Collective:
    """Rank r ends with the sum of chunk r: the first half of the ring."""
    steps = [_moves(step, -1, ranks) for step in ring_steps(ranks)[: ranks - 1]]
    what = "each rank ends with the sum of one chunk"
    return Collective(_own(ranks, ranks), steps, 1 / ranks, "chunk", what)


def all_gather(ranks: int) -> Collective:
    """Every rank ends with everybody's shard: the second half of the ring."""
    start = [[frozenset({c} if c == r else ()) for c in range(ranks)] for r in range(ranks)]
    steps = [_moves(step, -1, ranks) for step in ring_steps(ranks)[ranks - 1 :]]
    what = "every rank ends with everybody's shard"
    return Collective(start, steps, 1 / ranks, "shard", what)


def broadcast(ranks: int) -> Collective:
    """Every rank ends with rank 0's tensor: a tree, in which those who have it pass it on."""
    start = [[frozenset({0} if rank == 0 else ())] for rank in range(ranks)]
    steps, holders = [], 1
    while holders < ranks:
        pairs = [(r, r + holders) for r in range(holders) if r + holders < ranks]
        steps.append([Move(s, r, 0, "broadcast", 0) for s, r in pairs])
        holders *= 2
    return Collective(start, steps, 1.0, "tensor", "every rank ends with rank 0's tensor")


def all_to_all(ranks: int) -> Collective:
    """Rank r's piece c becomes rank c's piece r: a transposition, pair by pair."""
    steps = []
    for turn in range(ranks):
        pairs = [(r, (turn - r) % ranks) for r in range(ranks) if (turn - r) % ranks != r]
        steps.append([Move(r, partner, partner, "all_to_all", r) for r, partner in pairs])
    what = "piece c of rank r is piece r of rank c"
    return Collective(_own(ranks, ranks), [s for s in steps if s], 1 / ranks, "piece", what)


def barrier(ranks: int) -> Collective:
    """Every rank ends with the news that all have arrived: distances 1, 2, 4, ... no data."""
    steps, distance = [], 1
    while distance < ranks:
        steps.append([Move(r, (r + distance) % ranks, 0, "barrier", 0) for r in range(ranks)])
        distance *= 2
    return Collective(_own(ranks, 1), steps, 0.0, "who has arrived", "all know that all arrived")


COLLECTIVES: dict[str, Callable[[int], Collective]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
    "barrier": barrier,
}
_SUMS = {"reduce_scatter", "barrier"}  # what arrives joins what is there; elsewhere it replaces it


def after(state: State, moves: Sequence[Move]) -> State:
    """Return the state once all moves of one step have landed; they all leave before any lands."""
    new = [list(row) for row in state]
    for move in moves:
        carried = state[move.sender][move.chunk]
        there = state[move.receiver][move.lands] if move.phase in _SUMS else frozenset()
        new[move.receiver][move.lands] = there | carried
    return new


def states_of(collective: Collective) -> list[State]:
    """Return the state at the start and after each step."""
    states = [collective.start]
    for moves in collective.steps:
        states.append(after(states[-1], moves))
    return states


def pieces_of(state: State) -> list[list[str]]:
    """Return the name of each cell's piece in an all_to_all: "r>c" is rank r's piece for rank c.

    What a rank holds in column c is its own piece for c, or, once it has arrived, c's piece for it.
    """
    return [
        [f"{s}>{c if s == rank else rank}" for c, (s,) in enumerate(row)]
        for rank, row in enumerate(state)
    ]


def sent_after(collective: Collective, ranks: int, step: int) -> list[float]:
    """Return what each rank has sent in the first steps, in tensors."""
    sent = [0.0] * ranks
    for moves in collective.steps[:step]:
        for move in moves:
            sent[move.sender] += collective.share
    return sent
