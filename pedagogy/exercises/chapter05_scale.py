"""Chapter 05: the search for a loss scale: halve when it was too large, double after a while."""

from __future__ import annotations

from collections.abc import Sequence

from pedagogy.exercises.chapter05_wrong_scales import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def dynamic_scale(
    found_inf: Sequence[bool],
    scale: float,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> tuple[list[float], list[bool]]:
    """The scale after each step's update, and whether the optimizer stepped: two lists.

    `found_inf` says of each step whether a gradient was infinite or NaN.
    """
    scales, stepped, good = [], [], 0  # good: steps without, since the scale changed
    for inf in found_inf:
        stepped.append(not inf)
        good = 0 if inf else good + 1
        if inf:
            scale *= backoff_factor
        elif good == growth_interval:
            scale *= growth_factor
            good = 0
        scales.append(scale)
    return scales, stepped


_NO, _INF = False, True

SCALE = Exercise(
    name="dynamic_scale",
    title="As large as possible, not larger",
    chapter="05",
    reference=dynamic_scale,
    cases=[
        ([_NO, _INF, _NO, _NO, _NO], 8.0, 2.0, 0.5, 2),
        ([_NO] * 8, 1.0, 2.0, 0.5, 3),
        ([_NO, _NO, _INF, _NO, _NO, _INF, _INF, _NO, _NO, _NO, _NO], 64.0, 3.0, 0.25, 3),
        ([_INF, _INF, _NO, _NO, _NO], 2.0, 2.0, 0.5, 1),
    ],
    mistakes=MISTAKES,
    hints=[
        "Keep one counter beside the scale: good steps in a row since the scale last changed.",
        "With an infinity: the step is skipped, the scale falls, the counter is 0. Without: the "
        "counter grows, and if it has reached the interval, the scale grows and the counter is 0.",
    ],
)

register(SCALE)
