"""Chapter 02a: when each action of a schedule starts."""

from __future__ import annotations

from collections.abc import Callable

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register
from pedagogy.pipeline import Schedule, gpipe, interleaved, one_f_one_b


def start_times(schedule: Schedule, forward: float, backward: float) -> dict[tuple, float]:
    """The start of each action (kind, stage, micro-batch); messages take no time.

    An action starts when its rank is free and what it waits for has ended.
    """
    start, end = {}, {}
    last_stage = max(stage for actions in schedule for _, stage, _ in actions)
    free, todo = [0] * len(schedule), [list(actions) for actions in schedule]
    while any(todo):
        for rank, actions in enumerate(todo):
            while actions:
                kind, stage, k = actions[0]
                need = (kind, stage - 1, k) if kind == "F" else (kind, stage + 1, k)
                if 0 <= need[1] <= last_stage and need not in end:
                    break  # not there yet: another rank's turn
                action = actions.pop(0)
                start[action] = max(free[rank], end.get(need, 0))
                free[rank] = start[action] + (forward if kind == "F" else backward)
                end[action] = free[rank]
    return start


# --- mistakes: an action waits for too little, or for too much -----------------------------------

Needs = Callable[..., list[tuple]]


def _rank(rank: int, action: tuple) -> int:
    return rank


def _settled(
    schedule: Schedule, forward: float, backward: float, needs: Needs, lane: Callable = _rank
) -> dict:
    """The earliest starts that `needs` allows; actions of one `lane` do not overlap."""
    took, start, before = {"F": forward, "B": backward}, {}, None
    last = max(stage for actions in schedule for _, stage, _ in actions)
    while start != before:
        before, free = dict(start), {}
        for rank, actions in enumerate(schedule):
            for action in map(tuple, actions):
                ends = [start.get(need, 0) + took[need[0]] for need in needs(*action, last)]
                own = lane(rank, action)
                start[action] = max(0, free.get(own, 0), *ends)
                free[own] = start[action] + took[action[0]]
    return start


def _needs(kind: str, stage: int, k: int, last: int) -> list[tuple]:
    if kind == "F":
        return [("F", stage - 1, k)] if stage else []
    return [("F", stage, k)] + ([("B", stage + 1, k)] if stage < last else [])


def _never_busy(schedule, forward, backward):
    return _settled(schedule, forward, backward, _needs, lambda rank, action: action)


def _busy_by_stage(schedule, forward, backward):
    return _settled(schedule, forward, backward, _needs, lambda rank, action: action[1])


def _no_gradient(schedule, forward, backward):
    def needs(*action):
        return [need for need in _needs(*action) if need[0] == "F"]

    return _settled(schedule, forward, backward, needs)


def _no_activation(schedule, forward, backward):
    def needs(*action):
        return [] if action[0] == "F" else _needs(*action)

    return _settled(schedule, forward, backward, needs)


def _last_stage_by_rank(schedule, forward, backward):
    last = len(schedule) - 1
    return _settled(schedule, forward, backward, lambda *action: _needs(*action[:3], last))


def _stages_by_rank(schedule, forward, backward):
    def needs(*action):
        return [need for need in _needs(*action) if need[1] < len(schedule)]

    return _settled(schedule, forward, backward, needs)


def _one_after_the_other(schedule, forward, backward):
    start, now = {}, 0
    for action, _ in sorted(
        start_times(schedule, forward, backward).items(), key=lambda one: one[1]
    ):
        start[action] = now
        now += forward if action[0] == "F" else backward
    return start


def _ends(schedule, forward, backward):
    start = start_times(schedule, forward, backward)
    return {one: time + (forward if one[0] == "F" else backward) for one, time in start.items()}


def _equal_times(schedule, forward, backward):
    return start_times(schedule, forward, forward)


def _plain(schedule: Schedule) -> list[list[tuple]]:
    return [[tuple(action) for action in actions] for actions in schedule]


_MORE_STAGES = (
    "A rank may hold several stages: the last stage is not the number of ranks minus 1, but the "
    "largest in the schedule."
)
TIMES = Exercise(
    name="start_times",
    title="A simulator in fifteen lines",
    chapter="02a",
    reference=start_times,
    cases=[
        (_plain(gpipe(3, 4)), 1, 2),
        (_plain(one_f_one_b(4, 8)), 1, 2),
        (_plain(one_f_one_b(3, 2)), 3, 1),
        (_plain(interleaved(2, 4, 2)), 1, 2),
    ],
    labels=[
        "GPipe, 3 stages, 4 micro-batches",
        "1F1B, 4 stages, 8 micro-batches",
        "1F1B, 3 stages, 2 micro-batches, a forward of 3 and a backward of 1",
        "interleaved, 2 ranks with 2 stages each, 4 micro-batches",
    ],
    mistakes=[
        (
            _never_busy,
            "A rank does one thing at a time: an action also waits for the one before it in its "
            "rank's list.",
        ),
        (
            _busy_by_stage,
            "What is busy is the rank, not the stage: with two stages on a rank, the actions of "
            "one wait for those of the other.",
        ),
        (
            _no_gradient,
            "A backward waits for the gradient of the stage behind. If you go through the ranks "
            "once, in order, that stage has no times yet: come back to the ranks that waited.",
        ),
        *((wrong, _MORE_STAGES) for wrong in (_last_stage_by_rank, _stages_by_rank)),
        (_no_activation, "A forward waits for the activation of the stage before."),
        (
            _one_after_the_other,
            "Here everything runs one after the other, as on one rank: keep a time at which it is "
            "free for each rank.",
        ),
        (_ends, "These are the ends; the starts were asked for."),
        (_equal_times, "A backward takes `backward`, not `forward`."),
    ],
    hints=[
        "Keep end[action] for what has run, and free[rank]. An action starts at the larger of "
        "free[rank] and the end of what it waits for.",
        "F of stage s waits for F of stage s - 1, B for B of stage s + 1. The first forward and "
        "the last stage's backward wait for their rank alone; the last stage is the largest number "
        "in the schedule.",
        "Go round the ranks until all lists are done. If what the next action of a rank waits for "
        "has no end yet, leave that rank and try the next one.",
    ],
)

register(TIMES)
