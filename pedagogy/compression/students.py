"""When a teacher helps: one student, few labelled digits or many, alone or taught.

The teacher is the MLP (64, 300, 100, 10) trained on all 1,437 digits; the student has 32 hidden
units and sees the first 50, 100, 300 or all of them, for the same number of steps. What a student
alone cannot know, the teacher's answers tell it about these few images: which other digits each
one resembles. With all labels there is little left to tell.

Source: Hinton et al. 2015, section 6, where soft targets make up for 97 % of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.compression.course import BATCH, RATE, accuracy
from pedagogy.compression.distillation import distillation_loss
from pedagogy.compression.methods import ALPHA, STUDENT
from pedagogy.measure import Recording, read_recording, write_recording
from pedagogy.workloads import MLP, digits

NUM_LABELS = (50, 100, 300, 1437)
WAYS = {"alone": None, "T = 1": 1.0, "T = 2": 2.0, "T = 4": 4.0, "T = 8": 8.0}
FILE = "recorded_students.csv"


def distil(
    num_labels: int, temperature: float | None, seed: int, steps: int = 1000, alpha: float = ALPHA
) -> float:
    """Accuracy of a student that saw so many labelled digits; temperature None: it is alone.

    **Raises** ValueError for less than one digit or more than there are.
    """
    if not 1 <= num_labels <= NUM_LABELS[-1]:
        raise ValueError(f"{num_labels} labelled digits: from 1 to {NUM_LABELS[-1]}")
    if temperature is None:
        return accuracy(_train(STUDENT, num_labels, seed, steps, _cross_entropy))
    teacher = _teacher(seed, steps)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return distillation_loss(model(x), teacher(x), y, temperature, alpha)

    return accuracy(_train(STUDENT, num_labels, seed, steps, loss))


@lru_cache(maxsize=1)
def _teacher(seed: int, steps: int) -> nn.Module:
    model = _train((64, 300, 100, 10), NUM_LABELS[-1], seed, steps, _cross_entropy)
    return model.eval().requires_grad_(False)


def _cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def _train(
    sizes: tuple[int, ...],
    num_labels: int,
    seed: int,
    steps: int,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> nn.Module:
    """Each batch is drawn, with replacement, from the first `num_labels` training digits."""
    images, labels, _, _ = digits()
    torch.manual_seed(seed)
    model = MLP(sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(steps):
        drawn = np.random.default_rng([seed, step]).integers(0, num_labels, size=BATCH)
        optimizer.zero_grad()
        loss(model, images[drawn], labels[drawn]).backward()
        optimizer.step()
    return model


def recorded_distillation() -> dict[int, dict[str, list[float]]]:
    """Accuracy of each seed by number of labelled digits and way. See `provenance`."""
    found: dict[int, dict[str, list[float]]] = {}
    for num_labels, way, _, share in _recording().rows:
        found.setdefault(int(num_labels), {}).setdefault(way, []).append(float(share))
    return found


def provenance() -> str:
    """How, when and on what the recorded students were trained."""
    return _recording().provenance


def _recording() -> Recording:
    return read_recording("pedagogy.compression", FILE)


def record(
    path: Path,
    num_labels: Iterable[int] = NUM_LABELS,
    seeds: Iterable[int] = (0, 1, 2, 3, 4),
    steps: int = 1000,
) -> None:
    """Train again and write the file. It takes a minute or two."""
    num_labels, seeds = list(num_labels), list(seeds)

    def rows() -> Iterator[list]:
        for seed in seeds:
            for count in num_labels:
                for way, temperature in WAYS.items():
                    yield [count, way, seed, distil(count, temperature, seed, steps)]

    how = f"pedagogy.compression.students.distil(labels, T, seed, steps={steps}), seeds {seeds}"
    write_recording(path, f"{how}: labels, way, seed, accuracy", rows())
