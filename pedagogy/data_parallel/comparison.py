"""Synchronous against asynchronous under a straggler, in real runs of the same length.

The question
    Without a barrier more gradients are computed in a second, and each is computed at weights that
    are no longer those it is applied to. Which of the two decides?

How it is measured
    Both ways get the same workers, model, batches and learning rate; the last worker is slowed
    down by a factor. Compute is paced, so that the ranks of one machine show what ranks on
    machines of their own would. Times come from the real runs; the weights come from their records,
    recomputed in one process (`race_curves.py`), which is also the proof that the runs did what
    they should.

What it costs
    All runs are looked at for the same time, `steps` gradients of a worker that is not slow.

Source: Chen et al. 2016 (Revisiting distributed synchronous SGD), section 2, asks the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.data_parallel.asynchronous import (
    Batches,
    Record,
    flat_weights,
    gradient_at,
    train_asynchronously,
)
from pedagogy.ranks import Group, Pace
from pedagogy.workloads import MLP, digits_batch


@dataclass(frozen=True)
class Race:
    """What all runs have in common. `steps` is a synchronous run's without a straggler."""

    workers: int = 4
    steps: int = 16
    batch: int = 16
    learning_rate: float = 0.3
    seconds_per_step: float = 0.02
    sizes: tuple[int, ...] = (64, 32, 10)

    def model(self, seed: int) -> MLP:
        """The net with the weights of `seed`; the caller's random state stays as it is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return MLP(self.sizes)

    @property
    def seconds(self) -> float:
        """How long all runs are looked at."""
        return self.steps * self.seconds_per_step

    def batches(self, seed: int) -> Batches:
        """A function of (worker, step), the workers counted from 1."""
        return lambda worker, step: digits_batch(self.batch, seed, 1000 * worker + step)

    def paced_batches(self, seed: int, slowdown: float) -> Batches:
        """The same batches, each of which takes its time: the last worker's `slowdown` as long.

        So small a net computes in no time, so that this is the time of a gradient. A worker that
        has computed all that fits into `seconds` takes no more time: what follows is not looked at.
        """
        pace, draw = Pace(self.seconds_per_step), self.batches(seed)

        def drawn(worker: int, step: int) -> tuple[Tensor, Tensor]:
            units = slowdown if worker == self.workers else 1.0
            with pace.span(units if step < round(self.steps / units) else 0.0):
                return draw(worker, step)

        return drawn


class SynchronousRun(NamedTuple):
    """When each step ended, and the weights after the last one."""

    seconds: list[float]
    weights: Tensor


def loss_of(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross-entropy of a batch of images and labels."""
    return module.loss(*batch)


def synchronous_runs(
    group: Group, race: Race, seeds: Sequence[int], slowdowns: Sequence[float]
) -> dict[tuple[float, int], SynchronousRun]:
    """A worker for `launch`: one run for each slow-down and seed, on `race.workers` ranks."""
    _warm_up(race)
    return {
        (slowdown, seed): _train_together(group, race, seed, slowdown)
        for slowdown in slowdowns
        for seed in seeds
    }


def _train_together(group: Group, race: Race, seed: int, slowdown: float) -> SynchronousRun:
    """All gradients in one message, as the server has them: so both ways send alike."""
    model, batches = race.model(seed), race.paced_batches(seed, slowdown)
    weights, seconds = flat_weights(model), []
    group.barrier()
    start = group.now()
    for step in range(round(race.steps / slowdown)):
        gradient, _ = gradient_at(model, weights, loss_of, batches(group.rank + 1, step))
        weights -= race.learning_rate * group.all_reduce_(gradient, "mean")
        seconds.append(group.now() - start)
    return SynchronousRun(seconds, weights)


def asynchronous_runs(
    group: Group, race: Race, seeds: Sequence[int], slowdowns: Sequence[float]
) -> dict[tuple[float, int], Record | None]:
    """A worker for `launch`: the same without a barrier, on a server and `race.workers` ranks."""
    _warm_up(race)
    return {
        (slowdown, seed): train_asynchronously(
            group,
            race.model(seed),
            loss_of,
            race.paced_batches(seed, slowdown),
            race.steps,
            race.learning_rate,
        )
        for slowdown in slowdowns
        for seed in seeds
    }


def _warm_up(race: Race) -> None:
    """The first gradient of a process reads the data and starts torch's threads: not measured."""
    model = race.model(0)
    gradient_at(model, flat_weights(model), loss_of, race.batches(0)(1, 0))
