"""What a gate decides, whatever the gate: which expert, with what weight, in which place, or not.

Why it exists
-------------
Shazeer's, GShard's and Switch's gates differ in how they choose. What they hand on is the same:
for each token k choices, each with an expert, a weight, a place in the expert's buffer, and whether
the choice was kept. Experts are then run by one piece of code (`dispatch`), whoever routed.

Capacity
--------
An expert on an accelerator has a buffer of fixed size: its *capacity*. Tokens are placed in their
order in the batch, first choices before second ones; what finds the buffer full is *dropped*. A
dropped token has no output of the layer, so that only the residual carries it on.

    capacity = ceil(capacity factor x choices / experts), and never more than there are tokens

Sources: Lepikhin et al. 2020 (GShard), section 2.2; Fedus et al. 2021 (Switch), section 2.2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Routing(NamedTuple):
    """The choices of a batch of tokens.

    **Shapes** `experts`, `places` (tokens, k) int64, `kept` (tokens, k) bool, `weights` (tokens, k)
    with their gradient, `probabilities` (tokens, num_experts) of the gate's softmax.
    """

    experts: Tensor
    weights: Tensor
    places: Tensor
    kept: Tensor
    probabilities: Tensor

    @property
    def num_experts(self) -> int:
        """How many experts there are."""
        return self.probabilities.size(-1)

    @property
    def gates(self) -> Tensor:
        """The weights as a matrix (tokens, num_experts): zero where not chosen, or dropped."""
        return self._dense(self.weights * self.kept)

    @property
    def asked(self) -> Tensor:
        """As `gates`, with the choices that were dropped: what a balancing loss must see."""
        return self._dense(self.weights)

    @property
    def counts(self) -> Tensor:
        """How many choices fell on each expert, dropped ones included: (num_experts,)."""
        return torch.bincount(self.experts.flatten(), minlength=self.num_experts)

    @property
    def num_dropped(self) -> int:
        """How many choices were dropped."""
        return int((~self.kept).sum())

    def _dense(self, weights: Tensor) -> Tensor:
        empty = torch.zeros_like(self.probabilities).to(weights.dtype)
        return empty.scatter_add(1, self.experts, weights)


def expert_capacity(num_tokens: int, num_experts: int, capacity_factor: float, k: int = 1) -> int:
    """Places in an expert's buffer: ceil(factor * tokens * k / experts), at most num_tokens.

    **Raises** ValueError for a factor that is not above 0 (a gate without a limit takes
    `capacity=None`), or counts below 1.
    Source: Fedus et al. 2021 (Switch), equation 3; Lepikhin et al. 2020, section 2.2.
    """
    if min(num_experts, k) < 1 or num_tokens < 0:
        raise ValueError(f"{num_tokens} tokens, {num_experts} experts, k = {k}: must be 1 or more")
    if not capacity_factor > 0:
        raise ValueError(
            f"a capacity factor of {capacity_factor}: must be above 0; for no limit, no capacity"
        )
    exact = capacity_factor * num_tokens * k / num_experts
    return math.ceil(min(num_tokens, round(exact, 9)))  # a factor may be infinite


def places_of(experts: Tensor, num_experts: int) -> Tensor:
    """The place of each choice in its expert's buffer: how many before it chose the same expert.

    **Shapes** (tokens, k) -> the same. First choices of all tokens come before second ones; within
    them, tokens in their order.
    """
    in_order = experts.T.flatten()  # all first choices, then all second ones
    chosen = torch.nn.functional.one_hot(in_order, num_experts)  # (k * tokens, num_experts)
    before = chosen.cumsum(0) - chosen
    return before.gather(1, in_order[:, None]).view(experts.T.shape).T


def keep_within(places: Tensor, capacity: int | None) -> Tensor:
    """Which choices find room. Without a capacity, all. **Raises** ValueError for one below 0."""
    if capacity is not None and capacity < 0:
        raise ValueError(f"a capacity of {capacity}: must be 0 or more; for no limit, None")
    return torch.ones_like(places, dtype=torch.bool) if capacity is None else places < capacity


def widened(logits: Tensor) -> Tensor:
    """The logits in float32 or better: near ties in 16 bits would be ties.

    **Raises** ValueError where they are not a matrix (tokens, num_experts).
    """
    if logits.dim() != 2:
        raise ValueError(f"logits of shape {tuple(logits.shape)}; must be (tokens, num_experts)")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
