"""Chapter 07: caches as readers write them, right and wrong."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache

import pytest

from pedagogy.exercises import engine
from pedagogy.exercises.chapter07_cache import PLAN


def by_recursion(uses, layer_bytes, capacity):
    @lru_cache(None)
    def best(use, held):
        if use == len(uses):
            return 0, ()
        layer, found = uses[use], []
        others = sorted(held - {layer})
        for chosen in range(2 ** len(others)):
            kept = frozenset(one for i, one in enumerate(others) if chosen >> i & 1)
            there = kept | {layer}
            if sum(layer_bytes[one] for one in there) > capacity:
                continue
            later, plan = best(use + 1, there)
            copied = 0 if layer in held else layer_bytes[layer]
            found.append((copied + later, ((held - there), *plan)))
        return min(found, key=lambda one: one[0])

    return list(best(0, frozenset())[1])


def belady(uses, layer_bytes, capacity):
    held, plan = set(), []
    for use, layer in enumerate(uses):
        out = []
        if layer not in held:
            later = uses[use + 1 :]
            while sum(layer_bytes[h] for h in held) + layer_bytes[layer] > capacity:
                far = max(held, key=lambda h: later.index(h) if h in later else len(later))
                held.remove(far)
                out.append(far)
            held.add(layer)
        plan.append(out)
    return plan


def with_an_ordered_dict(uses, layer_bytes, capacity):
    cache, plan = OrderedDict(), []
    for layer in uses:
        out = []
        if layer in cache:
            cache.move_to_end(layer)
        else:
            while sum(cache.values()) + layer_bytes[layer] > capacity:
                out.append(cache.popitem(last=False)[0])
            cache[layer] = layer_bytes[layer]
        plan.append(out)
    return plan


def a_queue(uses, layer_bytes, capacity):
    queue, plan = [], []
    for layer in uses:
        out = []
        if layer not in queue:
            while sum(layer_bytes[one] for one in queue) + layer_bytes[layer] > capacity:
                out.append(queue.pop(0))
            queue.append(layer)
        plan.append(out)
    return plan


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_recursion, "correct"),
        (belady, "That is Belady's rule"),
        (with_an_ordered_dict, "What was used least recently leaves (LRU)"),
        (a_queue, "What was copied first leaves (FIFO)"),
        (lambda uses, *others: [[], *([layer] for layer in uses[:-1])], "emptied each time"),
    ],
)
def test_evictions_are_explained(answer, says):
    assert says in engine.explain(PLAN, answer)
