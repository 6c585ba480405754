"""Chapter 05: training loops with one thing out of place, and what to say about each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from pedagogy.exercises.chapter05_loop import (
    accumulated,
    clipped_in_fp16,
    decides,
    is_finite,
    kept_after_a_skip,
    on_masters,
    search,
    shortened,
    trained,
)


def _in_other_form(form: Callable[[Tensor, Tensor, list, float, Tensor], Any]) -> Callable:
    """form(weights, masters, scales, scale at first, masters at first) is returned."""

    def wrong(losses, masters, lr, scale, *others):
        return form(*trained(losses, masters, lr, scale, *others), scale, masters)

    return wrong


def _without_skipped(*arguments: Any, fall: Callable[[float], float]) -> tuple:
    """`continue` on a bad step: its scale is not written down."""
    was_good = []

    def noted(true: Tensor, loss: Tensor) -> bool:
        was_good.append(is_finite(true, loss))
        return was_good[-1]

    update = search(fall=fall, after_inf=(lambda good: good) if fall(2) == 2 else (lambda good: 0))
    weights, masters, scales = trained(*arguments, is_good=noted, update_scale=update)
    return weights, masters, [s for s, good in zip(scales, was_good, strict=True) if good]


def _of_scaled(true: Tensor, max_norm: float, scale: float) -> Tensor:
    return shortened(true * scale, max_norm, scale) / scale


def _scaled_clipped_in_fp16(*arguments: Any) -> tuple:
    max_norm = arguments[-1]
    return trained(*arguments, kept=lambda gradient, before: clipped_in_fp16(gradient, max_norm))


def _to_length(true: Tensor, max_norm: float, scale: float) -> Tensor:
    return true * max_norm / true.norm()


def _weights_of_the_last_forward(*arguments: Any) -> tuple:
    seen = []

    def noted(weights: Tensor, masters: Tensor) -> Tensor:
        seen.append(weights)
        return weights

    _, masters, scales = trained(*arguments, of_loss=noted)
    return seen[-1], masters, scales


def _without_root(true: Tensor, max_norm: float, scale: float) -> Tensor:
    return true * (max_norm / (true**2).sum()).clamp(max=1.0)


_ALWAYS = {"is_good": lambda true, loss: True}
_LOSS_DECIDES = (
    "The loss decides what is skipped. It can be finite where the gradient is not: look at the "
    "gradient."
)
_EARLY = (
    "Clipped before it is unscaled: the norm is `scale` times too large there, and so the update "
    "far too small. First divide by the scale, then clip."
)
_ADDS_UP = (
    "Gradients add up from step to step, and an infinite one stays: clear .grad, or begin each "
    "step with a new leaf, after a skipped step too."
)
_NO_UPDATE = (
    "A skipped step leaves the loop before the scale is updated (and written down): the update of "
    "the scale comes once a step, in both branches."
)

MISTAKES = [
    (
        partial(trained, scaled=lambda loss, scale: loss),
        "The loss is not multiplied by the scale before backward, and yet gradients are divided.",
    ),
    (
        partial(
            trained,
            scaled=lambda loss, scale: loss,
            unscaled=lambda gradient, scale: gradient.float(),
        ),
        "There is no scale in backward: what is below fp16's smallest number is lost there, and "
        "nothing later brings it back.",
    ),
    (
        partial(trained, unscaled=lambda gradient, scale: gradient.float()),
        "The gradients are used as they come, multiplied by the scale: divide by it before "
        "anything looks at their size.",
    ),
    (
        partial(trained, unscaled=lambda gradient, scale: (gradient / scale).float()),
        "The gradient is divided by the scale in fp16, where it underflows again: first .float().",
    ),
    (
        partial(trained, scaled=lambda loss, scale: loss.half() * scale),
        "The loss is cast to fp16 before it is scaled. Its gradient is the scale, and 65,536 is "
        "infinite there: the loss stays fp32.",
    ),
    *((wrong, _EARLY) for wrong in (partial(trained, clipped=_of_scaled), _scaled_clipped_in_fp16)),
    (
        partial(trained, clipped=lambda true, max_norm, scale: clipped_in_fp16(true, max_norm)),
        "The true gradient goes back to fp16 to be clipped, where it is rounded or underflows: "
        "clip it in fp32.",
    ),
    (
        partial(trained, clipped=lambda true, max_norm, scale: true),
        "Nothing is clipped: where the true norm is above max_norm, shorten the gradient to it.",
    ),
    (
        partial(trained, clipped=_to_length),
        "A gradient that is shorter than max_norm is stretched to it: the factor is at most 1.",
    ),
    (
        partial(trained, clipped=lambda true, max_norm, scale: true.clamp(-max_norm, max_norm)),
        "Each element is clipped. max_norm is for the norm of the whole gradient, which keeps its "
        "direction.",
    ),
    (
        partial(trained, clipped=_without_root),
        "The gradient is shortened by max_norm over the squared norm: the root is missing.",
    ),
    (
        partial(trained, **_ALWAYS),
        "A step with an infinite gradient is taken: the masters are infinite or NaN from then on. "
        "Skip it.",
    ),
    (partial(trained, is_good=lambda true, loss: bool(loss.isfinite())), _LOSS_DECIDES),
    (partial(trained, **decides(lambda true, loss: loss.isfinite())), _LOSS_DECIDES),
    (
        partial(trained, **decides(lambda true, loss: not true.isinf().any())),
        "A gradient that is NaN passes for a good one: look for inf and for NaN, with isfinite.",
    ),
    (
        partial(trained, **decides(lambda true, loss: not true.isnan().any())),
        "A gradient that is infinite passes for a good one: isfinite finds inf and NaN.",
    ),
    (
        partial(trained, place=lambda updates, step: step),
        "The learning rate goes on in a skipped step. lr counts updates, and there was none.",
    ),
    (
        partial(trained, place=lambda updates, step: updates + 1),
        "The learning rate is one update ahead: the first update is made with lr(0).",
    ),
    (
        partial(trained, place=lambda updates, step: 0),
        "The learning rate stays at lr(0): it depends on how many updates have been made.",
    ),
    (
        partial(trained, stepped=lambda w, m, u: (w - u.half(), (w - u.half()).float())),
        "The update is made in fp16, on the weights, where it is lost if it is below half a "
        "spacing. The masters take it.",
    ),
    (
        partial(trained, stepped=lambda w, m, u: (w - u.half(), m - u)),
        "The masters are right, but the weights take the update by themselves, in fp16: they are "
        "the masters, rounded.",
    ),
    (
        partial(trained, stepped=lambda w, m, u: ((w.float() - u).half(), w.float() - u)),
        "The update starts at the rounded weights: what the masters had gathered is lost.",
    ),
    (
        partial(trained, stepped=lambda w, m, u: ((m - u).half(), (m - u).half().float())),
        "The masters are rounded to fp16 after each step: round the weights alone.",
    ),
    (
        partial(trained, stepped=lambda w, m, u: (w, m - u)),
        "The weights stay where they were: after each update they are rounded anew from the "
        "masters.",
    ),
    (
        partial(trained, stepped=lambda w, m, u: on_masters(w, m, -u)),
        "Wrong sign: SGD goes against the gradient.",
    ),
    (
        partial(trained, of_loss=lambda weights, masters: masters),
        "The losses are given the masters, in fp32: forward and backward are to run in fp16.",
    ),
    (
        partial(trained, of_loss=lambda weights, masters: weights.float()),
        "The losses are given weights in fp32: forward and backward are to run in fp16.",
    ),
    *((partial(trained, kept=kept), _ADDS_UP) for kept in (accumulated, kept_after_a_skip)),
    *(
        (partial(_without_skipped, fall=fall), _NO_UPDATE)
        for fall in (lambda scale: scale, lambda scale: scale / 2)
    ),
    (
        partial(trained, update_scale=search(fall=lambda scale: scale)),
        "The scale does not fall after a bad step: it would be bad again.",
    ),
    (
        partial(trained, update_scale=search(after_inf=lambda good: good)),
        "A bad step does not set the counter of good steps back to 0.",
    ),
    (
        partial(trained, update_scale=search(after_growth=lambda good: good)),
        "Once it has grown, the scale grows at every good step: set the counter back to 0.",
    ),
    (
        partial(trained, update_scale=search(is_time=lambda good, n: good > n)),
        "The scale grows one good step late: the step that completes the row counts.",
    ),
    (
        partial(trained, update_scale=search(is_time=lambda good, n: False)),
        "The scale never grows: after growth_interval good steps in a row it doubles.",
    ),
    (
        _in_other_form(lambda w, m, scales, first, start: (w, m, [first, *scales[:-1]])),
        "These are the scales with which the steps were made; wanted are those after each step.",
    ),
    (
        _in_other_form(lambda w, m, scales, first, start: (w, m, [first, *scales])),
        "The initial scale stands first. Wanted is one for each step, after it.",
    ),
    (
        _weights_of_the_last_forward,
        "The weights are those of the last forward: round the masters again at the end.",
    ),
    (
        _in_other_form(lambda w, m, scales, first, start: (m, w, scales)),
        "Weights and masters are returned in the wrong order.",
    ),
    (
        _in_other_form(lambda w, m, scales, first, start: (m, m, scales)),
        "The weights are returned in fp32: they are the masters, rounded to fp16.",
    ),
]
