"""Chapter 01, worth an evening: a parameter server of one's own, on three ranks.

No two runs of a server apply the gradients in the same order, so there is no fixed answer to
compare with. What is checked is what must hold in each run: every gradient was applied once, the
weights equal the recursion of the server's own log, and nobody waited for somebody slower. For the
last, worker 2 gets its first gradient only when worker 1 has asked for its last one, or after two
seconds where that does not happen.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group

PATIENCE_SECONDS = 4.0


def parameter_server(
    group: Group,
    weights: Tensor,
    gradient: Callable[[int, int, Tensor], Tensor],
    learning_rate: float,
    steps: int,
) -> tuple[Tensor, list[tuple[int, int]]] | None:
    """Rank 0 returns the last weights and a log of (worker, version read); the others None.

    Each worker computes `gradient(rank, step, weights)` for `steps` steps, at the newest weights
    that the server has when it asks. The server applies what comes first.
    """
    if group.rank > 0:
        for step in range(steps):
            mine = group.recv(0)
            group.send(gradient(group.rank, step, mine), 0)
        return None
    log: list[tuple[int, int]] = []
    read, left = {}, dict.fromkeys(range(1, group.size), steps)
    for worker in left:
        group.send(weights, worker)
        read[worker] = 0
    while any(left.values()):
        worker, arrived = group.recv_any()
        weights = weights - learning_rate * arrived
        log.append((worker, read[worker]))
        left[worker] -= 1
        if left[worker]:
            group.send(weights, worker)
            read[worker] = len(log)
    return weights, log


def _work(group, gradient, steps):
    for step in range(steps):
        group.send(gradient(group.rank, step, group.recv(0)), 0)


def _in_turn(group, weights, gradient, learning_rate, steps):
    if group.rank:
        return _work(group, gradient, steps)
    log = []
    for _ in range(steps):
        read = {}
        for worker in range(1, group.size):
            group.send(weights, worker)
            read[worker] = len(log)
        for worker in range(1, group.size):
            weights = weights - learning_rate * group.recv(worker)
            log.append((worker, read[worker]))
    return weights, log


def _logs_the_newest(group, weights, gradient, learning_rate, steps):
    result = parameter_server(group, weights, gradient, learning_rate, steps)
    if result is None:
        return None
    return result[0], [(worker, version) for version, (worker, _) in enumerate(result[1])]


def _first_weights_for_ever(group, weights, gradient, learning_rate, steps):
    first = weights
    if group.rank:
        return _work(group, gradient, steps)
    log, left = [], dict.fromkeys(range(1, group.size), steps)
    for worker in left:
        group.send(first, worker)
    while any(left.values()):
        worker, arrived = group.recv_any()
        weights = weights - learning_rate * arrived
        log.append((worker, 0))
        left[worker] -= 1
        if left[worker]:
            group.send(first, worker)
    return weights, log


def _uphill(group, weights, gradient, learning_rate, steps):
    return parameter_server(group, weights, gradient, -learning_rate, steps)


def _the_mean(group, weights, gradient, learning_rate, steps):
    return parameter_server(group, weights, gradient, learning_rate / (group.size - 1), steps)


def _bowl(worker: int, step: int, weights: Tensor) -> Tensor:
    """The gradient of (weights - target)^2 / 2; each worker and step has a target of its own."""
    return weights - torch.tensor([1.0 * worker, 0.5 * step, -1.0])


class _Gate:
    """`_bowl`, but worker 2's first gradient waits until worker 1 computes its last one."""

    def __init__(self, group: Group, steps: int) -> None:
        number = int(group.broadcast(torch.randint(2**62, ())))
        self.file = Path(tempfile.gettempdir()) / f"pedagogy-gate-{number}"
        self.last, self.opened_in_time = steps - 1, True

    def __call__(self, worker: int, step: int, weights: Tensor) -> Tensor:
        if (worker, step) == (1, self.last):
            self.file.touch()
        until = time.monotonic() + PATIENCE_SECONDS
        while (worker, step) == (2, 0) and not self.file.exists() and time.monotonic() < until:
            time.sleep(0.002)
        return _bowl(worker, step, weights)


def _served(function, group, weights, learning_rate, steps) -> Any:
    gate = _Gate(group, steps)
    result = function(group, weights, gate, learning_rate, steps)
    if group.rank:
        return result
    gate.file.unlink(missing_ok=True)
    return None if result is None else _judged(result, group, weights, learning_rate, steps)


def _judged(result: Any, group: Group, weights: Tensor, learning_rate: float, steps: int) -> dict:
    last, log = result
    ends = {
        "the recursion of the log": learning_rate,
        "the recursion uphill": -learning_rate,
        "the recursion with the gradients' mean": learning_rate / (group.size - 1),
    }
    found = [name for name, rate in ends.items() if _equal(last, _recursion(weights, log, rate))]
    by_worker = [sum(one == worker for worker, _ in log) for one in range(1, group.size)]
    return {
        "updates by worker": by_worker,
        "weights equal": found[0] if found else "no recursion of this log",
        "workers get new weights": len({read for _, read in log}) > 1,
        "worker 1 waits for worker 2": [worker for worker, _ in log[: steps - 1]] != [1] * (
            steps - 1
        ),
    }  # fmt: skip


def _recursion(weights: Tensor, log: list[tuple[int, int]], learning_rate: float) -> Tensor:
    versions, done = [weights], dict.fromkeys((worker for worker, _ in log), 0)
    for worker, read in log:
        step = _bowl(worker, done[worker], versions[read])
        versions.append(versions[-1] - learning_rate * step)
        done[worker] += 1
    return versions[-1]


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6)


SERVER = Exercise(
    name="parameter_server",
    title="A parameter server of your own",
    chapter="01",
    reference=parameter_server,
    cases=[(torch.tensor([4.0, -3.0, 2.0]), 0.3, 4)],
    labels=["two workers, four steps each"],
    ranks=3,
    observe=_served,
    mistakes=[
        (
            _in_turn,
            "The server asks the workers in turn, so the fast one waits for the slow one: that is "
            "a barrier again. group.recv_any() takes whatever comes first.",
        ),
        (
            _logs_the_newest,
            "The log names the version to which a gradient was applied; it was computed at the one "
            "that the worker had read. Note it when you send the weights.",
        ),
        (
            _first_weights_for_ever,
            "The workers get the first weights again and again. Send the newest ones.",
        ),
        (_uphill, "The weights run uphill: subtract learning_rate times the gradient."),
        (
            _the_mean,
            "Each gradient is applied by itself, in full: there is nothing to average over.",
        ),
    ],
    hints=[
        "A worker is a loop of three: group.recv(0), gradient(...), group.send(..., 0).",
        "The server sends weights to every worker, then loops: group.recv_any() gives (worker, "
        "gradient); apply it, log it, send that worker the newest weights.",
        "Keep read[worker] = len(log) whenever you send weights, and send none to a worker that "
        "has done its steps, as it no longer listens.",
    ],
)

register(SERVER)
