"""Chapter 06: small models and micro-batches, and a loss that knows whose activations are alive.

A micro-batch is (x, labels): x (n, features), labels (n,) int64, of which `IGNORED` do not count.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED, FEATURES, CLASSES = -100, 3, 4
MicroBatch = tuple[Tensor, Tensor]


def slopes(*values: float, label: int = 0) -> MicroBatch:
    """Items whose gradients with respect to a single weight are these."""
    return torch.tensor(values, dtype=torch.float32)[:, None], torch.full((len(values),), label)


def classes(labels: Sequence[int], seed: int) -> MicroBatch:
    """Items with random features, and these labels."""
    x = torch.randn(len(labels), FEATURES, generator=torch.Generator().manual_seed(seed))
    return x, torch.tensor(labels, dtype=torch.int64)


def fresh_model(microbatches: Sequence[MicroBatch]) -> nn.Module:
    """A linear layer for micro-batches of `slopes`, or of `classes`; the same at each call."""
    if any(x.size(1) == 1 for x, _ in microbatches):
        model = nn.Linear(1, 1, bias=False)
    else:
        model = nn.Linear(FEATURES, CLASSES)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return model


def count(microbatch: MicroBatch) -> int:
    """The items that count."""
    return int((microbatch[1] != IGNORED).sum())


def loss_sum(model: nn.Module, microbatch: MicroBatch) -> Tensor:
    """The sum of the items' losses: cross-entropy, or the output itself of a single weight."""
    x, labels = microbatch
    if x.size(1) == 1:
        losses = model(x)[:, 0]
    else:
        losses = functional.cross_entropy(model(x), labels.clamp(min=0), reduction="none")
    return (losses * (labels != IGNORED)).sum()


def gradients(model: nn.Module) -> list[Tensor]:
    """Copies of the parameters' gradients; zeros where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


class Watched:
    """`loss_sum`, which counts the micro-batches whose activations are alive at once: `most`, >= 1.

    What a forward keeps for its backward is wrapped; the wrappings disappear with it. A forward of
    more items than the largest of `microbatches` has is counted as several.
    """

    def __init__(self, microbatches: Sequence[MicroBatch]) -> None:
        self.largest = max((len(labels) for _, labels in microbatches), default=1)
        self.rounds: list[tuple[weakref.WeakSet, int]] = []  # what is kept, of so many items
        self.most = 1

    def __call__(self, model: nn.Module, microbatch: MicroBatch) -> Tensor:
        kept: weakref.WeakSet = weakref.WeakSet()
        self.rounds.append((kept, len(microbatch[1])))
        with _keeping(kept):
            loss = loss_sum(model, microbatch)
        alive = [items for one, items in self.rounds if len(one)]
        self.most = max(self.most, len(alive), math.ceil(sum(alive) / self.largest))
        return loss


class _Kept:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _keeping(kept: weakref.WeakSet) -> AbstractContextManager[Any]:
    def pack(tensor: Tensor) -> _Kept:
        wrapped = _Kept(tensor)
        kept.add(wrapped)
        return wrapped

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda wrapped: wrapped.tensor)
