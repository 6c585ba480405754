"""Chapter 06: a batch in pieces, and what the sum of their gradients is divided by.

Here stands accumulation on one device. Windows in a training loop are in `chapter06_windows`,
several ranks in `chapter06_ranks`, the wrong ways in `chapter06_wrong_...`, predictions in
`chapter06_predictions`. A micro-batch is (x, labels), as in `pedagogy.exercises.chapter06_cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.chapter06_cases import (
    IGNORED,
    MicroBatch,
    Watched,
    classes,
    count,
    fresh_model,
    gradients,
    slopes,
)
from pedagogy.exercises.chapter06_wrong_sums import MISTAKES
from pedagogy.exercises.compare import difference
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def accumulate_gradients(
    model: nn.Module,
    microbatches: Sequence[MicroBatch],
    loss_sum: Callable[[nn.Module, MicroBatch], Tensor],
    count: Callable[[MicroBatch], int],
) -> None:
    """Every `.grad` becomes that of the mean loss over all items of all micro-batches."""
    total = sum(count(microbatch) for microbatch in microbatches)
    model.zero_grad()
    for microbatch in microbatches:
        loss = loss_sum(model, microbatch) / max(total, 1)  # without items the sum is 0
        loss.backward()  # adds to .grad, and sets its activations free


# --- the cases ------------------------------------------------------------------------------------

CASES = {
    "4 tokens of gradient 1 and one of gradient 6": [slopes(1, 1, 1, 1), slopes(6)],
    "micro-batches of 2, 3 and 2 tokens, gradients from before": [
        classes([0, 2], 1),
        classes([1, 1, 3], 2),
        classes([0, 3], 3),
    ],
    "some labels ignored, all of them in the second": [
        classes([IGNORED, 2, 1], 4),
        classes([IGNORED, IGNORED], 5),
        classes([0, 3, IGNORED, 2], 6),
        classes([IGNORED, 1], 7),
    ],
    "every label ignored": [classes([IGNORED] * 2, 8), classes([IGNORED] * 3, 9)],
}


def _case(label: str) -> tuple:
    model = fresh_model(CASES[label])
    if "from before" in label:
        for parameter in model.parameters():
            parameter.grad = parameter.detach() + 1.0
    return model, CASES[label], Watched(CASES[label]), count


def _gradients_afterwards(function: Callable, model: nn.Module, *others: Any) -> dict:
    before, watched = gradients(model), others[1]
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    answer = function(model, *others)
    after = gradients(model)
    if answer is not None and not watched.rounds and difference(after, before, 0.0) is None:
        raise Refused("it returns something, but .grad of the parameters is what is looked at")
    if difference([p.detach() for p in model.parameters()], weights, 0.0) is not None:
        raise Refused("the weights have changed: the gradients alone are asked for, no update")
    return {"the gradients": after, "micro-batches that hold their activations": watched.most}


ACCUMULATE = Exercise(
    name="accumulate_gradients",
    title="Divided by what",
    chapter="06",
    reference=accumulate_gradients,
    cases=[lambda rank, label=label: _case(label) for label in CASES],
    labels=list(CASES),
    observe=_gradients_afterwards,
    mistakes=MISTAKES,
    hints=[
        "Count first: total = sum(count(m) for m in microbatches). It needs the labels alone.",
        "For each micro-batch: (loss_sum(model, m) / total).backward(). It adds to .grad, so that "
        ".grad must be empty before the first (model.zero_grad()).",
        "Where no item counts at all, the sum is 0, and so should the gradient be: divide by "
        "max(total, 1).",
    ],
)

register(ACCUMULATE)
