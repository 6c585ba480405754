"""Accumulation in a training loop: micro-batches come one by one, an update after every k-th.

How it works
------------
    accumulator = GradientAccumulator(model, optimizer, 4, loss_sum, count)
    for microbatch in loader:
        accumulator.add(microbatch)      # [1] backward; [2] after the 4th: divide, clip, step
    accumulator.finish()                 # [3] what is left of the last window

[1] The loss is a sum, and its gradient is added to `.grad`. Nothing is sent. In 16 bits such sums
    may overflow; `accumulate`, which sees a whole window at once, divides before it adds.
[2] The window is full: gradients and numbers of items are summed over the ranks, once; the gradient
    is divided by the number of items, clipped by its norm, and the optimizer steps.
[3] Five micro-batches in windows of two are three updates. The last window has one micro-batch, and
    is divided by what *it* holds. Dropping it loses data; dividing by two makes its update half as
    large.

The window is counted in micro-batches. Ranks must fill their windows together: each of them calls
`add` and `finish` equally often, with a micro-batch without items where it has none.

On the reader's own loop
------------------------
With `DistributedDataParallel` the same is `no_sync()` around all but the last micro-batch of a
window: DDP decides in *forward* whether the backward that follows will communicate, so a `no_sync`
around backward alone does nothing. It averages over ranks, and knows nothing of items.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pedagogy.accumulation.accumulate import Count, LossSum, check_single, num_items
from pedagogy.parameters import (
    add_up,
    clip_by_global_norm,
    fill_gradients,
    unique_parameters,
)
from pedagogy.ranks import Group


class GradientAccumulator:
    """One update of `optimizer` for each `window` micro-batches.

    `max_norm` clips the gradient's norm, once a window. `num_steps` counts the updates.
    **Memory** gradients, and the activations of one micro-batch.
    **Raises** ValueError for a window below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        window: int,
        loss_sum: LossSum,
        count: Count,
        group: Group | None = None,
        max_norm: float | None = None,
    ) -> None:
        if window < 1:
            raise ValueError(f"a window of {window} micro-batches: must be 1 or more")
        self.model, self.optimizer, self.window = model, optimizer, window
        self.loss_sum, self.count, self.group, self.max_norm = loss_sum, count, group, max_norm
        self.num_steps = 0
        self._start()

    def add(self, microbatch: Any) -> Tensor | None:
        """Backward; after the last micro-batch of a window an update, and its mean loss."""
        loss = self.loss_sum(self.model, microbatch)
        check_single(loss)
        if loss.requires_grad:
            loss.backward()
        self._counts.append(self.count(microbatch))
        self._loss += loss.detach().double().cpu()
        return self._step() if len(self._counts) == self.window else None

    def finish(self) -> Tensor | None:
        """The update of an incomplete last window, and its mean loss; None if nothing is left."""
        return self._step() if self._counts else None

    def _step(self) -> Tensor:
        total = max(num_items(self._counts, self.group), 1)
        if self.group is not None:
            filled = fill_gradients(self.group, self.model.parameters())
            add_up(self.group, [p.grad for p in filled])
            self._loss = self.group.all_reduce(self._loss.to(self.group.device)).cpu()
        gradients = [
            p.grad for p in unique_parameters(self.model.parameters()) if p.grad is not None
        ]
        for gradient in gradients:
            gradient.div_(total)
        if self.max_norm is not None:
            clip_by_global_norm([((), gradients)], self.max_norm)
        self.optimizer.step()
        self.num_steps += 1
        mean = self._loss / total
        self._start()
        return mean

    def _start(self) -> None:
        """A new window: no gradient, no items."""
        for parameter in unique_parameters(self.model.parameters()):
            parameter.grad = None
        self._counts: list[Any] = []
        self._loss = torch.zeros((), dtype=torch.float64)
