"""Backup workers: synchronous, but the last ones to finish are not waited for.

The idea
    Start N + b workers. In each step the server takes the first N gradients, averages them, and
    goes on; what the b slowest send later is thrown away. A straggler costs its own work and
    nobody's time, and no gradient is ever stale: each was computed at the current weights.

        step           0                     1
        worker 1   [  g  ]               [  g  ]
        worker 2   [   g   ]             [   g   ]          N = 2, b = 1: worker 3 is late in
        worker 3   [        g (late: dropped)    ][ g       step 0, and starts with step 1 late

What it costs
    b/(N+b) of all compute is wasted, also where nobody is slow. And a worker that is always slow
    is always dropped: its data is never learnt from, so data must not be tied to workers.

Source: Chen et al. 2016 (Revisiting distributed synchronous SGD), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.data_parallel.asynchronous import (
    Batches,
    Loss,
    check_server,
    flat_weights,
    gradient_at,
    set_weights,
)
from pedagogy.data_parallel.synchronous import broadcast_parameters
from pedagogy.ranks import Group, Pace


class BackupStep(NamedTuple):
    """One step: whose gradients were averaged (in order of arrival), their mean loss, its end."""

    workers: tuple[int, ...]
    loss: float
    seconds: float


@dataclass
class BackupRecord:
    """What happened; `dropped` holds (worker, step) of each gradient that came too late."""

    learning_rate: float
    initial: Tensor  # all parameters, flat
    weights: Tensor  # the same after the last step
    steps: list[BackupStep] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)


def train_with_backup_workers(
    group: Group,
    module: nn.Module,
    loss: Loss,
    batches: Batches,
    steps: int,
    learning_rate: float,
    num_backups: int,
    slowdown: Sequence[float] = (),
    seconds_per_step: float = 0.0,
) -> BackupRecord | None:
    """Train with SGD on the mean of the first N of N + `num_backups` gradients of each step.

    Rank 0 is the server and returns the record; the others are workers, counted from 1, and return
    None. Afterwards the module of every rank holds the final weights. `batches(worker, step)` gives
    a worker's batch; a gradient takes `seconds_per_step` times the worker's `slowdown`.

    **Raises** ValueError as `train_asynchronously`, or where no worker is left to wait for.
    """
    check_server(group, steps, slowdown)
    if not 0 <= num_backups < group.size - 1:
        raise ValueError(
            f"num_backups is {num_backups} of {group.size - 1} workers; "
            f"it can be 0 to {group.size - 2}"
        )
    broadcast_parameters(group, module)  # frozen parameters and buffers, too
    factor = slowdown[group.rank - 1] if slowdown and group.rank else 1.0
    record = None
    if group.rank == 0:
        record = _serve(group, module, steps, learning_rate, group.size - 1 - num_backups)
    else:
        _work(group, module, loss, batches, steps, Pace(seconds_per_step), factor)
    set_weights(module, group.broadcast_(flat_weights(module)))
    return record


def _serve(
    group: Group, module: nn.Module, steps: int, learning_rate: float, num_needed: int
) -> BackupRecord:
    weights = flat_weights(module)
    record = BackupRecord(learning_rate, weights.clone(), weights)
    busy: dict[int, int] = {}  # the step that each worker computes
    start = group.now()
    for step in range(steps):
        for worker in sorted(set(range(1, group.size)) - set(busy)):
            _send_work(group, step, weights, worker)
            busy[worker] = step
        total, arrived, losses = torch.zeros_like(weights), [], 0.0
        while len(arrived) < num_needed:
            worker, message = group.recv_any()  # a gradient, and behind it the loss
            begun = busy.pop(worker)
            if begun == step:
                total += message[:-1]
                losses += message[-1].item()
                arrived.append(worker)
            else:
                record.dropped.append((worker, begun))
                _send_work(group, step, weights, worker)  # it joins the step that is under way
                busy[worker] = step
        weights -= learning_rate * total / num_needed
        seconds = group.now() - start
        record.steps.append(BackupStep(tuple(arrived), losses / num_needed, seconds))
    while busy:  # the last gradients of the late ones
        worker, _ = group.recv_any()
        record.dropped.append((worker, busy.pop(worker)))
    for worker in range(1, group.size):
        _send_work(group, steps, weights, worker)  # a step beyond the last one: stop
    set_weights(module, weights)
    return record


def _send_work(group: Group, step: int, weights: Tensor, worker: int) -> None:
    group.send(torch.tensor(step), worker)
    group.send(weights, worker)


def _work(
    group: Group, module: nn.Module, loss: Loss, batches: Batches, steps: int, pace: Pace,
    factor: float,
) -> None:  # fmt: skip
    while True:
        step, weights = int(group.recv(0)), group.recv(0)
        if step == steps:
            return
        with group.span("compute", f"step {step}"), pace.span(factor):
            gradient, value = gradient_at(module, weights, loss, batches(group.rank, step))
        group.send(torch.cat([gradient, value.reshape(1).to(gradient.dtype)]), 0)


def replay_backup(record: BackupRecord, module: nn.Module, loss: Loss, batches: Batches) -> Tensor:
    """The final weights from the record alone: each step applies the mean of its workers."""
    weights = record.initial.clone()
    for step, done in enumerate(record.steps):
        gradients = [
            gradient_at(module, weights, loss, batches(worker, step))[0] for worker in done.workers
        ]
        weights = weights - record.learning_rate * sum(gradients) / len(gradients)
    return weights
