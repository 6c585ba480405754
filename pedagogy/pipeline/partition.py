"""Where to cut a model into stages, and which stages to replicate.

The problem
-----------
A pipeline is as fast as its slowest stage. Layers have an order, so a cut into p stages is p - 1
places between layers, and the question is which. For L layers there are C(L - 1, p - 1) answers:
too many to try, and there is no need to.

How it works
------------
The best cut of the layers from i on into k stages is a first stage i..j and the best cut of the
rest into k - 1. Both `partition` and `partition_replicated` fill a table of such answers, smallest
first (dynamic programming): O(L^2 p) and O(L^2 M^2).

`partition` knows times only. `partition_replicated` is PipeDream's: it also gives M machines to
stages, of which some may be replicated, and pays for what is sent. With layers counted from 1,

    T(i..j, m) = 1/m max(sum of T_l, sum of W_l^m)   one stage on m machines, seconds per minibatch
    A(j, m)    = min(T(1..j, m), min over i, m' of max(A(i, m - m'), 2 C_i, T(i+1..j, m')))

where W_l^m = 4 (m-1)/m w_l/bandwidth synchronises the w_l bytes of a layer's weights among m
replicas, and C_i = a_i/bandwidth sends the activation of layer i; its gradient comes back: 2 C_i.

What it finds
-------------
Convolutions: long times, few weights; replicas pay. Large dense layers: many weights, little
time; one machine. A model without large layers: all machines replicate all of it, which is data
parallelism.

What real systems do differently: torchgpipe balances times by a local search, which may miss the
best cut. PipeDream's later, hierarchical optimizer solves this once inside a server and once
between servers, each with its own bandwidth, and checks memory; the released one adds computation
and synchronisation where the paper takes the larger.

Sources: Harlap et al. 2018 (PipeDream, arXiv:1806.03377), partitioning algorithm; Narayanan et al.
2019 (PipeDream, SOSP).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any, NamedTuple


class LayerCost(NamedTuple):
    """A layer's profile: seconds of forward and backward, bytes of its output and its weights."""

    seconds: float
    activation_bytes: float
    weight_bytes: float


class ReplicatedStage(NamedTuple):
    """Layers first..last - 1, on as many machines as there are replicas."""

    first: int
    last: int
    replicas: int


class Plan(NamedTuple):
    """Stages in order, and the seconds from one minibatch to the next."""

    seconds: float
    stages: list[ReplicatedStage]


def partition(costs: Sequence[float], num_stages: int) -> list[tuple[int, int]]:
    """The contiguous split whose largest stage is smallest, as (first, last + 1) for each stage.

    Of equal ones the most even (smallest sum of squares), of these the one with the longest first
    stages. Sums are exact. Every stage has a layer.
    **Raises** ValueError for more stages than layers, none, or a cost that is no time.

    >>> partition([1, 2, 3, 4, 5, 6], 3)
    [(0, 3), (3, 5), (5, 6)]
    """
    num_layers = len(costs)
    if not isinstance(num_stages, Integral) or not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"{num_stages} stages for {num_layers} layers: each stage needs at least one layer; "
            f"choose from 1 to {num_layers}"
        )
    for index, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"layer {index} costs {cost}: must be 0 or more, and finite")
    sums = _exact_sums(costs)
    largest, _ = _best_split(sums, num_stages, lambda stage: stage, max)
    _, cuts = _best_split(
        sums,
        num_stages,
        lambda stage: (stage > largest, stage**2),  # none above the largest, then evenness
        lambda one, other: (one[0] + other[0], one[1] + other[1]),
        nothing=(0, 0),
    )
    return list(pairwise(cuts))


def partition_replicated(layers: Sequence[LayerCost], num_machines: int, bandwidth: float) -> Plan:
    """PipeDream's plan: contiguous stages and replicas that use all machines, slowest part fastest.

    Bandwidth is in bytes per second, the same between any two machines. A plan with more stages is
    taken only where it is faster. Latency, memory and the start-up are ignored.
    **Raises** ValueError for no layer, no machine, or no bandwidth.
    **Source** Harlap et al. 2018 (PipeDream), partitioning algorithm.
    """
    if not layers or num_machines < 1 or not bandwidth > 0:
        raise ValueError(
            f"{len(layers)} layers on {num_machines} machines at {bandwidth} bytes/s: "
            "needs at least one layer, one machine, and a bandwidth above 0"
        )
    wrong = next((c for c in layers if not (min(c) >= 0 and math.isfinite(sum(c)))), None)
    if wrong is not None:
        raise ValueError(f"{wrong}: times and bytes must be 0 or more, and finite")
    best: dict[tuple[int, int], Plan] = {}  # (layers from the first on, machines) -> plan
    for last in range(1, len(layers) + 1):
        for machines in range(1, num_machines + 1):
            whole = ReplicatedStage(0, last, machines)
            plans = [Plan(stage_seconds(layers, whole, bandwidth), [whole])]
            for first in range(1, last):
                boundary = 2 * layers[first - 1].activation_bytes / bandwidth
                for replicas in range(1, machines):
                    stage = ReplicatedStage(first, last, replicas)
                    before = best[first, machines - replicas]
                    own = stage_seconds(layers, stage, bandwidth)
                    slowest = max(before.seconds, boundary, own)
                    plans.append(Plan(slowest, [*before.stages, stage]))
            best[last, machines] = min(plans, key=lambda plan: (plan.seconds, len(plan.stages)))
    return best[len(layers), num_machines]


def stage_seconds(layers: Sequence[LayerCost], stage: ReplicatedStage, bandwidth: float) -> float:
    """T: seconds per minibatch of one stage, 1/m max(computation, synchronisation of weights).

    A replica handles each m-th minibatch; the m gradients of a round are averaged meanwhile, for
    which each replica sends 2 (m-1)/m of the weight bytes and receives as many.
    **Source** Harlap et al. 2018 (PipeDream), partitioning algorithm.
    """
    own, replicas = layers[stage.first : stage.last], stage.replicas
    seconds = sum(layer.seconds for layer in own)
    weight_bytes = sum(layer.weight_bytes for layer in own)
    synchronisation = 4 * (replicas - 1) / replicas * weight_bytes / bandwidth
    return max(seconds, synchronisation) / replicas


def _exact_sums(costs: Sequence[float]) -> list[int]:
    """Sums of the first 0, 1, ... costs as whole numbers of a common unit: ties are ties."""
    exact = [Fraction(float(cost)) for cost in costs]
    unit = math.lcm(*(cost.denominator for cost in exact))
    return [0, *accumulate(int(cost * unit) for cost in exact)]


def _best_split(
    sums: list[int], num_stages: int, cost: Callable, combine: Callable, nothing: Any = 0
) -> tuple[Any, list[int]]:
    """The smallest combined cost of num_stages stages, and the places to cut: 0, ..., L."""
    num_layers = len(sums) - 1
    best = {num_layers: (nothing, [num_layers])}  # first layer -> the best split from there on
    for _ in range(num_stages):
        longer = {}
        for first in range(num_layers):
            splits = [
                (combine(cost(sums[last] - sums[first]), rest), [first, *cuts])
                for last, (rest, cuts) in best.items()
                if last > first
            ]
            if splits:  # of equal ones the longest first stage
                longer[first] = min(splits, key=lambda split: (split[0], -split[1][1]))
        best = longer
    return best[0]
