"""Chapter 05: searches for a loss scale with one thing out of place, and what to say about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial


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
    scales, stepped = _searched(found_inf, scale, *others)
    return [scale, *scales][: len(scales)], stepped


def _with_the_first(found_inf, scale, *others):
    scales, stepped = _searched(found_inf, scale, *others)
    return [scale, *scales], stepped


def _other_steps(of: Callable[[bool], bool]) -> Callable:
    def wrong(found_inf, *others):
        return _searched(found_inf, *others)[0], [of(inf) for inf in found_inf]

    return wrong


def _steps_taken_alone(found_inf, *others):
    scales, stepped = _searched(found_inf, *others)
    return [scale for scale, good in zip(scales, stepped, strict=True) if good], stepped


def _both_of_steps_taken(found_inf, *others):
    return _steps_taken_alone(found_inf, *others)[0], [True for inf in found_inf if not inf]


def _read_the_other_way(found_inf, *others):
    return _searched([not inf for inf in found_inf], *others)


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
        _both_of_steps_taken,
        "Skipped steps are missing in both lists: a step that is skipped has a scale too, and a "
        "False.",
    ),
    (
        lambda *arguments: _searched(*arguments)[0],
        "The scales are right, and alone: return a second list, of whether each step was taken.",
    ),
    (
        lambda *arguments: list(zip(*_searched(*arguments), strict=True)),
        "One pair for each step; wanted are two lists, the scales and which steps were taken.",
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
        lambda *arguments: _searched(*arguments)[::-1],
        "The two are returned in the wrong order: scales, then which steps were taken.",
    ),
]
