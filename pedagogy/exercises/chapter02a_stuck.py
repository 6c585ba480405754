"""Chapter 02a: what is asked before the parts on dead-locks, uneven stages and halves."""

from __future__ import annotations

import re

from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.pipeline import (
    Action,
    check_schedule,
    gpipe,
    one_f_one_b,
    simulate,
    zero_bubble_h1,
)
from pedagogy.pipeline.notation import parse_schedule


def _where_rank_1_stands() -> str:
    try:
        check_schedule(parse_schedule("F0 B0 F1 B1\nF0 F1 B0 B1"))
    except ValueError as error:
        return re.search(r"rank 1 stands at (\w+)@", str(error)).group(1)
    raise AssertionError("this schedule should dead-lock")


def _drain(schedule, **costs) -> float:
    """From the end of the last rank's last B to that of rank 0."""
    simulation = simulate(schedule, **costs)
    return simulation.end[Action("B", 0, 7)] - simulation.end[Action("B", 3, 7)]


STUCK = Prediction(
    name="stuck_at",
    chapter="02a",
    question='Rank 0: F0 B0 F1 B1. Rank 1: F0 F1 B0 B1. At which action is rank 1 stuck? ("F0"?)',
    key=_where_rank_1_stands,
    mistakes=[
        ("F0", "its activation is there: rank 0 runs F0 first, and then waits."),
        ("B0", "that is where rank 0 stands; rank 1 does not get as far as its own B0."),
        ("B1", "it would have to pass F1 and B0 first."),
    ],
    because="F1 of rank 0 stands behind B0 of rank 0, which waits for B0 of rank 1, behind its F1.",
)

SLOW = Prediction(
    name="slow_stage",
    chapter="02a",
    question="GPipe, 4 stages, 8 micro-batches; forwards take 1, 1, 2, 1 and backwards twice as "
    "long: how many units does a step take?",
    key=lambda: simulate(gpipe(4, 8), [1, 1, 2, 1], [2, 2, 4, 2]).makespan,
    mistakes=[
        (33, "that is with four stages of 1: the slow one is not hidden by the others."),
        (66, "that is with four stages of 2: the fill and the drain pass three fast ones."),
        (48, "that is the slow stage's own work; it waits for its first micro-batch, twice."),
        (41.25, "the mean of the stages does not matter; the slowest does."),
        (63, "the sum of the stages, 15, and then 7 times the slow one, 6, not 8 times."),
        (36, "33, and 3 for the slow stage once; it is slow for each of the 8 micro-batches."),
        (60, "8 times the slow stage is 48; the three others, passed once, add 9."),
        (19, "those are the forwards alone."),
        (38, "those are the backwards alone."),
    ],
    because="(1+1+2+1) + 7*2 = 19 forward and twice that back.",
)

DRAIN = Prediction(
    name="drain_of_halves",
    chapter="02a",
    question="4 stages, F, B and W one unit each. After the last rank's last backward its gradient "
    "passes three stages: units with whole backwards (B and W together), and with B alone?",
    key=lambda: [_drain(one_f_one_b(4, 8)), _drain(zero_bubble_h1(4, 8), weight=1)],
    mistakes=[
        ([8, 4], "three stages are left, not four."),
        ([6, 6], "a stage sends the gradient on when B has ended; nobody waits for its W."),
        ([3, 6], "the whole backwards were asked for first."),
        ([6, 0], "the gradients of the inputs still depend on each other."),
        ([9, 6], "a backward is two units, B and W; the forward is no part of it."),
        ([9, 3], "a whole backward is two units, B and W; the forward is no part of it."),
        ([2, 1], "that is one stage; three are left."),
        ([3, 3], "a whole backward sends its gradient on after both halves."),
        ([12, 6], "a backward is two units, B and W, and three stages are left."),
    ],
    because="Three times 2, and three times 1: only the input's half is in the chain.",
)

register(STUCK, SLOW, DRAIN)
