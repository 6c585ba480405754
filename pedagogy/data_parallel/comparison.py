"""Synchronous against asynchronous under a straggler, in real runs of the same length.

The question
    Without a barrier more gradients are computed in a second, and each is computed at weights that
    are no longer those it is applied to. Which of the two decides?

How it is measured
    Both ways get the same workers, model, batches and learning rate; the last worker is slowed
    down by a factor. Compute is paced, so that the ranks of one machine show what ranks on
    machines of their own would. Times come from the real runs; the weights come from their records,
    recomputed in one process (`synchronous_curve`, `asynchronous_curve`), which is also the proof
    that the runs did what they should.

    As a record holds order and times, and neither depends on the values that were computed, it
    also answers what the same run would have reached with another learning rate.

What it costs
    Synchronous runs last `steps` units of time whatever the slow-down, as they make fewer steps.
    In an asynchronous run each worker computes `steps` gradients; what came after the time is cut.

Source: Chen et al. 2016 (Revisiting distributed synchronous SGD), section 2, asks the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pedagogy.data_parallel.asynchronous import (
    Record,
    flat_weights,
    gradient_at,
    set_weights,
    train_asynchronously,
)
from pedagogy.data_parallel.synchronous import Step, train_synchronously
from pedagogy.ranks import Group
from pedagogy.workloads import MLP, digits, digits_batch


@dataclass(frozen=True)
class Race:
    """What all runs have in common. `steps` is a synchronous run's without a straggler."""

    workers: int = 4
    steps: int = 24
    batch: int = 16
    learning_rate: float = 0.3
    seconds_per_step: float = 0.012
    sizes: tuple[int, ...] = (64, 32, 10)

    def model(self, seed: int) -> MLP:
        """The net with the weights of `seed`; the caller's random state stays as it is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return MLP(self.sizes)

    def batches(self, seed: int, first: int = 1) -> Any:
        """A function of (worker, step), the workers counted from `first`."""
        return lambda worker, step: digits_batch(self.batch, seed, 1000 * (worker - first) + step)

    def factors(self, slowdown: float) -> tuple[float, ...]:
        """One straggler among the workers."""
        return (1.0,) * (self.workers - 1) + (slowdown,)


class Curve(NamedTuple):
    """The loss on the test digits after some of the updates, and when they were made."""

    updates: list[int]
    seconds: list[float]
    losses: list[float]
    weights: Tensor  # after the last update of the run

    def loss_after(self, seconds: float) -> float:
        """The loss at that time, on the straight line between two known points."""
        return float(np.interp(seconds, self.seconds, self.losses))


class SynchronousRun(NamedTuple):
    """When each step ended, its loss, and the weights after the last one."""

    history: list[Step]
    weights: Tensor


def loss_of(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross-entropy of a batch of images and labels."""
    return module.loss(*batch)


def synchronous_runs(
    group: Group, race: Race, seeds: Sequence[int], slowdowns: Sequence[float]
) -> dict[tuple[float, int], SynchronousRun]:
    """A worker for `launch`: one run for each slow-down and seed, on `race.workers` ranks."""
    _warm_up(race)
    runs = {}
    for slowdown, seed in ((s, seed) for s in slowdowns for seed in seeds):
        model = race.model(seed)
        history = train_synchronously(
            group, model, loss_of, race.batches(seed, first=0), round(race.steps / slowdown),
            race.learning_rate, race.factors(slowdown), race.seconds_per_step,
        )  # fmt: skip
        runs[slowdown, seed] = SynchronousRun(history, flat_weights(model))
    return runs


def asynchronous_runs(
    group: Group, race: Race, seeds: Sequence[int], slowdowns: Sequence[float]
) -> dict[tuple[float, int], Record | None]:
    """A worker for `launch`: the same without a barrier, on a server and `race.workers` ranks."""
    _warm_up(race)
    return {
        (slowdown, seed): train_asynchronously(
            group, race.model(seed), loss_of, race.batches(seed), race.steps, race.learning_rate,
            slowdown=race.factors(slowdown), seconds_per_step=race.seconds_per_step,
        )
        for slowdown in slowdowns
        for seed in seeds
    }  # fmt: skip


def synchronous_curve(race: Race, seed: int, run: SynchronousRun) -> Curve:
    """The run's losses, computed again in one process: each step the mean of all gradients."""
    model, batches = race.model(seed), race.batches(seed)
    weights = flat_weights(model)
    losses = [_test_loss(model, weights)]
    for step in range(len(run.history)):
        gradients = [
            gradient_at(model, weights, loss_of, batches(worker, step))[0]
            for worker in range(1, race.workers + 1)
        ]
        weights = weights - race.learning_rate * sum(gradients) / race.workers
        losses.append(_test_loss(model, weights))
    seconds = [0.0, *(step.seconds for step in run.history)]
    return Curve(list(range(len(losses))), seconds, losses, weights)


def asynchronous_curve(
    race: Race, seed: int, record: Record, learning_rate: float | None = None
) -> Curve:
    """The run's losses, from its record: after every `race.workers` updates.

    With a `learning_rate`, what the same order of events gives with that one.
    """
    rate = record.learning_rate if learning_rate is None else learning_rate
    model, batches = race.model(seed), race.batches(seed)
    versions = [record.initial]
    updates, seconds, losses = [0], [0.0], [_test_loss(model, record.initial)]
    for count, update in enumerate(record.updates, 1):
        batch = batches(update.worker, update.step)
        gradient, _ = gradient_at(model, versions[update.read_version], loss_of, batch)
        versions.append(versions[-1] - rate * gradient)
        if count % race.workers == 0:
            updates.append(count)
            seconds.append(update.seconds)
            losses.append(_test_loss(model, versions[-1]))
    return Curve(updates, seconds, losses, versions[-1])


def overtakes_at(
    slowdowns: Sequence[float], ours: Sequence[float], theirs: Sequence[float]
) -> float | None:
    """The slow-down from which `theirs` is the lower loss, on lines between the measured ones.

    The first slow-down if it always is, None if it never becomes so. Lines are straight over the
    logarithm of the slow-down.
    **Raises** ValueError for lists of different lengths, or none.
    """
    if not len(slowdowns) == len(ours) == len(theirs) or not slowdowns:
        raise ValueError(
            f"{len(slowdowns)} slow-downs for {len(ours)} and {len(theirs)} losses; "
            "as many of each are needed, at least one"
        )
    leads = [b - a for a, b in zip(ours, theirs, strict=True)]  # positive: ours is lower
    if leads[0] <= 0:
        return slowdowns[0]
    for (low, before), (high, after) in pairwise(zip(slowdowns, leads, strict=True)):
        if after <= 0:
            share = before / (before - after)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return None


def same_seconds(curves: Mapping[Any, Curve]) -> float:
    """The longest time that all of these runs reached."""
    return min(curve.seconds[-1] for curve in curves.values())


def cut(curve: Curve, seconds: float) -> Curve:
    """The part of the curve up to that time."""
    kept = sum(time <= seconds for time in curve.seconds)
    parts = (curve.updates[:kept], curve.seconds[:kept], curve.losses[:kept])
    return Curve(*parts, curve.weights)


def _warm_up(race: Race) -> None:
    """The first gradient of a process reads the data and starts torch's threads: not measured."""
    model = race.model(0)
    gradient_at(model, flat_weights(model), loss_of, race.batches(0)(1, 0))


def _test_loss(model: MLP, weights: Tensor) -> float:
    _, _, images, labels = digits()
    set_weights(model, weights)
    with torch.no_grad():
        return model.loss(images, labels).item()
