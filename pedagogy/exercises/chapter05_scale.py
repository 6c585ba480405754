"""Chapter 05: the search for a loss scale: halve when it was too large, double after a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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


# --- mistakes -------------------------------------------------------------------------------------


def _searched(
    found_inf: Sequence[bool],
    scale: float,
    growth: float,
    backoff: float,
    interval: int,
    counted: Callable[[int, bool], int] = lambda good, inf: 0 if inf else good + 1,
    is_time: Callable[[int, int], bool] = lambda good, interval: good == interval,
    after_growth: Callable[[int], int] = lambda good: 0,
    up: Callable[[float, float, float], float] = lambda scale, growth, backoff: scale * growth,
    down: Callable[[float, float, float], float] = lambda scale, growth, backoff: scale * backoff,
    grows_when_inf: bool = False,
) -> tuple[list[float], list[bool]]:
    """The search, of which each part can be another one."""
    scales, good = [], 0
    for inf in found_inf:
        good = counted(good, inf)
        if inf:
            scale = down(scale, growth, backoff)
        if (grows_when_inf or not inf) and is_time(good, interval):
            scale, good = up(scale, growth, backoff), after_growth(good)
        scales.append(scale)
    return scales, [not inf for inf in found_inf]


def _before_each_step(found_inf, scale, *others):
    scales, stepped = dynamic_scale(found_inf, scale, *others)
    return [scale, *scales][: len(scales)], stepped


def _with_the_first(found_inf, scale, *others):
    scales, stepped = dynamic_scale(found_inf, scale, *others)
    return [scale, *scales], stepped


def _other_steps(of: Callable[[bool], bool]) -> Callable:
    def wrong(found_inf, *others):
        return dynamic_scale(found_inf, *others)[0], [of(inf) for inf in found_inf]

    return wrong


def _steps_taken_alone(found_inf, *others):
    scales, stepped = dynamic_scale(found_inf, *others)
    return [scale for scale, good in zip(scales, stepped, strict=True) if good], stepped


def _read_the_other_way(found_inf, *others):
    return dynamic_scale([not inf for inf in found_inf], *others)


def _grown_at_the_next_step(found_inf, scale, growth, backoff, interval):
    """The counter is looked at before this step is counted."""
    scales, good = [], 0
    for inf in found_inf:
        if good == interval:
            scale, good = scale * growth, 0
        if inf:
            scale, good = scale * backoff, 0
        else:
            good += 1
        scales.append(scale)
    return scales, [not inf for inf in found_inf]


def _by_the_step(first: int) -> Callable:
    """Grows at every interval-th step, whatever happened since."""

    def wrong(found_inf, scale, growth, backoff, interval):
        scales = []
        for step, inf in enumerate(found_inf, start=first):
            if inf:
                scale *= backoff
            elif step % interval == 0:
                scale *= growth
            scales.append(scale)
        return scales, [not inf for inf in found_inf]

    return wrong


def _does_not_grow(*arguments):
    return _searched(*arguments, is_time=lambda good, interval: False)


_NOT_RESET = (
    "A step with an infinity does not set the counter back: the scale doubles after so many good "
    "steps *in a row*, and the row begins anew."
)
_LATE = "The scale grows one step late: the step that makes the row complete counts already."
_BY_THE_STEP = (
    "The scale grows by the number of the step. What counts are good steps in a row since it last "
    "changed, down or up."
)

MISTAKES = [
    (partial(_searched, counted=lambda good, inf: good if inf else good + 1), _NOT_RESET),
    (
        partial(_searched, counted=lambda good, inf: good + 1),
        "Steps that were skipped are counted, as if they had gone well: an infinity sets the "
        "counter back to 0.",
    ),
    (
        partial(_searched, counted=lambda good, inf: good + 1, grows_when_inf=True),
        "Every step is counted, and one with an infinity may even double the scale. It halves, "
        "and the counter begins at 0.",
    ),
    (
        partial(_searched, counted=lambda good, inf: 1 if inf else good + 1),
        "After an infinity the counter begins at 1, as if the skipped step had gone well: it "
        "begins at 0.",
    ),
    (partial(_searched, is_time=lambda good, interval: good > interval), _LATE),
    (_grown_at_the_next_step, _LATE),
    (
        partial(_searched, is_time=lambda good, interval: good == interval - 1),
        "The scale grows one step early: count the step first, then compare with the interval.",
    ),
    (
        partial(
            _searched,
            is_time=lambda good, interval: good >= interval,
            after_growth=lambda good: good,
        ),
        "After it has grown once, the scale grows at every step: set the counter back to 0.",
    ),
    (
        partial(_searched, after_growth=lambda good: good),
        "The counter goes on after the scale has grown, and never meets the interval again: set "
        "it back to 0.",
    ),
    (
        partial(_searched, after_growth=lambda good: 1),
        "After the scale has grown the counter begins at 1; it begins at 0.",
    ),
    (_by_the_step(1), _BY_THE_STEP),
    (_by_the_step(0), _BY_THE_STEP),
    (_does_not_grow, "The scale only falls. After so many good steps in a row it grows again."),
    (
        partial(_searched, down=lambda scale, growth, backoff: scale),
        "The scale does not fall. After an infinity it is multiplied by the backoff factor.",
    ),
    (
        partial(_searched, down=lambda scale, growth, backoff: scale / growth),
        "After an infinity the scale is divided by the growth factor; it has a factor of its own, "
        "backoff_factor.",
    ),
    (
        partial(_searched, down=lambda scale, growth, backoff: scale / backoff),
        "Divided by the backoff factor, which is below 1, the scale grows: multiply.",
    ),
    (
        partial(_searched, up=lambda scale, growth, backoff: scale / backoff),
        "After good steps the scale is divided by the backoff factor; it has a factor of its own, "
        "growth_factor.",
    ),
    (
        partial(_searched, down=lambda scale, growth, backoff: max(scale * backoff, 1.0)),
        "The scale stops at 1 here. torch's does not: it may fall below.",
    ),
    (
        _before_each_step,
        "These are the scales with which the steps were made. Wanted are those after each step's "
        "update: the first step's own result comes first.",
    ),
    (
        _with_the_first,
        "The initial scale stands first. Wanted is one for each step, after its update.",
    ),
    (
        _steps_taken_alone,
        "The scales of skipped steps are missing: update() comes once a step, skipped or not.",
    ),
    (
        _other_steps(lambda inf: True),
        "The scales are right, but every step is taken: with an infinite gradient, the weights "
        "would become infinite too. Skip it.",
    ),
    (
        _other_steps(lambda inf: inf),
        "The scales are right. The second list says which steps were taken, and this one which "
        "were skipped.",
    ),
    (_read_the_other_way, "found_inf is True where a gradient was infinite, so not a good step."),
    (
        lambda *arguments: dynamic_scale(*arguments)[::-1],
        "The two are returned in the wrong order: scales, then which steps were taken.",
    ),
]

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
