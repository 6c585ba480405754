"""Chapter 02a: the order of 1F1B.

A simulator stands in `chapter02a_times`, an executor in `chapter02a_ranks`, a backward in two
halves in `chapter02a_split`, the puzzle in `chapter02a_puzzle`, predictions in
`chapter02a_predictions`.
"""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.placed import beside_reference, legal_schedule, peak_within
from pedagogy.exercises.registry import register
from pedagogy.pipeline import Schedule, simulate


def one_f_one_b_order(num_stages: int, num_microbatches: int) -> list[list[tuple]]:
    """For each stage its actions ("F" or "B", stage, micro-batch) in the order of 1F1B."""
    schedule = []
    for stage in range(num_stages):
        warmup = min(num_stages - 1 - stage, num_microbatches)
        order = [("F", stage, k) for k in range(warmup)]
        for k in range(num_microbatches - warmup):
            order += [("F", stage, warmup + k), ("B", stage, k)]
        order += [("B", stage, k) for k in range(num_microbatches - warmup, num_microbatches)]
        schedule.append(order)
    return schedule


def _warmed_up(p: int, m: int, warmup: Callable[[int], int]) -> list[list[tuple]]:
    schedule = []
    for stage in range(p):
        first = min(warmup(stage), m)
        order = [("F", stage, k) for k in range(first)]
        for k in range(m):
            order += [("F", stage, first + k)] if first + k < m else []
            order += [("B", stage, k)]
        schedule.append(order)
    return schedule


def _all_forwards_first(num_stages, num_microbatches):
    return _warmed_up(num_stages, num_microbatches, lambda stage: num_microbatches)


def _one_at_a_time(num_stages, num_microbatches):
    return _warmed_up(num_stages, num_microbatches, lambda stage: 0)


def _one_forward_too_many(num_stages, num_microbatches):
    return _warmed_up(num_stages, num_microbatches, lambda stage: num_stages - stage)


def _one_forward_too_few(num_stages, num_microbatches):
    return _warmed_up(num_stages, num_microbatches, lambda s: max(num_stages - 2 - s, 0))


def _all_as_the_first(num_stages, num_microbatches):
    return _warmed_up(num_stages, num_microbatches, lambda stage: num_stages - 1)


def _upside_down(num_stages, num_microbatches):
    return _warmed_up(num_stages, num_microbatches, lambda stage: stage)


def _backward_first(num_stages, num_microbatches):
    schedule = []
    for stage in range(num_stages):
        warmup = min(num_stages - 1 - stage, num_microbatches)
        order = [("F", stage, k) for k in range(warmup)]
        for k in range(num_microbatches - warmup):
            order += [("B", stage, k), ("F", stage, warmup + k)]
        order += [("B", stage, k) for k in range(num_microbatches - warmup, num_microbatches)]
        schedule.append(order)
    return schedule


def _no_drain(num_stages, num_microbatches):
    whole = one_f_one_b_order(num_stages, num_microbatches)
    return [
        order[: 2 * num_microbatches - min(num_stages - 1 - stage, num_microbatches)]
        for stage, order in enumerate(whole)
    ]


def _more_than_there_are(num_stages, num_microbatches):
    schedule = one_f_one_b_order(num_stages, num_microbatches)
    for stage, order in enumerate(schedule):
        beyond = range(num_microbatches, num_stages - 1 - stage)
        order[num_microbatches:num_microbatches] = [("F", stage, k) for k in beyond]
    return schedule


def _schedule(function: Callable, num_stages: int, num_microbatches: int) -> Schedule:
    return _legal(function(num_stages, num_microbatches), num_stages, num_microbatches)


def _legal(answer, num_stages, num_microbatches):
    where = f"with {num_stages} stages and {num_microbatches} micro-batches"
    ranks = [[stage] for stage in range(num_stages)]
    return legal_schedule(answer, ranks, num_microbatches, where)


def _makespan(function, num_stages, num_microbatches):
    answer = function(num_stages, num_microbatches)
    if answer is None:
        return None
    return {"makespan": simulate(_legal(answer, num_stages, num_microbatches)).makespan}


def _picture(function: Callable) -> Figure:
    return beside_reference(_schedule(function, 4, 8), one_f_one_b_order(4, 8))


_CASES = [(4, 8), (2, 3), (4, 2), (1, 3)]
ORDER = Exercise(
    name="one_f_one_b_order",
    title="The time of GPipe with a fraction of its memory",
    chapter="02a",
    reference=one_f_one_b_order,
    cases=_CASES,
    labels=[f"{p} stages, {m} micro-batches" for p, m in _CASES],
    observe=_makespan,
    picture=_picture,
    targets=[
        peak_within(
            lambda p, m: simulate(one_f_one_b_order(p, m)).peak_in_flight, _schedule, _CASES
        )
    ],
    mistakes=[
        (
            _all_forwards_first,
            "This is GPipe, or holds as much: no micro-batch leaves before all have come. Start a "
            "backward as soon as its gradient can be there.",
        ),
        (
            _one_at_a_time,
            "Without warm-up only one micro-batch is under way: this is the naive schedule, and "
            "all stages but one wait.",
        ),
        (
            _one_forward_too_many,
            "Stage s warms up with p - 1 - s forwards and then takes a forward and a backward in "
            "turn; this is one forward more, which gains no time and holds one more micro-batch.",
        ),
        (
            _one_forward_too_few,
            "One forward is missing from the warm-up: when it runs out, the first gradient is not "
            "back yet, and the stage waits in every round. Stage s needs p - 1 - s.",
        ),
        (
            _all_as_the_first,
            "Every stage warms up like stage 0, so the last one sits on gradients that all others "
            "wait for. Stage s needs p - 1 - s forwards until its first gradient, the last none.",
        ),
        (
            _upside_down,
            "The warm-up grows with the stage. It must shrink: stage 0 waits longest for its first "
            "gradient, the last stage has it at once.",
        ),
        (
            _backward_first,
            "After p - 1 - s warm-up forwards comes a forward, then a backward: the last stage has "
            "no warm-up at all, and nothing to go back from.",
        ),
        (
            _no_drain,
            "The drain is missing: as many backwards remain as there were warm-up forwards.",
        ),
        (
            _more_than_there_are,
            "The warm-up takes more micro-batches than there are: with m < p - 1 - s it ends at m.",
        ),
    ],
    hints=[
        "The last stage has a gradient right after its forward: F0 B0 F1 B1 ... Write that list "
        "first, then that of the stage before it.",
        "Each list has three parts: warm-up forwards, then one forward and one backward in turn, "
        "then the backwards that remain.",
        "Stage s warms up with min(p - 1 - s, m) forwards: just enough to be busy until its first "
        "gradient arrives.",
    ],
)

register(ORDER)
