"""Chapter 08, the last exercise: for each tensor, keep, swap or recompute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


class Saved(NamedTuple):
    """A tensor that waits; seconds as the iteration runs when everything is kept."""

    nbytes: int
    made_at: float
    asked_at: float
    recompute_seconds: float


def lost_seconds(
    actions: Sequence[str], tensors: Sequence[Saved], turn: float, bandwidth: float
) -> float:
    """How much later the iteration ends; one copy at a time, first out, then back."""
    swapped = [tensor for tensor, action in zip(tensors, actions, strict=True) if action == "swap"]
    link = float("-inf")  # when it is free
    for tensor in sorted(swapped, key=lambda tensor: tensor.made_at):
        link = max(link, tensor.made_at) + tensor.nbytes / bandwidth
    lost = max(0.0, link - turn)
    link = turn + lost
    for tensor, action in sorted(
        zip(tensors, actions, strict=True), key=lambda pair: pair[0].asked_at
    ):
        if action == "swap":
            link += tensor.nbytes / bandwidth
            lost = max(lost, link - tensor.asked_at)
        elif action == "recompute":
            lost += tensor.recompute_seconds
    return lost


def decide(
    tensors: Sequence[Saved],
    turn: float,
    budget: int,
    bandwidth: float,
    clock: Callable[..., float] = lost_seconds,
) -> list[str]:
    """For each tensor "keep", "swap" or "recompute": within the budget, few seconds are lost."""
    chosen = ["keep"] * len(tensors)

    def free_seconds(i: int) -> float:
        return tensors[i].asked_at - tensors[i].made_at - 2 * tensors[i].nbytes / bandwidth

    def changed(i: int, action: str) -> list[str]:
        return [*chosen[:i], action, *chosen[i + 1 :]]

    def lost(actions: list[str]) -> float:
        return clock(actions, tensors, turn, bandwidth)

    def price(actions: list[str]) -> float:
        saved = bytes_over(chosen, tensors, budget) - bytes_over(actions, tensors, budget)
        return saved / max(lost(actions) - lost(chosen), 1e-9)

    for i in sorted(range(len(tensors)), key=free_seconds, reverse=True):
        if bytes_over(chosen, tensors, budget) and lost(changed(i, "swap")) < 1e-9:
            chosen = changed(i, "swap")
    while bytes_over(chosen, tensors, budget):
        kept = [i for i, action in enumerate(chosen) if action == "keep"]
        chosen = max((changed(i, to) for i in kept for to in ("swap", "recompute")), key=price)
    return chosen


def bytes_over(actions: Sequence[str], tensors: Sequence[Saved], budget: int) -> int:
    """By how much what is kept is too large."""
    kept = (x.nbytes for x, action in zip(tensors, actions, strict=True) if action == "keep")
    return max(0, sum(kept) - budget)


# --- mistakes -------------------------------------------------------------------------------------


def _one_by_one(
    tensors: Sequence[Saved],
    turn: float,
    budget: int,
    bandwidth: float,
    key: Callable[[Saved], float],
    action: str,
) -> list[str]:
    """The same action in the order of the key, until the rest fits."""
    actions = ["keep"] * len(tensors)
    for i in sorted(range(len(tensors)), key=lambda i: key(tensors[i])):
        if bytes_over(actions, tensors, budget):
            actions[i] = action
    return actions


def _each_alone(actions, tensors, turn, bandwidth):
    pairs = zip(actions, tensors, strict=True)
    return sum(lost_seconds([action], [tensor], turn, bandwidth) for action, tensor in pairs)


def _back_alone(actions, tensors, turn, bandwidth):
    there = [tensor._replace(made_at=float("-inf")) for tensor in tensors]
    return lost_seconds(actions, there, turn, bandwidth)


def _by_formula(tensors, turn, budget, bandwidth):
    """Swaps by each one's own free time; then what is quickly made again."""
    actions = ["keep"] * len(tensors)
    free = [t.asked_at - t.made_at - 2 * t.nbytes / bandwidth for t in tensors]
    price = [t.recompute_seconds / t.nbytes for t in tensors]
    order = range(len(tensors))
    for i in sorted((i for i in order if free[i] >= 0), key=lambda i: -free[i]):
        if bytes_over(actions, tensors, budget):
            actions[i] = "swap"
    for i in sorted((i for i in order if actions[i] == "keep"), key=lambda i: price[i]):
        if bytes_over(actions, tensors, budget):
            actions[i] = "recompute"
    return actions


MISTAKES = [
    (
        partial(_one_by_one, key=lambda tensor: -tensor.nbytes, action="swap"),
        "The largest are swapped first: that frees most bytes for each copy, but a large copy is "
        "a long one. What counts is the time that a copy has until it is asked for.",
    ),
    (
        partial(_one_by_one, key=lambda tensor: tensor.asked_at, action="swap"),
        "What is made last is swapped first, and that is asked for at once: its copies out and "
        "back have no time. Begin with what is away longest.",
    ),
    (
        partial(_one_by_one, key=lambda tensor: tensor.made_at, action="swap"),
        "Swapped is right for what is away long. When the link is full, each further copy makes "
        "backward wait; something that is quickly made again may cost less.",
    ),
    (
        partial(
            _one_by_one,
            key=lambda tensor: tensor.recompute_seconds / tensor.nbytes,
            action="recompute",
        ),
        "Everything that goes is made again, in a good order. But the link is idle, and what it "
        "carries in time costs nothing.",
    ),
    (
        partial(decide, clock=_each_alone),
        "Each copy is judged as if the link were free. It carries one at a time in each direction: "
        "a copy also waits for those before it.",
    ),
    (
        partial(decide, clock=_back_alone),
        "The way out is not counted. It takes as long as the way back, and backward does not begin "
        "before the last copy is out.",
    ),
    (
        _by_formula,
        "Each tensor's free time is worked out as if it were alone. Copies queue: ask the clock "
        "what all choices so far lose together, before each further swap.",
    ),
]

# --- the cases ------------------------------------------------------------------------------------


def iteration(layers: Sequence[tuple[int, float, float]]) -> tuple[list[Saved], float]:
    """From (bytes, seconds of forward, seconds of making it again): the tensors, and the turn.

    Backward takes twice as long; the last tensor is asked for at once.
    """
    made = list(accumulate(seconds for _, seconds, _ in layers))
    turn = made[-1]
    tensors = [
        Saved(nbytes, made_at, turn + 2 * (turn - made_at), again)
        for (nbytes, _, again), made_at in zip(layers, made, strict=True)
    ]
    return tensors, turn


_PAIR = [(8, 4.0, 4.0), (8, 1.0, 0.5)]  # of a matrix product; of an activation
_MIXED = [
    (4, 2.0, 1.0),
    (16, 2.0, 2.0),
    (8, 4.0, 4.0),
    (24, 1.0, 1.0),
    (8, 4.0, 0.5),
    (4, 1.0, 1.0),
]
_LATE = [(4, 8.0, 8.0), (16, 4.0, 2.0), (2, 4.0, 0.5)]

CASES = {  # tensors and turn, budget, bandwidth
    "everything fits": (*iteration(_PAIR * 2), 32, 1.0),
    "6 tensors, a fast link": (*iteration(_PAIR * 3), 24, 8.0),
    "6 tensors, a slow link": (*iteration(_PAIR * 3), 24, 1.0),
    "a large tensor, made late": (*iteration(_LATE), 6, 2.0),
    "6 unequal tensors": (*iteration(_MIXED), 28, 2.0),
    "6 unequal tensors, half the budget": (*iteration(_MIXED), 14, 2.0),
    "20 tensors": (*iteration(_PAIR * 10), 40, 2.0),
}


def _replayed(
    function: Callable, tensors: list[Saved], turn: float, budget: int, bandwidth: float
) -> dict | None:
    actions = function(list(tensors), turn, budget, bandwidth)
    if actions is None:
        return None
    known = ("keep", "swap", "recompute")
    is_list = isinstance(actions, (list, tuple)) and len(actions) == len(tensors)
    if not is_list or not all(action in known for action in actions):
        raise Refused(f"a list of {len(tensors)} was asked for, each one of {', '.join(known)}")
    enough = lost_seconds(decide(tensors, turn, budget, bandwidth), tensors, turn, bandwidth)
    return {
        "bytes over the budget": bytes_over(actions, tensors, budget),
        "seconds lost": max(enough, lost_seconds(actions, tensors, turn, bandwidth)),
    }


DECIDE = Exercise(
    name="decide",
    title="Keep, swap or recompute",
    chapter="08",
    reference=decide,
    cases=list(CASES.values()),
    labels=list(CASES),
    observe=_replayed,
    mistakes=MISTAKES,
    hints=[
        "First the clock: a function of the actions that returns the seconds lost. One number says "
        "when the link is free, first for the copies out, in the order made, then for those back, "
        "in the order asked; another how much has been lost so far.",
        "Then, while it does not fit: [1] the longest free time first, try a swap, ask the clock, "
        "and leave it if nothing is lost; [2] try each kept tensor with both actions, and take "
        "what saves most of the bytes that are too many for each second that is added.",
        "The clock that checks your answer is lost_seconds(actions, tensors, turn, bandwidth) in "
        "pedagogy.exercises.chapter08_decide.",
    ],
)

register(DECIDE)
