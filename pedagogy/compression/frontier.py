"""The frontier: what each method costs in accuracy, and what it saves of three different things.

Why it exists
-------------
"Smaller at the same accuracy" is said of every method, each with a size of its own choosing. Here
all are trained and measured alike (`course`), over several seeds, and for each stand side by side:

    accuracy         of the 360 test digits (one is 0.28 points), by the network that was read back
                     from the file; and at once, when training on after the compression begins
                     (where sparsity rises in steps: after the first)
    file bytes       of what `files.save` wrote: header, codebooks and positions are in it
    FLOPs            of one digit, 2 for each weight and place. A zero in a full tensor costs as
                     much as any number; `sparse_flops` are those of a program that skips them
    training bytes   held while the compressed network trains on, by `pedagogy.costs.compression`.
                     All but the student come from a full network, which was trained first

What came out: most methods stay within the spread of the full network or a point below it. It
hurts, by 2 to 8 points and with much more spread, where 95 % of the connections go, or 75 % of the
kernels or channels. And a small network that was small from the start is on the frontier, too.

Five seeds stand recorded beside this module. To make them again, on your machine:

    python -m pedagogy.compression.frontier

Another machine gives other digits: rounding differs, and training amplifies it.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.compression import files, students
from pedagogy.compression.course import Course, accuracy, layers_of
from pedagogy.compression.methods import METHODS, Method
from pedagogy.measure import read_recording, write_recording

STEPS, SEEDS = 1000, (0, 1, 2, 3, 4)
_FILE = "recorded_frontier.csv"


class Row(NamedTuple):
    """One method with one seed."""

    method: str
    setting: str
    network: str
    seed: int
    accuracy: float
    at_once: float
    file_bytes: int
    flops: int
    sparse_flops: int
    training_bytes: int


class Point(NamedTuple):
    """One method over its seeds: accuracies from 0 to 1, one a seed; the others are means."""

    method: str
    setting: str
    network: str
    accuracies: list[float]
    at_once: list[float]
    file_bytes: float
    flops: float
    sparse_flops: float
    training_bytes: float


def run(method: Method, seed: int, steps: int = STEPS, start: nn.Module | None = None) -> Row:
    """Train, compress, train on; write the file, read it, and measure what was read.

    `start`: what `Course(seed, steps).start(method.network)` gave, if that is known already.
    """
    course = Course(seed, steps)
    model = course.start(method.network) if start is None else copy.deepcopy(start)
    network, stored, training, with_huffman = method.train(model, course)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network"
        file_bytes = files.save(path, stored, with_huffman=with_huffman)
        network.load_state_dict(files.load(path))
    found, total = accuracy(network), sum(training.values())
    flops = image_flops(network)
    return Row(*method[:3], seed, found, course.at_once, file_bytes, *flops, total)


@torch.no_grad()
def image_flops(model: nn.Module) -> tuple[int, int]:
    """FLOPs of one digit in linear and convolutional layers: of all weights, and without zeros."""
    flops = {"all": 0, "nonzero": 0}

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        places = output.numel() // layer.weight.shape[0]
        flops["all"] += 2 * layer.weight.numel() * places
        flops["nonzero"] += 2 * int(layer.weight.count_nonzero()) * places

    hooks = [layer.register_forward_hook(count) for layer in layers_of(model).values()]
    model.eval()(torch.zeros(1, 1, 8, 8))
    for hook in hooks:
        hook.remove()
    return flops["all"], flops["nonzero"]


def recorded_frontier() -> list[Point]:
    """All methods over five seeds, in the order of `METHODS`. See `provenance`."""
    runs: dict[tuple[str, ...], list[list[float]]] = {}
    for *name, _, found, at_once, size, flops, sparse, training in _recording().rows:
        numbers = [float(cell) for cell in (found, at_once, size, flops, sparse, training)]
        runs.setdefault(tuple(name), []).append(numbers)
    points = []
    for name, rows in runs.items():
        found, at_once, *others = (list(column) for column in zip(*rows, strict=True))
        points.append(Point(*name, found, at_once, *(sum(o) / len(o) for o in others)))
    return points


def provenance() -> str:
    """How, when and on what the recorded runs were made."""
    return _recording().provenance


def _recording():
    return read_recording("pedagogy.compression", _FILE)


def record(
    path: Path,
    methods: Iterable[Method] = METHODS,
    seeds: Iterable[int] = SEEDS,
    steps: int = STEPS,
) -> None:
    """Train again and write the file. It takes minutes."""
    methods, seeds = list(methods), list(seeds)

    def rows() -> Iterator[Row]:
        networks = {method.network for method in methods}
        starts = {(n, seed): Course(seed, steps).start(n) for n in networks for seed in seeds}
        for method in methods:
            for seed in seeds:
                yield run(method, seed, steps, starts[method.network, seed])

    how = f"pedagogy.compression.frontier.run(method, seed, steps={steps}), seeds {seeds}"
    write_recording(path, f"{how}: {', '.join(Row._fields)}", rows())


if __name__ == "__main__":
    torch.set_num_threads(1)
    record(Path(__file__).with_name(_FILE))
    students.record(Path(__file__).with_name(students.FILE))
