"""Chapter 07: rules by which caches let something go, and what each of them overlooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

NEVER = 10**6


def ruled(
    uses: Sequence[int],
    layer_bytes: Sequence[int],
    capacity: int,
    rule: Callable[[int, int, dict, dict, Sequence], Any],
    slack: int = 0,
) -> list[list[int]]:
    """While the next layer does not fit beside `slack` bytes, what `rule` says most of leaves.

    The rule gets (layer, next use of it, last use of each, when each was copied, layer_bytes).
    """
    room = capacity - slack
    last: dict[int, int] = {}
    copied: dict[int, int] = {}  # what is there, and since when
    plan = []
    for use, layer in enumerate(uses):
        leaving: list[int] = []
        while copied and layer not in copied and _total([*copied, layer], layer_bytes) > room:
            of = {
                one: rule(one, next_use(uses, use, one), last, copied, layer_bytes)
                for one in copied
            }
            leaving.append(max(of, key=of.__getitem__))
            del copied[leaving[-1]]
        plan.append(leaving)
        last[layer] = use
        copied.setdefault(layer, use)
    return plan


def next_use(uses: Sequence[int], use: int, layer: int) -> int:
    """The first use of the layer from this one on; NEVER if there is none."""
    return next((i for i in range(use, len(uses)) if uses[i] == layer), NEVER)


def _total(layers: Iterable[int], layer_bytes: Sequence[int]) -> int:
    return sum(layer_bytes[one] for one in layers)


def furthest(layer, coming, last, copied, layer_bytes):
    """Belady's rule."""
    return coming


def _used_least_recently(layer, coming, last, copied, layer_bytes):
    return -last[layer]


def _copied_first(layer, coming, last, copied, layer_bytes):
    return -copied[layer]


def _used_most_recently(layer, coming, last, copied, layer_bytes):
    return last[layer]


def _used_next(layer, coming, last, copied, layer_bytes):
    return -coming


def _largest(layer, coming, last, copied, layer_bytes):
    return layer_bytes[layer], coming


def _smallest(layer, coming, last, copied, layer_bytes):
    return -layer_bytes[layer], coming


def _far_and_small(layer, coming, last, copied, layer_bytes):
    return coming / layer_bytes[layer]


def _runs_alone(uses, layer_bytes, capacity):
    there = [set(), *({layer} for layer in uses)]
    return [sorted(held - {layer}) for held, layer in zip(there, uses, strict=False)]


def _emptied_after_each(uses, layer_bytes, capacity):
    return [[], *([layer] for layer in uses[:-1])]


def _emptied_when_full(uses, layer_bytes, capacity):
    held: set[int] = set()
    plan = []
    for layer in uses:
        is_full = layer not in held and _total(held, layer_bytes) + layer_bytes[layer] > capacity
        plan.append(sorted(held) if is_full else [])
        held = (set() if is_full else held) | {layer}
    return plan


def _nothing_leaves(uses, layer_bytes, capacity):
    return [[] for _ in uses]


def _at_the_last_use_alone(uses, layer_bytes, capacity):
    return [[], *([uses[i]] if uses[i] not in uses[i + 1 :] else [] for i in range(len(uses) - 1))]


least_recently = partial(ruled, rule=_used_least_recently)

_ALONE = (
    "The device is emptied each time, although there is room for more: what stays need not be "
    "copied again. The layer that ends forward begins backward."
)
_TOO_MUCH = (
    "Nothing leaves, or only what is never used again, and the rest does not fit. What is needed "
    "later may leave as well: the host has it."
)

MISTAKES = [
    (
        partial(ruled, rule=furthest),
        "That is Belady's rule, and it is the optimum where layers have equal bytes. Where they "
        "are unequal, a large layer may be worth more than one that comes sooner, or two small "
        "ones more than it: search, and keep for each set that may be there the cheapest way to "
        "it.",
    ),
    (
        least_recently,
        "What was used least recently leaves (LRU). Forward and backward that is what comes last, "
        "and as good as Belady's rule; in a cycle it is what comes next, and every copy is lost. "
        "The order is known: look ahead, not back.",
    ),
    (
        partial(ruled, rule=_copied_first),
        "What was copied first leaves (FIFO), even if it is used all the time. The order is known: "
        "look ahead, not back.",
    ),
    (
        partial(ruled, rule=_used_most_recently),
        "What was used most recently leaves (MRU): right in a cycle, wrong for a layer that is "
        "used between all others, and blind to bytes. The order is known: look ahead, not back.",
    ),
    (
        partial(ruled, rule=_used_next),
        "What is used next leaves, and has to be copied again at once: the other way round.",
    ),
    (
        partial(ruled, rule=_largest),
        "The largest leaves: that makes room with few evictions, and costs the most to bring back. "
        "Evictions are free; copies are not.",
    ),
    (
        partial(ruled, rule=_smallest),
        "The smallest leaves, as it costs least to bring back. But it makes little room, and more "
        "has to leave: no rule that looks at one layer at a time finds the best set. Search.",
    ),
    (
        partial(ruled, rule=_far_and_small),
        "Far and small together is a better rule, and still a rule: which layers fill the room "
        "best is a knapsack. Search, and keep for each set that may be there the cheapest way to "
        "it.",
    ),
    (
        partial(ruled, rule=furthest, slack=1),
        "The room is given up to the last byte: what there is may be as much as the capacity, not "
        "less.",
    ),
    (_runs_alone, _ALONE),
    (_emptied_after_each, _ALONE),
    (
        _emptied_when_full,
        "When there is no room, everything leaves: one or two layers would have been enough.",
    ),
    (_nothing_leaves, _TOO_MUCH),
    (_at_the_last_use_alone, _TOO_MUCH),
]
