"""Chapter 07: when layers and copies run, if the link works ahead.

Saved activations in host memory are in `chapter07_hooks`, the optimizer on the host in
`chapter07_host`, the device as a cache in `chapter07_cache`, predictions in
`chapter07_predictions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def offload_makespan(
    compute_seconds: Sequence[float], transfer_seconds: Sequence[float], prefetch: int
) -> float:
    """Seconds until the last layer has ended; layers are copied `prefetch` layers ahead."""
    copied, ended = 0.0, [0.0] * (prefetch + 1)  # ended[j]: when layer j - 1 - prefetch has
    for layer, seconds in enumerate(compute_seconds):
        copied = max(copied, ended[layer]) + transfer_seconds[layer]
        ended.append(max(copied, ended[-1]) + seconds)
    return ended[-1]


# --- mistakes -------------------------------------------------------------------------------------


def _ends(
    compute: Sequence[float],
    transfer: Sequence[float],
    prefetch: int,
    depth: Callable[[int], int] = lambda prefetch: prefetch,
    link: Callable[[float], float] = lambda copied: copied,
    device: Callable[[float], float] = lambda ended: ended,
) -> list[float]:
    """When each layer ends, if `link` is when the link is free, and `device` when the device is."""
    copied, ended = 0.0, []
    for layer, (seconds, copy_seconds) in enumerate(zip(compute, transfer, strict=True)):
        before = layer - 1 - depth(prefetch)
        room = ended[before] if before >= 0 else 0.0
        copied = max(link(copied), room) + copy_seconds
        ended.append(max(copied, device(ended[-1] if ended else 0.0)) + seconds)
    return ended


def _makespan(compute, transfer, prefetch, **parts):
    return max(_ends(compute, transfer, prefetch, **parts))


def _stall(compute, transfer, prefetch):
    return offload_makespan(compute, transfer, prefetch) - sum(compute)


def _ideal(compute, transfer, prefetch):
    if prefetch == 0:
        return sum(compute) + sum(transfer)
    return max(sum(compute), sum(transfer))


def _pair_by_pair(compute, transfer, prefetch):
    if prefetch == 0:
        return sum(compute) + sum(transfer)
    return sum(map(max, compute, transfer))


def _copied_alone(compute, transfer, prefetch):
    return offload_makespan(compute, transfer, prefetch) - compute[-1]


def _no_waiting_at_0(compute, transfer, prefetch):
    return max(_ends(compute, transfer, prefetch, lambda k: k or len(compute)))


def _from_the_end(compute, transfer, prefetch):
    copied, ended = 0.0, []
    for layer, seconds in enumerate(compute):
        copied = max(copied, ended[layer - 1 - prefetch] if ended else 0.0) + transfer[layer]
        ended.append(max(copied, ended[-1] if ended else 0.0) + seconds)
    return ended[-1]


_ONE_LESS = (
    "The device has room for k layers in all; it is k + 1, the one that runs and k that come next. "
    "Copy j waits for layer j - 1 - k, not j - k."
)

MISTAKES = [
    (
        partial(_makespan, depth=lambda k: 0),
        "That is prefetch 0 in every case: each copy waits for the layer before it. With prefetch "
        "k it waits for layer j - 1 - k, and for the copy before it.",
    ),
    (
        partial(_makespan, depth=lambda k: 10**6),
        "The copies run ahead without end, as if the device had room for all layers. Copy j needs "
        "the room of layer j - 1 - k, and waits until that one has ended.",
    ),
    (
        partial(_makespan, depth=lambda k: min(k, 1)),
        "That is right for prefetch 0 and 1. Beyond, it is still 1: copy j waits for layer "
        "j - 1 - k, which ended earlier.",
    ),
    (partial(_makespan, depth=lambda k: max(k - 1, 0)), _ONE_LESS),
    (partial(_makespan, depth=lambda k: k - 1 if k else 10**6), _ONE_LESS),
    (
        partial(_makespan, depth=lambda k: k + 1),
        "One layer too many is on the device: copy j waits for layer j - 1 - k, not j - 2 - k.",
    ),
    (
        partial(_makespan, link=lambda copied: 0.0),
        "Several copies are under way at once, each at full speed. There is one link: a copy also "
        "waits for the copy before it.",
    ),
    (
        partial(_makespan, device=lambda ended: 0.0),
        "A layer begins as soon as it is there, while the layer before still runs. It waits for "
        "both.",
    ),
    (
        _ideal,
        "The larger of the two sums is only a bound: the first copy hides behind nothing, and the "
        "last layer hides no copy.",
    ),
    (
        _pair_by_pair,
        "A layer does not run during its own copy: the maximum of the two, layer by layer, puts "
        "them at the same time. It is the copy of a later layer that runs beside it.",
    ),
    (
        _from_the_end,
        "The list of ends has no such element. Copy j waits for layer j - 1 - k, which is in it; "
        "where that is below 0 there is no such layer, and the time is 0: a negative index counts "
        "from the end of the list.",
    ),
    (_stall, "That is the stall, the time in which the device waits; the whole was asked for."),
    (_copied_alone, "That is when the last layer begins; it has to run too."),
    (
        _no_waiting_at_0,
        "Where prefetch is 0, nothing holds the copies back. There too copy j waits for layer "
        "j - 1 - k: the one before it.",
    ),
]

# --- the cases ------------------------------------------------------------------------------------

CASES = {
    "4 layers of 3 s, copies of 5 s, prefetch 0": ([3.0] * 4, [5.0] * 4, 0),
    "the same, prefetch 1": ([3.0] * 4, [5.0] * 4, 1),
    "the same, prefetch 2": ([3.0] * 4, [5.0] * 4, 2),
    "copies shorter than layers, prefetch 1": ([5.0] * 4, [2.0] * 4, 1),
    "one long layer, prefetch 1": ([1.0, 9.0, 1.0, 1.0, 1.0], [2.0, 2.0, 4.0, 3.0, 4.0], 1),
    "one long layer, prefetch 2": ([1.0, 9.0, 1.0, 1.0, 1.0], [2.0, 2.0, 4.0, 3.0, 4.0], 2),
    "one long layer, prefetch 3": ([1.0, 9.0, 1.0, 1.0, 1.0], [2.0, 2.0, 4.0, 3.0, 4.0], 3),
    "unequal layers, prefetch 0": ([2.0, 1.0, 4.0], [1.0, 3.0, 2.0], 0),
    "two layers are there already, prefetch 1": ([2.0, 3.0, 1.0, 2.0], [0.0, 4.0, 0.0, 6.0], 1),
    "more prefetch than layers": ([2.0, 5.0, 1.0], [3.0, 1.0, 2.0], 7),
    "one layer": ([2.0], [3.0], 1),
}

MAKESPAN = Exercise(
    name="offload_makespan",
    title="Copied ahead",
    chapter="07",
    reference=offload_makespan,
    cases=list(CASES.values()),
    labels=list(CASES),
    mistakes=MISTAKES,
    hints=[
        "Two numbers move: when the link is free (the end of the last copy), and when each layer "
        "has ended (a list). Go through the layers once.",
        "Copy j starts at the larger of two times: the end of copy j - 1, and the end of layer "
        "j - 1 - prefetch, which is 0 where there is no such layer (mind negative indices).",
        "Layer j starts at the larger of two times: the end of layer j - 1, and the end of copy j.",
    ],
)

register(MAKESPAN)
