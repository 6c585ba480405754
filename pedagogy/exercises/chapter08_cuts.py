"""Chapter 08: where to cut a chain of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import isqrt

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.compare import brief
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def best_cuts(sizes: Sequence[int]) -> list[int]:
    """The first layer of each segment (a list, 0 first): the least peak of the chain."""
    layers = len(sizes)
    best = {layers: (0, [])}  # of the layers from here on: their peak, and where segments begin
    for first in reversed(range(layers)):
        best[first] = min(
            (max(sum(sizes[first:end]), sizes[first] + best[end][0]), [first, *best[end][1]])
            for end in range(first + 1, layers + 1)
        )
    return best[0][1]


def peak_of(starts: Sequence[int], sizes: Sequence[int]) -> int:
    """The bytes at the peak: inputs of segments so far, and those inside the one that runs."""
    kept, peak = 0, 0
    for first, end in pairwise([*starts, len(sizes)]):
        peak = max(peak, kept + sum(sizes[first:end]))
        kept += sizes[first]
    return peak


def _peak(function: Callable, sizes: list[int]) -> dict | None:
    starts = function(list(sizes))
    if starts is None:
        return None
    is_list = isinstance(starts, (list, tuple)) and list(starts[:1]) == [0]
    if not is_list or any(a >= b for a, b in pairwise([*starts, len(sizes)])):
        raise Refused(
            f"a list was asked for that begins with 0 and rises, to {len(sizes) - 1} at most, not "
            f"{brief(starts)}"
        )
    return {"the bytes at the peak": peak_of(starts, sizes)}


def equal(sizes: Sequence[int], segments: int) -> list[int]:
    """Segments of equal length, as `checkpoint_sequential` cuts."""
    return [len(sizes) * i // segments for i in range(segments)]


def _best_of_equal(sizes):
    cuts = [equal(sizes, segments) for segments in range(1, len(sizes) + 1)]
    return min(cuts, key=lambda starts: peak_of(starts, sizes))


def falling(sizes: Sequence[int]) -> list[int]:
    """Lengths s, s - 1, s - 2, ... with the least s that is enough for all layers."""
    longest = next(s for s in range(1, len(sizes) + 1) if s * (s + 1) // 2 >= len(sizes))
    starts = accumulate(range(longest, 0, -1), initial=0)
    return [first for first in starts if first < len(sizes)]


def _input_twice(sizes):
    best = {len(sizes): (0, [])}
    for first in reversed(range(len(sizes))):
        best[first] = min(
            (sizes[first] + max(sum(sizes[first:end]), best[end][0]), [first, *best[end][1]])
            for end in range(first + 1, len(sizes) + 1)
        )
    return best[0][1]


def _as_long_as_fits(sizes):
    def filled(bound):
        starts, kept, inside = [0], 0, 0
        for layer, size in enumerate(sizes):
            if layer and kept + inside + size > bound:
                kept, inside = kept + sizes[starts[-1]], 0
                starts.append(layer)
            inside += size
        return starts

    bounds = range(max(sizes), sum(sizes) + 1)
    return next(filled(bound) for bound in bounds if peak_of(filled(bound), sizes) <= bound)


CHAINS = {
    "4 equal layers": [1] * 4,
    "36 equal layers": [1] * 36,
    "one layer": [5],
    "inputs that become smaller": [90, 70, 70, 50, 40, 40, 20, 10, 10],
    "two small inputs among large ones": [8, 8, 8, 1, 8, 8, 8, 8, 1, 8, 8, 8, 8, 8, 8, 8],
    "the first is the largest": [60, *[8, 3, 5, 1] * 6],
}

CUTS = Exercise(
    name="best_cuts",
    title="Where to cut",
    chapter="08",
    reference=best_cuts,
    cases=[(sizes,) for sizes in CHAINS.values()],
    labels=list(CHAINS),
    observe=_peak,
    mistakes=[
        (
            lambda sizes: list(range(len(sizes))),
            "All inputs are there at once: with one segment while it is run again, with each layer "
            "its own segment at the end of forward.",
        ),
        (
            lambda sizes: equal(sizes, isqrt(len(sizes))),
            "Those are sqrt(n) segments of equal length: good, not the best. While an early one "
            "runs backward few inputs are kept, and it may be longer than a late one.",
        ),
        (
            _best_of_equal,
            "That is the best of the segments of equal length. While an early one runs backward "
            "few inputs are kept, and it may be longer than a late one.",
        ),
        (
            falling,
            "Lengths that fall by one are the best if all inputs are equal. Here they are not: "
            "count bytes.",
        ),
        (
            _input_twice,
            "The input of the segment that runs is counted twice: it is kept, and it is one of the "
            "inputs inside.",
        ),
        (
            _as_long_as_fits,
            "Each segment is as long as still fits. Then the next begins wherever that ends, and "
            "its first input stays: one that ends sooner, before a small input, leaves more room.",
        ),
    ],
    hints=[
        "Write the peak first: go through the segments, add up the inputs that are kept, and "
        "compare (inputs of the segments before) + (all inputs inside this one).",
        "Look from the end. What the layers from `first` on need is the larger of two: all inputs "
        "of the first segment, or that segment's input beside what the layers after it need.",
        "best[first] = the least, over `end`, of max(sum(sizes[first:end]), sizes[first] + "
        "best[end]), from the last layer to layer 0, with best[n] = 0. Keep the cut beside it.",
    ],
)

register(CUTS)
