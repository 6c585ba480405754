"""Asynchronous data parallelism: a server holds the weights, and nobody waits.

The idea
    A synchronous step lasts as long as the slowest rank's. Here rank 0 is a *parameter server* and
    the others are workers. A worker gets the weights, computes a gradient, sends it, gets the
    newest weights, and so on at its own speed. The server applies each gradient when it comes:

        server    w0 ---- w1 -------- w2 -- w3 ----------      w(v+1) = w(v) - lr * gradient
        worker 1  [  w0  ]`->w1 [ w1 ]`->w2 [  w2
        worker 2  [       w0          ]------`->w3  [ w3       staleness of its first gradient: 2

What it costs
    A gradient is applied to weights that are not those it was computed at. Its *staleness* is the
    number of versions in between: 0 for one worker, about W-1 for W equally fast ones, and much
    more for a slow worker among fast ones. Throughput rises; each step is worth less, and a
    learning rate that was stable alone may not be now. All traffic passes the server's one link:
    a gradient and the weights for every update, proportional to workers and to parameters.

A bound on staleness
    With `staleness_bound=s` a worker may be at most s gradients ahead of the slowest one; the
    server lets it wait for its weights until then (*stale synchronous parallel*). With s=0 all
    workers move in lockstep. No gradient is then staler than (W-1)(2s+1) versions.

How it is known to be right
    The order in which gradients arrive differs from run to run, so there is no fixed result to
    compare with. But every update is logged with the worker, its step and the version that it had
    read; `replay` computes the same recursion from this record in one process, and must end at
    the same weights.

Sources: Dean et al. 2012 (DistBelief, Downpour SGD), section 4.1; Ho et al. 2013 (stale
synchronous parallel).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.data_parallel.synchronous import broadcast_parameters
from pedagogy.parameters import flatten, unflatten, unique_parameters
from pedagogy.ranks import Group, Pace

Loss = Callable[[nn.Module, Any], Tensor]  # (module, batch) -> scalar
Batches = Callable[[int, int], Any]  # (worker, step) -> batch; the same on every call


class Update(NamedTuple):
    """One gradient as the server applied it: update number v makes version v + 1 of version v.

    `read_version` is the version at which the gradient was computed, `loss` the worker's loss
    there, `seconds` when it was applied.
    """

    worker: int
    step: int
    read_version: int
    loss: float
    seconds: float


@dataclass
class Record:
    """What happened in an asynchronous run, in the order in which the server applied it."""

    learning_rate: float
    initial: Tensor  # all parameters, flat
    weights: Tensor  # the same after the last update
    updates: list[Update] = field(default_factory=list)

    @property
    def staleness(self) -> list[int]:
        """For each update, the versions that were made between reading and applying."""
        return [version - update.read_version for version, update in enumerate(self.updates)]

    @property
    def histogram(self) -> dict[int, int]:
        """How many updates had each staleness, from the smallest on."""
        return dict(sorted(Counter(self.staleness).items()))


def train_asynchronously(
    group: Group,
    module: nn.Module,
    loss: Loss,
    batches: Batches,
    steps: int,
    learning_rate: float,
    staleness_bound: int | None = None,
    slowdown: Sequence[float] = (),
    seconds_per_step: float = 0.0,
) -> Record | None:
    """Train with SGD, rank 0 as server; returns the record there, and None on the workers.

    Each worker computes `steps` gradients of `loss(module, batches(worker, step))`, workers counted
    from 1. A gradient takes `seconds_per_step` times the worker's factor in `slowdown`. Afterwards
    the module of every rank holds the final weights.

    **Bytes** for each update the server sends the weights once, and a worker a gradient.
    **Raises** ValueError for fewer than 2 ranks, a `slowdown` that does not name every worker, a
    negative bound, steps below 1, or NCCL, which cannot receive from whoever comes first.
    """
    check_server(group, steps, slowdown)
    if staleness_bound is not None and staleness_bound < 0:
        raise ValueError(f"staleness_bound is {staleness_bound}; it must be 0 or more, or None")
    broadcast_parameters(group, module)  # frozen parameters and buffers, too
    factor = slowdown[group.rank - 1] if slowdown and group.rank else 1.0
    record = None
    if group.rank == 0:
        record = _serve(group, module, steps, learning_rate, staleness_bound)
    else:
        _work(group, module, loss, batches, steps, Pace(seconds_per_step), factor)
    weights = flat_weights(module)
    set_weights(module, group.broadcast_(weights))
    return record


def _serve(
    group: Group, module: nn.Module, steps: int, learning_rate: float, bound: int | None
) -> Record:
    weights = flat_weights(module)
    record = Record(learning_rate, weights.clone(), weights)
    clocks = dict.fromkeys(range(1, group.size), 0)  # gradients that came from each worker
    read = {}  # the version that each worker works with
    waiting = set(clocks)
    start = group.now()
    while True:
        slowest = min(clocks.values())
        for worker in sorted(waiting):
            if bound is None or clocks[worker] - slowest <= bound:
                group.send(weights, worker)
                read[worker] = len(record.updates)
                waiting.remove(worker)
        if len(record.updates) == steps * (group.size - 1):
            set_weights(module, weights)
            return record
        worker, message = group.recv_any()  # a gradient, and behind it the loss
        weights -= learning_rate * message[:-1]
        seconds, value = group.now() - start, message[-1].item()
        record.updates.append(Update(worker, clocks[worker], read[worker], value, seconds))
        clocks[worker] += 1
        if clocks[worker] < steps:
            waiting.add(worker)


def _work(
    group: Group, module: nn.Module, loss: Loss, batches: Batches, steps: int, pace: Pace,
    factor: float,
) -> None:  # fmt: skip
    for step in range(steps):
        weights = group.recv(0)
        with group.span("compute", f"step {step}"), pace.span(factor):
            gradient, value = gradient_at(module, weights, loss, batches(group.rank, step))
        group.send(torch.cat([gradient, value.reshape(1).to(gradient.dtype)]), 0)


def replay(record: Record, module: nn.Module, loss: Loss, batches: Batches) -> Tensor:
    """The final weights, from the record alone: w(v+1) = w(v) - lr * gradient at w(read version).

    One process, no communication. **Memory** every version of the weights.
    """
    versions = [record.initial.clone()]
    for update in record.updates:
        batch = batches(update.worker, update.step)
        gradient, _ = gradient_at(module, versions[update.read_version], loss, batch)
        versions.append(versions[-1] - record.learning_rate * gradient)
    return versions[-1]


def gradient_at(
    module: nn.Module, weights: Tensor, loss: Loss, batch: Any
) -> tuple[Tensor, Tensor]:
    """The gradient of the loss at `weights`, flat, and the loss; `module` then holds `weights`."""
    set_weights(module, weights)
    parameters = trainable(module)
    value = loss(module, batch)
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    filled = [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    return flatten(filled), value.detach()


def trainable(module: nn.Module) -> list[Tensor]:
    """The parameters that require a gradient; tied ones once."""
    return [p for p in unique_parameters(module.parameters()) if p.requires_grad]


def flat_weights(module: nn.Module) -> Tensor:
    """A copy of the trainable parameters, one behind the other."""
    return flatten(trainable(module))


@torch.no_grad()
def set_weights(module: nn.Module, weights: Tensor) -> None:
    """The trainable parameters have the values of the flat `weights`."""
    parameters = trainable(module)
    for parameter, values in zip(parameters, unflatten(weights, parameters), strict=True):
        parameter.copy_(values)


def check_server(group: Group, steps: int, slowdown: Sequence[float]) -> None:
    """Raise ValueError where a server and workers cannot run with these arguments."""
    if group.size < 2:
        raise ValueError(f"{group.size} rank: a server and a worker need at least 2")
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be 1 or more")
    if slowdown and len(slowdown) != group.size - 1:
        raise ValueError(
            f"slowdown has {len(slowdown)} factors; {group.size} ranks are a server and "
            f"{group.size - 1} workers"
        )
    if group.backend == "nccl":
        raise ValueError("a server takes what comes first, which NCCL cannot; use device='cpu'")
