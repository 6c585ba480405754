"""Chapter 07, the last exercise: the device is a cache, and something has to leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.chapter07_wrong_cache import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def plan_evictions(
    uses: Sequence[int], layer_bytes: Sequence[int], capacity: int
) -> list[list[int]]:
    """The layers that leave before each use, a list of lists: the fewest bytes are copied."""
    best = {frozenset(): (0, [])}  # for each set that may be there: bytes copied, and the plan
    for layer in uses:
        after: dict = {}
        for held, (copied, plan) in best.items():
            for kept in _what_may_stay(held, layer, layer_bytes, capacity):
                cost = copied if layer in held else copied + layer_bytes[layer]
                there = kept | {layer}
                if there not in after or cost < after[there][0]:
                    after[there] = cost, [*plan, sorted(held - kept)]
        best = after
    return min(best.values(), key=lambda found: found[0])[1]


def _what_may_stay(
    held: frozenset, layer: int, layer_bytes: Sequence[int], capacity: int
) -> Iterator[frozenset]:
    """The subsets of what is there that fit beside the layer; all of it, if that fits."""
    room = capacity - layer_bytes[layer]
    others = held - {layer}
    if sum(layer_bytes[one] for one in others) <= room:
        yield held
        return
    for size in range(len(others)):
        for kept in combinations(sorted(others), size):
            if sum(layer_bytes[one] for one in kept) <= room:
                yield frozenset(kept)


# --- the cases ------------------------------------------------------------------------------------


def steps(num_layers: int, times: int = 1) -> list[int]:
    """Forward and backward, so many times."""
    return [*range(num_layers), *reversed(range(num_layers))] * times


CASES = {  # uses, bytes of the layers, capacity
    "one step, 4 equal layers, room for 2": (steps(4), [10] * 4, 20),
    "two steps, 5 equal layers, room for 3": (steps(5, 2), [10] * 5, 30),
    "three forward passes, 4 equal layers, room for 3": ([0, 1, 2, 3] * 3, [10] * 4, 30),
    "layer 0 is used between the others, room for 3": (
        [0, 1, 0, 2, 0, 3, 0, 4, 4, 0, 3, 0, 2, 0, 1, 0],
        *([10] * 5, 30),
    ),
    "everything fits": (steps(3, 2), [10, 20, 5], 35),
    "only the largest fits, by itself": (steps(3), [8, 9, 10], 10),
    "one layer": ([0, 0], [7], 7),
    "one step, 6 unequal layers": (steps(6), [9, 4, 7, 1, 4, 1], 22),
    "two steps, 5 unequal layers": (steps(5, 2), [7, 5, 3, 1, 9], 24),
    "two steps, 6 unequal layers": (steps(6, 2), [2, 5, 4, 9, 8, 6], 18),
}


def replay(
    plan: Sequence[Sequence[int]], uses: Sequence[int], layer_bytes: Sequence[int], capacity: int
) -> int:
    """The bytes that are copied under this plan. **Raises** Refused if it cannot be followed."""
    if len(plan) != len(uses):
        raise Refused(f"it returns {len(plan)} lists for {len(uses)} uses; one for each is needed")
    held: set[int] = set()
    copied = 0
    for use, (leaving, layer) in enumerate(zip(plan, uses, strict=True)):
        absent = set(leaving) - held
        if absent:
            raise Refused(f"before use {use} layer {min(absent)} should leave, but is not there")
        held -= set(leaving)
        if layer not in held:
            copied += layer_bytes[layer]
            held.add(layer)
        there = sum(layer_bytes[one] for one in held)
        if there > capacity:
            raise Refused(
                f"at use {use} layers {sorted(held)} are there, {there} bytes; {capacity} fit"
            )
    return copied


def _bytes_copied(function: Callable, *arguments: Any) -> dict | None:
    plan = function(*arguments)
    if plan is None:
        return None
    if not isinstance(plan, (list, tuple)) or not all(
        isinstance(leaving, (list, tuple, set, frozenset)) for leaving in plan
    ):
        raise Refused("a list was asked for that has a list of layers for each use")
    return {"the bytes copied": replay(plan, *arguments)}


PLAN = Exercise(
    name="plan_evictions",
    title="What has to leave",
    chapter="07",
    reference=plan_evictions,
    cases=list(CASES.values()),
    labels=list(CASES),
    observe=_bytes_copied,
    mistakes=MISTAKES,
    hints=[
        "First write Belady's rule: while the next layer does not fit, the one leaves whose next "
        "use is furthest away, or that has none. It is the optimum in the cases where layers have "
        "equal bytes.",
        "Where bytes are unequal: in a single step, what is there between forward and backward is "
        "what need not be copied a second time. Which layers fill the room best is a knapsack; no "
        "rule is known that is always right.",
        "Up to 6 layers make at most 64 sets. Keep a dict from the set that is there (a frozenset) "
        "to the fewest bytes copied so far, and the plan that leads to it; at first it is "
        "{frozenset(): (0, [])}.",
        "From each set, at each use: if the layer is there, or fits, nothing has to leave. "
        "Otherwise try every subset that fits beside it (itertools.combinations). At the end take "
        "the cheapest entry.",
    ],
)

register(PLAN)
