"""Chapter 06: a training loop that updates once a window, and the window that is not full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.chapter06 import accumulate_gradients
from pedagogy.exercises.chapter06_cases import (
    IGNORED,
    MicroBatch,
    Watched,
    classes,
    count,
    fresh_model,
    slopes,
)
from pedagogy.exercises.chapter06_wrong_windows import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def train_with_windows(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    microbatches: Sequence[MicroBatch],
    window: int,
    loss_sum: Callable[[nn.Module, MicroBatch], Tensor],
    count: Callable[[MicroBatch], int],
) -> None:
    """An update for each `window` micro-batches, and one for the rest, if there is a rest."""
    for first in range(0, len(microbatches), window):
        here = microbatches[first : first + window]  # the last one may be shorter
        accumulate_gradients(model, here, loss_sum, count)
        optimizer.step()


# --- the cases ------------------------------------------------------------------------------------

CASES = {  # micro-batches, window, learning rate, momentum
    "5 micro-batches of gradient 1, windows of 2": ([slopes(1)] * 5, 2, 1.0, 0.0),
    "4 micro-batches of 1 to 3 items, windows of 2, momentum": (
        [classes([0], 1), classes([1, 2, 3], 2), classes([3, 0], 3), classes([2], 4)],
        *(2, 0.5, 0.9),
    ),
    "7 micro-batches, windows of 3, none counts in the second": (
        [
            *(classes([0, 1], 1), classes([IGNORED, 2, 3], 2), classes([IGNORED], 3)),
            *(classes([IGNORED], 4), classes([IGNORED] * 2, 5), classes([IGNORED], 6)),
            classes([3, IGNORED, 0], 7),
        ],
        *(3, 0.5, 0.0),
    ),
    "2 micro-batches, a window of 4": ([classes([0, 1, 1], 1), classes([3], 2)], 4, 0.5, 0.0),
}


class _Noted(torch.optim.SGD):
    """SGD that notes the weights after each of its steps."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        if not hasattr(self, "after"):
            self.after = []
        weights = [p for group in self.param_groups for p in group["params"]]
        self.after.append([weight.detach().clone() for weight in weights])


def _case(label: str) -> tuple:
    microbatches, window, lr, momentum = CASES[label]
    model = fresh_model(microbatches)
    optimizer = _Noted(model.parameters(), lr=lr, momentum=momentum)
    return model, optimizer, microbatches, window, Watched(microbatches), count


def _updates(function: Callable, model: nn.Module, optimizer: _Noted, *others: Any) -> dict:
    function(model, optimizer, *others)
    after = getattr(optimizer, "after", [])
    microbatches, window, watched, _ = others
    if watched.rounds and not after and len(microbatches) >= window:
        raise Refused("nothing calls optimizer.step(): the updates are to be the optimizer's")
    return {
        "the number of updates": len(after),
        "the weights after each update": after,
        "micro-batches that hold their activations": watched.most,
    }


WINDOWS = Exercise(
    name="train_with_windows",
    title="The window that is not full",
    chapter="06",
    reference=train_with_windows,
    cases=[lambda rank, label=label: _case(label) for label in CASES],
    labels=list(CASES),
    observe=_updates,
    mistakes=MISTAKES,
    hints=[
        "range(0, len(microbatches), window) says where windows begin; microbatches[first : first "
        "+ window] is one, and the last may be shorter.",
        "Within a window it is accumulate_gradients: cleared once, each sum divided by the number "
        "of this window's items. Then optimizer.step().",
        "Written as one loop with a counter, something is left over after it, or nothing: step "
        "once more only if there is.",
    ],
)

register(WINDOWS)
