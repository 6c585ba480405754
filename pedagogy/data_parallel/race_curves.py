"""What the runs of `comparison` reached: their losses over updates and seconds, and who leads.

Why it exists
    A run records an order and times, not what the loss was. Evaluating it while training would cost
    time, and the very time that is to be compared. So the weights are recomputed afterwards, in one
    process, from the record: each synchronous step from the mean of all gradients, each
    asynchronous update from the version that was read for it. Where they end must be where the run
    ended, which proves both.

    Neither order nor times depend on the values that were computed. So a record also answers what
    the same run would have reached with another learning rate.

What it costs
    One gradient for each that was computed, and one pass over the test digits for each
    `race.workers` of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pedagogy.data_parallel.asynchronous import Record, flat_weights, gradient_at, set_weights
from pedagogy.data_parallel.comparison import Race, SynchronousRun, loss_of
from pedagogy.workloads import MLP, digits


class Curve(NamedTuple):
    """The loss on the test digits after some of the updates, and when they were made."""

    updates: list[int]
    seconds: list[float]
    losses: list[float]
    weights: Tensor  # after the last update of the run

    def loss_after(self, seconds: float) -> float:
        """The loss at that time, on the straight line between two known points."""
        return float(np.interp(seconds, self.seconds, self.losses))


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one thread: threads that wait for each other only slow so small a net."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def synchronous_curve(race: Race, seed: int, run: SynchronousRun) -> Curve:
    """The run's losses, computed again in one process: each step the mean of all gradients."""
    model, batches = race.model(seed), race.batches(seed)
    weights = flat_weights(model)
    losses = [_test_loss(model, weights)]
    for step in range(len(run.seconds)):
        gradients = [
            gradient_at(model, weights, loss_of, batches(worker, step))[0]
            for worker in range(1, race.workers + 1)
        ]
        weights = weights - race.learning_rate * sum(gradients) / race.workers
        losses.append(_test_loss(model, weights))
    return Curve(list(range(len(losses))), [0.0, *run.seconds], losses, weights)


@one_thread()
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

    The first slow-down if it always is, None if it never becomes so.
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
            return low + share * (high - low)
    return None


Curves = Mapping[tuple[float, int], Curve]  # by slow-down and seed


def by_updates(
    seeds: Sequence[int], slowdowns: Sequence[float], synchronous: Curves, asynchronous: Curves
) -> dict[str, tuple[list[int], list[list[float]]]]:
    """Name -> (updates, the losses of each seed), as long as the synchronous run without straggler.

    A straggler does not change what a synchronous run computes, so that one stands for all.
    """
    longest = synchronous[slowdowns[0], seeds[0]].updates
    curves = {"synchronous": (longest, [synchronous[slowdowns[0], s].losses for s in seeds])}
    for slowdown in slowdowns:
        updates = [n for n in asynchronous[slowdown, seeds[0]].updates if n <= longest[-1]]
        losses = [asynchronous[slowdown, seed].losses[: len(updates)] for seed in seeds]
        curves[f"asyn., {slowdown:g}x"] = (updates, losses)
    return curves


def by_seconds(
    race: Race,
    seeds: Sequence[int],
    slowdowns: Sequence[float],
    synchronous: Curves,
    asynchronous: Curves,
) -> list[tuple[str, dict[str, tuple[Any, list]], str]]:
    """For each slow-down (title, name -> (seconds, the losses of each seed), label)."""
    times = np.linspace(0.0, race.seconds, 49)
    ways = {"synchronous": synchronous, "asynchronous": asynchronous}
    return [
        (
            f"one worker {slowdown:g}x",
            {
                name: (
                    times,
                    [[curves[slowdown, seed].loss_after(t) for t in times] for seed in seeds],
                )
                for name, curves in ways.items()
            },
            "seconds (paced)",
        )
        for slowdown in slowdowns
    ]


def losses_after(
    curves: Curves, seeds: Sequence[int], slowdowns: Sequence[float], seconds: float
) -> list[list[float]]:
    """For each seed, the loss after that time at each slow-down."""
    return [
        [curves[slowdown, seed].loss_after(seconds) for slowdown in slowdowns] for seed in seeds
    ]


def crossings(
    slowdowns: Sequence[float], ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> str:
    """Where the medians cross and, in brackets, where each seed's lines do."""
    middle = overtakes_at(slowdowns, *(list(np.median(runs, axis=0)) for runs in (ours, theirs)))
    each = [overtakes_at(slowdowns, *pair) for pair in zip(ours, theirs, strict=True)]
    texts = [f"{one:.1f}x" if one else "never" for one in (middle, *each)]
    return f"overtakes at {texts[0]} (by seed: {', '.join(texts[1:])})"


def staleness_by_worker(record: Record, workers: int) -> dict[str, dict[int, int]]:
    """How many updates had each staleness: of the straggler (the last worker) and of the others.

    Counted while all are at work: up to the last gradient of the first worker that is done.
    """
    counts: dict[str, Counter] = {"fast workers": Counter(), "straggler": Counter()}
    done = dict.fromkeys(range(1, workers + 1), 0)
    steps = 1 + max(update.step for update in record.updates)
    for update, stale in zip(record.updates, record.staleness, strict=True):
        counts["straggler" if update.worker == workers else "fast workers"][stale] += 1
        done[update.worker] += 1
        if done[update.worker] == steps:
            break
    return {name: dict(sorted(found.items())) for name, found in counts.items()}


def _test_loss(model: MLP, weights: Tensor) -> float:
    _, _, images, labels = digits()
    set_weights(model, weights)
    with torch.no_grad():
        return model.loss(images, labels).item()
