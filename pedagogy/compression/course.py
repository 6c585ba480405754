"""A fair course for all methods: the same network, the same batches, the same number of steps.

A method is given a network after half of the steps, and the other half to train on after it has
compressed it: with the batches that every other method gets, in the same order, and an Adam of the
same rate (a new one in each half). Only a student starts anew; it takes all steps for itself.
`methods` holds the methods, `frontier` what they cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from pedagogy.compression.files import Stored
from pedagogy.costs.compression import training_bytes
from pedagogy.workloads import MLP, ConvNet, digits, digits_batch

_NETWORKS = {"MLP": MLP, "ConvNet": ConvNet}
BATCH, RATE = 64, 1e-3


class Compressed(NamedTuple):
    """The network with full tensors; its state dict as `files.save` takes it; bytes by kind."""

    network: nn.Module
    stored: dict[str, Stored]
    training: dict[str, int]
    with_huffman: bool


class Course:
    """The steps of one run. `at_once`: accuracy when the last call of `run` began."""

    def __init__(self, seed: int, steps: int) -> None:
        self.seed, self.steps, self.half = seed, steps, steps // 2
        self.at_once = 0.0

    def start(self, network: str) -> nn.Module:
        """A new "MLP" or "ConvNet" after the first half of the steps.

        **Raises** ValueError for another network.
        """
        if network not in _NETWORKS:
            raise ValueError(f"no network {network!r}: choose one of {', '.join(_NETWORKS)}")
        torch.manual_seed(self.seed)
        model = _NETWORKS[network]()
        self.run(model, 0, self.half)
        return model

    def run(
        self,
        model: nn.Module,
        first: int,
        last: int,
        after_step: Callable[[int], None] = lambda step: None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        """Steps first .. last - 1, with an Adam of their own and cross-entropy or another loss."""
        self.at_once = accuracy(model)
        loss = loss or (lambda images, labels: functional.cross_entropy(model(images), labels))
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        model.train()
        for step in range(first, last):
            optimizer.zero_grad()
            loss(*digits_batch(BATCH, self.seed, step)).backward()
            optimizer.step()
            after_step(step)


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """The share of the 360 test digits that are recognised."""
    _, _, images, labels = digits()
    return (model.eval()(images).argmax(1) == labels).float().mean().item()


def layers_of(model: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """The layers whose weights are compressed, by name: all that multiply matrices."""
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}


def finish(
    model: nn.Module,
    way: str = "full",
    weights: dict[str, Stored] | None = None,
    with_huffman: bool = False,
    num_values: int = 0,
    teacher: int = 0,
) -> Compressed:
    """Full tensors again; for the layers named in `weights`, the file has what stands there."""
    layers = layers_of(model)
    for layer in layers.values():
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight")
    stored = {f"{name}.weight": value for name, value in (weights or {}).items()}
    compressed = sum(model.get_parameter(name).numel() for name in stored)
    others = sum(p.numel() for p in model.parameters()) - compressed
    held = training_bytes(way, compressed, others, num_values, teacher)
    return Compressed(model, {**model.state_dict(), **stored}, held, with_huffman)
