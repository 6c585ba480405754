"""Chapter 05: the last exercise's reference, with a line as a reader might have written it."""

from __future__ import annotations

import inspect

import pytest
import torch

from pedagogy.exercises import engine
from pedagogy.exercises.chapter05 import ROUND
from pedagogy.exercises.chapter05_masters import STEP
from pedagogy.exercises.chapter05_scale import SCALE
from pedagogy.exercises.chapter05_training import TRAINING, train_in_mixed_precision

CLIP = "true = true * min(1.0, max_norm / true.norm())"
TRUE = "true = weights.grad.float() / scale"
GOOD = "if true.isfinite().all():"
BY_TORCH = "torch.nn.utils.clip_grad_norm_([weights], max_norm)"


def with_other(old, new):
    """The reference with one line, or a part of one, in another form."""
    source = inspect.getsource(train_in_mixed_precision)
    assert old in source
    names = {"torch": torch} | dict.fromkeys(("Sequence", "Loss", "Callable", "Tensor"))
    exec("from __future__ import annotations\n" + source.replace(old, new), names)
    return names["train_in_mixed_precision"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (CLIP, "true = true * (max_norm / (true.norm() + 1e-7)).clamp(max=1)", "correct"),
        ("scale, good = scale / 2, 0", "scale *= 0.5; good = 0", "correct"),
        (CLIP, f"weights.grad = true.half(); {BY_TORCH}; true = weights.grad.float()", "fp32"),
        (TRUE, f"{BY_TORCH}; {TRUE}", "Clipped before it is unscaled"),
        (GOOD, "if not true.isinf().any():", "A gradient that is NaN"),
        (GOOD, "if not true.isnan().any():", "A gradient that is infinite"),
        ("(loss(weights) * scale)", "(loss(weights).half() * scale)", "the loss stays fp32"),
        ("weights = weights.detach().requires", "weights.requires", "after a skipped step too"),
        ("return weights, masters, scales", "return weights, scales", "wanted are three things"),
        ("            weights = masters.half()", "            pass", "stay where they were"),
    ],
)
def test_loops_with_one_line_changed_are_explained(old, new, says):
    assert says in engine.explain(TRAINING, with_other(old, new))


def positive_infinity_and_no_subnormals(x):
    step = 2.0 ** (torch.frexp(x).exponent - 11)
    y = torch.round(x / step) * step
    y[y.abs() > 65504] = torch.inf
    return y


def fp32_weights(weights, masters, gradients, lr, scale):
    update = lr * (gradients.float() / scale)
    return weights - update, masters - update


def of_steps(keep):
    """A search whose lists are put together by `keep(scales, stepped)`."""

    def search(*arguments):
        return keep(*SCALE.reference(*arguments))

    return search


def taken_alone(scales, stepped):
    return [s for s, good in zip(scales, stepped, strict=True) if good], [g for g in stepped if g]


@pytest.mark.parametrize(
    ("exercise", "answer", "says"),
    [
        (ROUND, positive_infinity_and_no_subnormals, "clamp the exponent at -14"),
        (STEP, fp32_weights, "end in fp32"),
        (SCALE, of_steps(taken_alone), "missing in both lists"),
        (SCALE, of_steps(lambda scales, stepped: scales), "return a second list"),
        (SCALE, of_steps(lambda s, t: list(zip(s, t, strict=True))), "wanted are two lists"),
    ],
)
def test_other_forms_are_explained(exercise, answer, says):
    assert says in engine.explain(exercise, answer)
