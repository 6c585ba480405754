"""Chapter 02a, open puzzle: 24 actions placed by hand, with a slow stage and little memory.

Stage 1 takes twice as long as the others. It cannot start before one forward of stage 0 (1), has
24 to do, and after it one backward of stage 0 must follow (2): no order is faster than 27. 1F1B
takes 28; GPipe takes 30 and holds four micro-batches, for which there is no room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.placed import beside_reference, legal_schedule
from pedagogy.exercises.registry import register
from pedagogy.pipeline import Schedule, Simulation, simulate
from pedagogy.pipeline.notation import parse_schedule

COSTS = {"forward": [1, 2, 1], "backward": [2, 4, 2]}
ROOM = 3  # micro-batches on each rank


def place_by_hand() -> str:
    """A line for each of 3 ranks: 4 forwards, 4 backwards, at most 3 in flight, in a time of 27."""
    return """
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 F1 F2 B0 B1 F3 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """


def _one_f_one_b():
    return """
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 F1 B0 F2 B1 F3 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """


def _gpipe():
    return "F0 F1 F2 F3 B0 B1 B2 B3\n" * 3


def _naive():
    return "F0 B0 F1 B1 F2 B2 F3 B3\n" * 3


def _too_early_on_rank_0():
    return """
        F0 B0 F1 F2 B1 F3 B2 B3
        F0 F1 F2 B0 B1 F3 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """


def _rank_1_asks_too_early():
    return """
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """


def _rank_0_delivers_too_late():
    return """
        F0 F1 F2 B0 B1 F3 B2 B3
        F0 F1 F2 B0 B1 F3 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """


def _legal(answer: Any) -> Schedule:
    if isinstance(answer, (list, tuple)) and all(isinstance(line, str) for line in answer):
        answer = "\n".join(answer)
    if isinstance(answer, str):
        try:
            answer = parse_schedule(answer)
        except ValueError as error:
            raise Refused(str(error)) from None
    return legal_schedule(answer, [[0], [1], [2]], 4, "this placement cannot run")


def _placed(function: Callable) -> dict | None:
    answer = function()
    if answer is None:
        return None
    simulation, best = simulate(_legal(answer), **COSTS), simulate(_reference(), **COSTS)
    for rank, peak in enumerate(simulation.peak_in_flight):
        if peak > ROOM:
            raise Refused(
                f"rank {rank} holds {peak} micro-batches at once, and has room for {ROOM}"
            )
    if simulation.makespan > best.makespan:
        raise Refused(
            f"it runs and fits, but takes {simulation.makespan:g}, and {best.makespan:g} is "
            f"possible: {_lost(simulation)}"
        )
    return {"makespan": simulation.makespan}


def _lost(simulation: Simulation) -> str:
    """Where the slow rank, or another after it, loses time."""
    _, *waits = simulation.waits(1)  # the first one cannot be avoided
    if waits:
        wait = waits[0]
        return f"rank 1, the slow one, waits from {wait.start:g} to {wait.end:g}, as {wait.reason}"
    return "rank 1, the slow one, starts late, or its last gradient lies waiting on rank 0"


def _reference() -> Schedule:
    return parse_schedule(place_by_hand())


def _picture(function: Callable) -> Figure:
    return beside_reference(_legal(function()), _reference(), **COSTS)


PUZZLE = Exercise(
    name="place_by_hand",
    title="Twenty-four actions, one slow stage, room for three",
    chapter="02a",
    reference=place_by_hand,
    cases=[()],
    labels=["3 ranks, 4 micro-batches"],
    observe=_placed,
    picture=_picture,
    mistakes=[
        (
            _one_f_one_b,
            "As in 1F1B, which is made for even stages, the slow rank 1 runs out of work before "
            "its first gradient comes. It has room for one forward more.",
        ),
        (
            _gpipe,
            "As in GPipe, all four micro-batches are under way at once. Some backward must free "
            "its activations before the fourth forward.",
        ),
        (
            _naive,
            "As in the naive schedule, one micro-batch is under way, and one rank at work.",
        ),
        (
            _too_early_on_rank_0,
            "Rank 0 wants the gradient of micro-batch 0 before it has handed on the forwards that "
            "the ranks behind it want first.",
        ),
        (
            _rank_1_asks_too_early,
            "Rank 0 is full until B0 has come back to it, so F3 cannot be there right after B0 of "
            "rank 1. Give rank 1 something else to do meanwhile.",
        ),
        (
            _rank_0_delivers_too_late,
            "Rank 0 goes back twice before it hands on F3, and rank 1 has nothing left to do.",
        ),
    ],
    hints=[
        "Rank 1 has 24 units to do and cannot start before 1: it must never wait after that. Make "
        "its line first.",
        "The first gradient reaches rank 1 at 6. What it can do until then are forwards: count "
        "them, and see how many rank 0 has room to send.",
        "F3 can leave rank 0 only after B0 has come back to it. Rank 1 fills that time with B1.",
    ],
)

register(PUZZLE)
