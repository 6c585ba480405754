"""Chapter 01: staleness and the recursion of an asynchronous run. See also `chapter01_server`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register

# --- staleness -----------------------------------------------------------------------------------


def staleness_of(order: Sequence[int]) -> list[int]:
    """For each update, how many others were made since its worker had read the weights.

    `order` names the worker of each update; a worker reads right after its own update.
    """
    read = {}  # the version that each worker works with: 0 at first
    stale = []
    for version, worker in enumerate(order):
        stale.append(version - read.get(worker, 0))
        read[worker] = version + 1
    return stale


def _own_update_counts(order):
    read, stale = {}, []
    for version, worker in enumerate(order):
        stale.append(version - read.get(worker, 0))
        read[worker] = version
    return stale


def _since_the_start(order):
    return list(range(len(order)))


def _other_workers(order):
    return [len(set(order)) - 1 for _ in order]


def _read_by_all(order):
    return [0 for _ in order]


STALENESS = Exercise(
    name="staleness_of",
    title="Staleness of a recorded order",
    chapter="01",
    reference=staleness_of,
    cases=[([1, 2, 3, 1, 2, 3],), ([1, 1, 2, 1, 1, 1, 2],), ([1, 1, 1],), ([],)],
    labels=["1, 2, 3, 1, 2, 3", "1, 1, 2, 1, 1, 1, 2", "1, 1, 1", "no update"],
    mistakes=[
        (
            _own_update_counts,
            "A worker reads after its own update, so its own update is not one it has missed.",
        ),
        (
            _since_the_start,
            "This counts from version 0; a worker gets fresh weights after each of its gradients.",
        ),
        (
            _other_workers,
            "W - 1 is what W equally fast workers come to. Count what was really in between.",
        ),
        (
            _read_by_all,
            "Only the worker whose gradient was applied gets new weights; the others keep theirs.",
        ),
    ],
    hints=[
        "Update number v makes version v + 1 of version v. Keep the version that each worker read.",
        "The staleness of update v is v minus the version that its worker had read.",
    ],
)

# --- the recursion -------------------------------------------------------------------------------


def replayed(
    weights: Tensor,
    read_versions: Sequence[int],
    gradient: Callable[[Tensor, int], Tensor],
    learning_rate: float,
) -> Tensor:
    """The last weights: update v applies the gradient at the version that was read for it.

    `gradient(weights, v)` is the gradient of update v's batch at these weights.
    """
    versions = [weights]
    for v, read in enumerate(read_versions):
        step = learning_rate * gradient(versions[read], v)
        versions.append(versions[-1] - step)  # a new tensor: the old versions are still needed
    return versions[-1]


def _as_if_fresh(weights, read_versions, gradient, learning_rate):
    return replayed(weights, range(len(read_versions)), gradient, learning_rate)


def _from_the_version_read(weights, read_versions, gradient, learning_rate):
    versions = [weights]
    for v, read in enumerate(read_versions):
        versions.append(versions[read] - learning_rate * gradient(versions[read], v))
    return versions[-1]


def _updated_in_place(weights, read_versions, gradient, learning_rate):
    newest, versions = weights.clone(), [weights]
    for v, read in enumerate(read_versions):
        newest -= learning_rate * gradient(versions[read], v)
        versions.append(newest)
    return newest


def _always_at_the_first(weights, read_versions, gradient, learning_rate):
    return replayed(weights, [0] * len(read_versions), gradient, learning_rate)


class _Bowl:
    """The gradient of (weights - target)^2 / 2, with another target for each update."""

    def __call__(self, weights: Tensor, v: int) -> Tensor:
        return weights - torch.tensor([1.0, -2.0, 0.5]) * (v % 3)

    def __repr__(self) -> str:
        return "gradient"


_bowl = _Bowl()
_START = torch.tensor([4.0, 1.0, -1.0])
REPLAYED = Exercise(
    name="replayed",
    title="The recursion that an asynchronous run must equal",
    chapter="01",
    reference=replayed,
    cases=[
        (_START, [0, 0, 0, 1, 2, 3], _bowl, 0.5),
        (_START, [0, 1, 0, 3, 4, 3], _bowl, 0.25),
        (_START, [], _bowl, 0.5),
    ],
    labels=["versions 0, 0, 0, 1, 2, 3 read", "versions 0, 1, 0, 3, 4, 3 read", "no update"],
    mistakes=[
        (
            _as_if_fresh,
            "This takes each gradient at the newest weights, as if none were late: plain SGD.",
        ),
        (
            _from_the_version_read,
            "The gradient is the old version's, and is applied to the newest one: starting from "
            "the old one throws away all updates in between.",
        ),
        (
            _updated_in_place,
            "The list holds one tensor many times, and -= changes it: make a new one each time.",
        ),
        (_always_at_the_first, "Every gradient is taken at version 0; look up the version read."),
    ],
    hints=[
        "Keep a list of all versions; versions[read_versions[v]] is where gradient v was computed.",
        "w(v+1) = w(v) - learning_rate * gradient(w(read), v), and append it to the list.",
    ],
)

# --- the first n ---------------------------------------------------------------------------------


def first_n(
    arrivals: Sequence[tuple[int, Tensor]], num_needed: int
) -> tuple[list[Tensor], list[int]]:
    """The mean gradient of each full step, and the places in `arrivals` of those dropped.

    An arrival is (the step it was computed for, the gradient). A step is over, and the next one
    begins, when `num_needed` gradients for it have come; what comes later for it is dropped.
    """
    means, dropped, came = [], [], []
    for place, (step, gradient) in enumerate(arrivals):
        if step < len(means):  # its step is over
            dropped.append(place)
            continue
        came.append(gradient)
        if len(came) == num_needed:
            means.append(sum(came) / num_needed)
            came = []
    return means, dropped


def _late_ones_too(arrivals, num_needed):
    every = [gradient for _, gradient in arrivals]
    last = len(every) - num_needed + 1
    means = [sum(every[i : i + num_needed]) / num_needed for i in range(0, last, num_needed)]
    return means, []


def _all_that_were_sent(arrivals, num_needed):
    means, dropped = [], []
    for step in sorted({step for step, _ in arrivals}):
        came = [gradient for its, gradient in arrivals if its == step]
        if len(came) >= num_needed:
            means.append(sum(came) / len(came))
    return means, dropped


def _sums(arrivals, num_needed):
    means, dropped = first_n(arrivals, num_needed)
    return [num_needed * mean for mean in means], dropped


def _first_n_of_each(num_workers: int, num_needed: int, order: Sequence[int]) -> tuple:
    draw = torch.Generator().manual_seed(num_workers)
    return [(step, torch.randn(2, generator=draw)) for step in order], num_needed


FIRST_N = Exercise(
    name="first_n",
    title="The server of backup workers",
    chapter="01",
    reference=first_n,
    cases=[
        _first_n_of_each(3, 2, [0, 0, 0, 1, 1, 1, 2, 2]),
        _first_n_of_each(4, 3, [0, 0, 0, 1, 1, 0, 1, 2, 1, 2, 2]),
        _first_n_of_each(2, 2, [0, 0, 1, 1]),
    ],
    labels=["the first 2 of 3 workers", "the first 3 of 4 workers", "both of 2 workers"],
    mistakes=[
        (
            _late_ones_too,
            "A late gradient was computed at older weights and counts for nothing: compare its "
            "step with the one under way.",
        ),
        (
            _all_that_were_sent,
            "This waits for all of a step's gradients. The step is over with the first "
            "num_needed; the rest are dropped.",
        ),
        (_sums, "This is the sum of the first gradients: divide by num_needed."),
    ],
    hints=[
        "The step under way is the number of means so far.",
        "Late: append its place to dropped. Else collect it, and when num_needed are there, append "
        "their mean and empty the collection.",
    ],
)

register(STALENESS, REPLAYED, FIRST_N)
