"""Chapter 06: accumulation on several ranks, of which every part can be another one.

A mistake is one such part: the divisor, what is done after each micro-batch, and how the gradients
are put together at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pedagogy.ranks import Group

By = Callable[[Group, list[int], Sequence[Any]], float]  # (group, own counts, micro-batches)


def total_items(group: Group, counts: list[int], microbatches: Sequence[Any]) -> int:
    """The items of all ranks, or 1."""
    return max(int(group.all_reduce(torch.tensor(sum(counts)))), 1)


def summed(group: Group, model: nn.Module) -> None:
    """Every `.grad` is the sum over the ranks."""
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        group.all_reduce_(parameter.grad)


def nothing(group: Group, model: nn.Module) -> None:
    """Nothing is sent."""


def on_ranks(
    group: Group,
    model: nn.Module,
    microbatches: Sequence[Any],
    loss_sum: Callable,
    count: Callable,
    by: By = total_items,
    own: Callable[[int], float] = lambda items: 1,
    clear: Callable[[nn.Module, int], None] | None = None,
    after_each: Callable[[Group, nn.Module], None] = nothing,
    end: Callable[[Group, nn.Module], None] = summed,
) -> None:
    """Sums are divided by `by`, and each of them by `own(items)` as well."""
    counts = [count(microbatch) for microbatch in microbatches]
    divisor = by(group, counts, microbatches)
    if clear is None:
        model.zero_grad()
    for index, microbatch in enumerate(microbatches):
        if clear is not None:
            clear(model, index)
        (loss_sum(model, microbatch) / (divisor * own(counts[index]))).backward()
        after_each(group, model)
    end(group, model)
