"""A weight that two stages share: GPT's token embedding, used first and last.

The problem
-----------
A tied embedding is one parameter. In a pipeline its two uses lie on two ranks, so there are two
copies. If they start different, or one misses the other's gradient, they drift apart and nobody
notices.

How it works
------------
When all stages exist, one copy is broadcast. After the last backward the copies' gradients are
summed, so that each takes the step that the one parameter would have taken. No communication
happens while a stage is built: a rank that still builds its second chunk would make others wait.

If both uses lie on the same rank (one rank, or a V-shaped placement), they are one parameter, and
there is nothing to do.

What it costs: one all_reduce of the embedding's gradient per batch, between two ranks.

Source: Narayanan et al. 2021 (PTD-P) train such models; Shoeybi et al. 2019 (Megatron-LM) tie them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pedagogy.ranks import Group


class TiedWeight:
    """The copies of one weight on `holders` (ranks of `group`) are equal, and stay so.

    `parameter`: this rank's copy; None on ranks that hold none. Copies take the value of the first
    holder. Every holder calls `sum_gradients` once per batch, after its last backward: this is for
    schedules that flush. Where stages update themselves, no moment is left to add the gradients.

    **Raises** ValueError where a holder brings no parameter, or another rank brings one.
    """

    def __init__(
        self, group: Group, holders: Sequence[int], parameter: nn.Parameter | None
    ) -> None:
        holds = group.rank in holders
        if holds != (parameter is not None):
            have = "brings no copy" if holds else "brings a copy"
            raise ValueError(f"rank {group.rank} {have}, but the holders are {list(holders)}")
        self._parameter, self._copies = parameter, None
        if holds and len(set(holders)) > 1:
            ranks = sorted(set(holders))
            self._copies = group.subset(ranks, "tied weight")
            self._copies.broadcast_(parameter.data, ranks.index(holders[0]))

    def sum_gradients(self) -> None:
        """Each copy holds the sum of all copies' gradients."""
        if self._copies is not None and self._parameter.requires_grad:
            if self._parameter.grad is None:
                self._parameter.grad = torch.zeros_like(self._parameter)
            self._copies.all_reduce_(self._parameter.grad)
