"""Chapter 00a: one training step by hand.

The chapter's other exercises stand beside this file, one a file: `chapter00a_adam`,
`chapter00a_states`, `chapter00a_saved`; the ten questions of the entry check in `chapter00a_entry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.workloads import GPT, text_batch


def training_step(model: nn.Module, optimizer: Any, microbatches: Sequence[tuple]) -> float:
    """The model made one update from the mean loss of all micro-batches; returns that loss."""
    optimizer.zero_grad()
    mean = 0.0
    for inputs, targets in microbatches:
        loss = model.loss(inputs, targets) / len(microbatches)
        loss.backward()  # adds to .grad
        mean += loss.item()
    optimizer.step()
    return mean


def _never_emptied(model, optimizer, microbatches):
    mean = 0.0
    for inputs, targets in microbatches:
        loss = model.loss(inputs, targets) / len(microbatches)
        loss.backward()
        mean += loss.item()
    optimizer.step()
    return mean


def _step_first(model, optimizer, microbatches):
    optimizer.step()
    optimizer.zero_grad()
    mean = 0.0
    for inputs, targets in microbatches:
        loss = model.loss(inputs, targets) / len(microbatches)
        loss.backward()
        mean += loss.item()
    return mean


def _no_gradient(model, optimizer, microbatches):
    losses = [model.loss(*microbatch).item() for microbatch in microbatches]
    optimizer.step()
    return sum(losses) / len(losses)


def _sum_not_mean(model, optimizer, microbatches):
    optimizer.zero_grad()
    losses = [model.loss(*microbatch) for microbatch in microbatches]
    sum(losses).backward()
    optimizer.step()
    return sum(losses).item() / len(losses)


def _emptied_each_time(model, optimizer, microbatches):
    mean = 0.0
    for inputs, targets in microbatches:
        optimizer.zero_grad()
        loss = model.loss(inputs, targets) / len(microbatches)
        loss.backward()
        mean += loss.item()
    optimizer.step()
    return mean


def _step_each_time(model, optimizer, microbatches):
    mean = 0.0
    for inputs, targets in microbatches:
        optimizer.zero_grad()
        loss = model.loss(inputs, targets) / len(microbatches)
        loss.backward()
        optimizer.step()
        mean += loss.item()
    return mean


def _last_loss(model, optimizer, microbatches):
    optimizer.zero_grad()
    for inputs, targets in microbatches:
        loss = model.loss(inputs, targets)
        (loss / len(microbatches)).backward()
    optimizer.step()
    return loss.item()


def _last_part(model, optimizer, microbatches):
    return _last_loss(model, optimizer, microbatches) / len(microbatches)


def _divided_twice(model, optimizer, microbatches):
    return training_step(model, optimizer, microbatches) / len(microbatches)


def _no_return(model, optimizer, microbatches):
    training_step(model, optimizer, microbatches)


def _step_arguments(seed: int, adam: bool):
    """A case: a tiny GPT, its optimizer, and three steps of two micro-batches."""

    def make(rank: int) -> tuple:
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        model = GPT(layers=1, hidden=8, heads=2, sequence=8)
        torch.set_rng_state(state)
        if adam:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        steps = [[text_batch(2, 8, seed, 2 * step + i) for i in range(2)] for step in range(3)]
        return model, optimizer, steps

    return make


def _three_steps(function, model, optimizer, steps):
    losses = [function(model, optimizer, microbatches) for microbatches in steps]
    return {"losses": losses, "weights": [p.detach().clone() for p in model.parameters()]}


STEP = Exercise(
    name="training_step",
    title="One update from several micro-batches",
    chapter="00a",
    reference=training_step,
    cases=[_step_arguments(seed=1, adam=False), _step_arguments(seed=2, adam=True)],
    labels=["three steps with SGD and momentum", "three steps with Adam"],
    observe=_three_steps,
    tolerance=1e-4,
    mistakes=[
        (
            _never_emptied,
            "backward() adds to .grad. Without zero_grad() each update also holds the gradients "
            "of all steps before.",
        ),
        (
            _step_first,
            "step() comes before backward(), so each update uses the gradients of the step before, "
            "and the first one uses none.",
        ),
        (
            _no_gradient,
            "The weights never move: when step() runs, no parameter has a gradient. Forward makes "
            "none; backward() must have run, and zero_grad() must not come after it.",
        ),
        (
            _sum_not_mean,
            "The gradients are summed, not averaged: divide each loss by the number of "
            "micro-batches before its backward(). With Adam you would hardly notice, with SGD the "
            "update is twice as long.",
        ),
        (
            _emptied_each_time,
            "zero_grad() runs before each micro-batch, so only the last one is left at step().",
        ),
        (
            _step_each_time,
            "step() runs once for each micro-batch: these are small updates one after the other, "
            "not one update from all of them.",
        ),
        (
            _last_loss,
            "The update is right; the loss returned is the last micro-batch's. Add them up.",
        ),
        (
            _last_part,
            "The update is right; the loss returned is the last micro-batch's share of the mean. "
            "Add the shares up.",
        ),
        (
            _divided_twice,
            "The update is right; the loss returned is divided by the number of micro-batches "
            "twice.",
        ),
        (_no_return, "The update is right, and nothing is returned: the mean loss is asked for."),
    ],
    hints=[
        "zero_grad() once, then a loop, then step() once.",
        "backward() adds to .grad: let it do the summing for you.",
        "The mean over k micro-batches of equal size is the sum of loss / k.",
    ],
)

GRADIENT_PHASE = Prediction(
    name="gradient_phase",
    chapter="00a",
    question="After which of forward, backward, step does a parameter first have a gradient?",
    key="backward",
    mistakes=[
        ("forward", "forward leaves the activations that backward will need, and no gradient."),
        ("loss", "the loss is the last of forward's numbers; nothing has gone backwards yet."),
        ("average", "only what is there can be averaged: backward has made it."),
        ("step", "step() only reads .grad; if nothing is there it leaves the weight as it is."),
    ],
    because="Forward keeps activations; backward turns them into gradients.",
)

register(STEP, GRADIENT_PHASE)
