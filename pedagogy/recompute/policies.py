"""Speed-centric, memory-centric, cost-aware: three answers for layers that are cheap to run again.

The observation
---------------
In a convolutional net, convolutions and fully connected layers take nearly all the time; pooling,
activations and normalisations hold as much memory and take almost none. So keep what is expensive,
drop what is cheap. The dropped layers behind one kept layer are a *segment*.

The policies, for a segment of n layers
---------------------------------------
    speed      run the segment once, when backward first needs something of it, and keep all of
               it until it is used: n extra forwards
    memory     run for each layer's backward what leads to it, and keep nothing:
               n + (n-1) + ... + 1 = n(n+1)/2 extra forwards
    cost       speed for the segments that fit under the largest single layer's need, which the
               device must have in any case; memory for the others

What a segment needs
--------------------
A layer's own backward has its input, its output and a gradient of each in hand: twice the sum of
the two. `speed` needs, at the segment's last layer, the kept layer's output, all outputs of the
segment, and the gradients of the last one's input and output. The kept outputs of *other* segments
are not counted: SuperNeurons swaps them. (Nor is a layer inside the segment that needs more because
the outputs behind it are small: the paper counts so, and `predict` counts all.)

Source: Wang et al. 2018 (SuperNeurons), section 3.4 and its table of extra recomputations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

POLICIES = ("speed", "memory", "cost")


class Segment(NamedTuple):
    """Dropped layers in a row, and how they are run again: "speed" or "memory"."""

    layers: tuple[int, ...]
    policy: str
    peak: int

    @property
    def runs(self) -> list[int]:
        """How often each layer runs again."""
        n = len(self.layers)
        return [1] * n if self.policy == "speed" else [n - i for i in range(n)]


class Plan(NamedTuple):
    """What `plan` returns. Bytes for the working set of one backward, seconds as the costs are."""

    segments: tuple[Segment, ...]
    extra_forwards: int
    extra_cost: float
    peak: int


def plan(
    costs: Sequence[float],
    sizes: Sequence[int],
    policy: str,
    budget: int | None = None,
    kept: Collection[int] | None = None,
    input_size: int = 0,
) -> Plan:
    """How a chain of layers is run again, and what that costs.

    By layer: `costs` of running it once, `sizes` in bytes of its output. `kept`: the layers whose
    output stays; by default those that cost more than the average. `budget`: what "cost" allows a
    segment, instead of the largest layer's need.
    **Raises** ValueError for lists that are empty, of unequal length or negative, another policy,
    a layer that is not there, or a budget that the plan does not keep.
    Source: Wang et al. 2018, section 3.4.
    """
    kept = _check(costs, sizes, policy, kept)
    outputs = [input_size, *sizes]  # outputs[i]: what layer i reads
    needs = [2 * (outputs[i] + outputs[i + 1]) for i in range(len(sizes))]
    limit = max(needs) if budget is None else budget
    segments = []
    for layers in _segments(len(costs), kept):
        read = sum(outputs[layers[0] : layers[-1] + 2])
        all_of_it = read + outputs[layers[-1]] + outputs[layers[-1] + 1]
        alone = max(needs[i] for i in layers)
        fast = policy == "speed" or (policy == "cost" and all_of_it <= limit)
        segments.append(
            Segment(layers, "speed", all_of_it) if fast else Segment(layers, "memory", alone)
        )
    peak = max([*needs, *(segment.peak for segment in segments)])
    if budget is not None and peak > budget:
        raise ValueError(f"the plan needs {peak} bytes, {peak - budget} over the budget {budget}")
    runs = [
        (i, n) for segment in segments for i, n in zip(segment.layers, segment.runs, strict=True)
    ]
    return Plan(tuple(segments), sum(n for _, n in runs), sum(n * costs[i] for i, n in runs), peak)


def _check(
    costs: Sequence[float], sizes: Sequence[int], policy: str, kept: Collection[int] | None
) -> set[int]:
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r}: choose one of {', '.join(POLICIES)}")
    if len(costs) != len(sizes) or not costs:
        raise ValueError(f"{len(costs)} costs and {len(sizes)} sizes: one of each for each layer")
    if min(*costs, *sizes) < 0:
        raise ValueError("costs and sizes must be 0 or more")
    if kept is None:
        average = sum(costs) / len(costs)
        kept = [layer for layer, cost in enumerate(costs) if cost > average]
    missing = sorted(layer for layer in kept if not 0 <= layer < len(costs))
    if missing:
        raise ValueError(f"kept layers {missing}: there are layers 0 to {len(costs) - 1}")
    return set(kept)


def _segments(num_layers: int, kept: set[int]) -> list[tuple[int, ...]]:
    """The dropped layers, cut at the kept ones."""
    segments: list[list[int]] = [[]]
    for layer in range(num_layers):
        if layer in kept:
            segments.append([])
        else:
            segments[-1].append(layer)
    return [tuple(segment) for segment in segments if segment]
