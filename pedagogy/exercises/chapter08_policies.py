"""Chapter 08: what three policies cost on a chain of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from pedagogy.costs.recompute import alexnet
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def extra_forwards(
    sizes: Sequence[int], kept: Sequence[bool], input_size: int, policy: str
) -> tuple[int, int]:
    """(forwards beyond the first pass, bytes of the largest working set)."""
    outputs = [input_size, *sizes]  # layer i reads outputs[i] and writes outputs[i + 1]
    largest = max(2 * (one + other) for one, other in pairwise(outputs))
    forwards, peak = 0, largest
    for first, end in segments(kept):
        length = end - first
        need = sum(outputs[first : end + 1]) + outputs[end - 1] + outputs[end]
        if policy == "speed" or (policy == "cost" and need <= largest):
            forwards, peak = forwards + length, max(peak, need)
        else:
            forwards += length * (length + 1) // 2
    return forwards, peak


def segments(kept: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, last + 1) of the layers in a row that are dropped."""
    edges = [i for i, (a, b) in enumerate(pairwise([True, *kept, True])) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _policy(
    sizes: Sequence[int],
    kept: Sequence[bool],
    input_size: int,
    policy: str,
    runs: Callable[[int], int] = lambda n: n * (n + 1) // 2,
    need_of: Callable = lambda o, first, end: sum(o[first : end + 1]) + o[end - 1] + o[end],
    fits: Callable = lambda need, needs, layers: need <= max(needs),
) -> tuple[int, int]:
    """The reference's pair, with the parts that are given in the place of its own."""
    outputs = [input_size, *sizes]
    needs = [2 * (one + other) for one, other in pairwise(outputs)]
    forwards, peak = 0, max(needs)
    for first, end in segments(kept):
        need = need_of(outputs, first, end)
        if policy == "speed" or (policy == "cost" and fits(need, needs, slice(first, end))):
            forwards, peak = forwards + end - first, max(peak, need)
        else:
            forwards += runs(end - first)
    return forwards, peak


def _one_for_all(sizes, kept, input_size, policy):
    fast = extra_forwards(sizes, kept, input_size, "speed")
    slow = extra_forwards(sizes, kept, input_size, "memory")
    return {"speed": fast, "memory": slow, "cost": fast if fast[1] == slow[1] else slow}[policy]


def _layers_alone(sizes, kept, input_size, policy):
    forwards, _ = extra_forwards(sizes, kept, input_size, policy)
    return forwards, extra_forwards(sizes, kept, input_size, "memory")[1]


_CHAIN = alexnet()
ALEXNET = (
    list(_CHAIN.sizes),
    [layer in _CHAIN.kept for layer in range(len(_CHAIN.sizes))],
    _CHAIN.input_size,
)
_SMALL = ([6, 6, 6, 3, 4, 4, 2], [True, False, False, False, True, False, False], 2)
_FITS = ([20, 4, 4, 4], [True, False, False, False], 8)  # a segment that needs what is there
_LOOSE = ([5, 5, 5, 5], [False, False, True, False], 5)  # dropped from the first layer on

POLICY_CASES = {
    f"{name}, {policy}": (*chain, policy)
    for name, chain in {
        "7 layers": _SMALL,
        "a large kept layer": _FITS,
        "layer 0 is dropped": _LOOSE,
        "AlexNet": ALEXNET,
    }.items()
    for policy in ("speed", "memory", "cost")
}

POLICIES = Exercise(
    name="extra_forwards",
    title="Three policies",
    chapter="08",
    reference=extra_forwards,
    cases=list(POLICY_CASES.values()),
    labels=list(POLICY_CASES),
    tolerance=0.0,
    mistakes=[
        (
            partial(_policy, runs=lambda n: n * (n - 1) // 2),
            "Memory-centric runs n + (n - 1) + ... + 1 layers, n(n + 1)/2: for its last layer's "
            "backward all n, as that layer's own output is needed too.",
        ),
        (
            partial(_policy, runs=lambda n: n * n),
            "Memory-centric does not run the whole segment for each layer: to layer i lead i "
            "layers, 1 + 2 + ... + n in all.",
        ),
        (
            _one_for_all,
            "Cost-aware chooses for each segment by itself, not once for the whole net.",
        ),
        (
            partial(_policy, fits=lambda need, needs, layers: need <= max(needs[layers])),
            "The limit is the largest need of all layers, kept ones too: the device must have that "
            "in any case. You took the segment's own.",
        ),
        (
            partial(_policy, need_of=lambda outputs, first, end: sum(outputs[first : end + 1])),
            "A speed segment also needs two gradients: of its last layer's input and output.",
        ),
        (
            _layers_alone,
            "That is the most that one layer needs. A speed segment is there as a whole, and may "
            "need more: the peak is the largest of all.",
        ),
        (
            lambda sizes, kept, input_size, policy: extra_forwards(sizes, kept, 0, policy),
            "Layer 0 reads input_size bytes: they count in its need, and in that of a segment that "
            "begins with it.",
        ),
    ],
    hints=[
        "First the segments: go through `kept`, and begin a new list at each kept layer; empty "
        "ones do not count.",
        "outputs = [input_size, *sizes]: layer i reads outputs[i] and writes outputs[i + 1], and "
        "needs 2 x their sum. The largest of these is the peak of 'memory', and the limit of "
        "'cost'.",
        "A speed segment from `first` to before `end` needs sum(outputs[first:end + 1]) and two "
        "gradients, outputs[end - 1] + outputs[end].",
    ],
)

register(POLICIES)
