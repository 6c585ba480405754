"""Chapter 02b: where to cut a model into stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from pedagogy.exercises.attempt import HERE_SECONDS, Refused, TimeIsOver
from pedagogy.exercises.compare import brief
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def partition_stages(costs: Sequence[float], num_stages: int) -> list[tuple[int, int]]:
    """Stages as (first layer, last layer + 1), whose largest sum of costs is smallest."""
    best = {(0, 0): (0, [0])}  # (layers, stages) -> the largest sum, and where the stages end
    for stages in range(1, num_stages + 1):
        for last in range(stages, len(costs) + 1):
            splits = [
                (max(best[first, stages - 1][0], sum(costs[first:last])), first)
                for first in range(last)
                if (first, stages - 1) in best
            ]
            largest, first = min(splits)
            best[last, stages] = (largest, [*best[first, stages - 1][1], last])
    return list(pairwise(best[len(costs), num_stages][1]))


def _equal_counts(costs, num_stages):
    ends = [round(stage * len(costs) / num_stages) for stage in range(num_stages + 1)]
    return list(pairwise(ends))


def _closed(costs: Sequence[float], num_stages: int, full: Callable) -> list[tuple[int, int]]:
    """From the left; a stage ends where it is full, or where the rest needs a layer each."""
    ends, held, average = [0], 0, sum(costs) / num_stages
    for layer, cost in enumerate(costs):
        left = num_stages - len(ends)  # stages that must still be opened
        if layer > ends[-1] and left and (full(held, cost, average) or len(costs) - layer == left):
            ends.append(layer)
            held = 0
        held += cost
    return list(pairwise([*ends, len(costs)]))


def _filled_to_the_average(costs, num_stages):
    return _closed(costs, num_stages, lambda held, cost, average: held >= average)


def _never_above_the_average(costs, num_stages):
    return _closed(costs, num_stages, lambda held, cost, average: held + cost > average)


def _nearest_to_each_share(costs, num_stages):
    sums, ends = [sum(costs[:end]) for end in range(len(costs) + 1)], [0]
    for stage in range(1, num_stages):
        places = range(ends[-1] + 1, len(costs) - (num_stages - stage) + 1)
        share = stage * sums[-1] / num_stages
        ends.append(min(places, key=lambda end: abs(sums[end] - share)))
    return list(pairwise([*ends, len(costs)]))


def _rest_to_the_last(costs, num_stages):
    ends = [*range(num_stages), len(costs)]
    return list(pairwise(ends))


def _last_included(costs, num_stages):
    return [(first, last - 1) for first, last in partition_stages(costs, num_stages)]


def _sums(costs, num_stages):
    return [sum(costs[first:last]) for first, last in partition_stages(costs, num_stages)]


def _largest(function: Callable, costs: list[float], num_stages: int) -> dict | None:
    try:
        answer = function(list(costs), num_stages)
    except TimeIsOver:
        raise Refused(
            f"there is no end after {HERE_SECONDS:.0f} s for {len(costs)} layers and {num_stages} "
            "stages: the same parts are cut again and again. Keep what you have computed (a table, "
            "or functools.cache)"
        ) from None
    if answer is None:
        return None
    stages = _checked(answer, len(costs), num_stages)
    return {"the largest stage": max(sum(costs[first:last]) for first, last in stages)}


def _checked(answer: Any, num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    where = f"for {num_layers} layers and {num_stages} stages"
    if not isinstance(answer, (list, tuple)):
        raise Refused(f"{where} it returns {brief(answer)}, not a list")
    for one in answer:
        if not isinstance(one, (list, tuple)) or [type(number) for number in one] != [int, int]:
            raise Refused(f"{where} a stage is {brief(one)}, not (first layer, last layer + 1)")
    if len(answer) != num_stages:
        raise Refused(f"{where} there are {len(answer)} stages in the answer")
    end = 0
    for stage, (first, last) in enumerate(answer):
        if first != end:
            raise Refused(f"{where} stage {stage} begins at layer {first}, not at {end}")
        if last <= first:
            raise Refused(f"{where} stage {stage}, ({first}, {last}), has no layer")
        end = last
    if end != num_layers:
        raise Refused(f"{where} the last stage ends before {end}, not before {num_layers}")
    return list(answer)


_MANY = [(7 * layer) % 23 + 1 for layer in range(40)]
PARTITION = Exercise(
    name="partition_stages",
    title="As fast as the slowest stage",
    chapter="02b",
    reference=partition_stages,
    cases=[
        ([1, 2, 3, 4, 5, 6], 3),
        ([5, 1, 1, 1, 1, 1], 2),
        ([2, 2, 2, 9, 1, 1], 3),
        ([4, 4], 2),
        (_MANY, 8),
    ],
    labels=[
        "1, 2, 3, 4, 5, 6 into 3",
        "5, 1, 1, 1, 1, 1 into 2",
        "2, 2, 2, 9, 1, 1 into 3",
        "4, 4 into 2",
        "40 layers into 8 (15,380,937 ways to cut)",
    ],
    observe=_largest,
    mistakes=[
        (
            _equal_counts,
            "These stages have equally many layers. Layers differ: look at the sums.",
        ),
        (
            _filled_to_the_average,
            "This fills the stages from the left, each until it reaches the average. What is good "
            "for one stage can spoil the next ones: compare all places for the last cut.",
        ),
        (
            _never_above_the_average,
            "This closes a stage before it would pass the average, so what did not fit piles up in "
            "the last one.",
        ),
        (
            _nearest_to_each_share,
            "This cuts where the running sum is nearest to 1/n, 2/n, ... of all. Each cut is near "
            "its own mark, but two that miss towards each other, or apart, make one stage large: "
            "compare whole cuts.",
        ),
        (_rest_to_the_last, "All but the last stage have one layer each; the last has the rest."),
        (
            _last_included,
            "The end of a stage is the layer after its last one, so that costs[first:last] are its "
            "costs.",
        ),
        (_sums, "These are the sums of the stages; where they begin and end was asked for."),
    ],
    hints=[
        "The best cut of the first n layers into k stages is a best cut of the first i into k - 1, "
        "and one stage from i to n.",
        "Fill a table best[n, k] for k = 1, 2, ...: the minimum over i of max(best[i, k - 1], "
        "sum(costs[i:n])). Start with best[0, 0] = 0.",
        "Keep with each entry the i that gave the minimum, or the list of ends so far.",
    ],
)

register(PARTITION)
