"""Switch's gate: one expert a token.

How it works
------------
The token goes to the most probable expert, and the expert's output is multiplied by that
probability: the softmax goes over *all* experts, so the weight has a gradient although only one is
chosen. Half the computation and half the messages of top-2, and a smaller buffer.

The loss is E sum_e f_e P_e: f_e is the share of tokens that chose expert e, before any is
dropped, P_e its mean probability. It is 1 when one of them is even, whatever E: a value of 1 does
not mean balance. A gate that barely prefers one expert sends it everything, and the loss is still
1. What pushes back is the gradient, which flows through P alone: watch the counts, not the value.

Two details that keep it stable: the router computes in float32, as near-tied logits are equal in
bfloat16 and ranks may then disagree; and initial weights are small (a scale of 0.1).

The trap: the loss is not linear. The mean of the losses of micro-batches (or ranks) is not the loss
of the batch: one micro-batch all to expert 0 and one all to expert 1 have a mean of 2, together 1.
`switch_loss` is that of the tokens it is given; `pooled_switch_loss` averages f and P over a group
first, so that the number of ranks does not matter. Given the f of the whole batch the loss is
linear in P, and micro-batches add up: `loss_with_shares`.

Source: Fedus et al. 2021 (Switch Transformers), sections 2.1 and 2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pedagogy.collectives import reduce_from
from pedagogy.moe.routing import Routing, expert_capacity, keep_within, places_of, widened
from pedagogy.ranks import Group


def switch_gate(logits: Tensor, capacity_factor: float | None) -> Routing:
    """Each token goes to its most probable expert, weighted by that probability.

    **Shapes** logits (tokens, num_experts). `capacity_factor` None is no limit.
    **Raises** ValueError for a factor that is not above 0.
    Source: Fedus et al. 2021, section 2.1.
    """
    probabilities = widened(logits).softmax(-1)
    tokens, num_experts = probabilities.shape
    experts = probabilities.argsort(dim=-1, descending=True, stable=True)[:, :1]
    places = places_of(experts, num_experts)
    capacity = None
    if capacity_factor is not None:
        capacity = expert_capacity(tokens, num_experts, capacity_factor)
    kept = keep_within(places, capacity)
    return Routing(experts, probabilities.gather(-1, experts), places, kept, probabilities)


def switch_loss(probabilities: Tensor, expert_index: Tensor) -> Tensor:
    """E sum_e f_e P_e, without its coefficient (the paper's is 0.01): 1.0 when balanced.

    **Shapes** probabilities (tokens, num_experts), expert_index (tokens,) or (tokens, k) -> ().
    Without tokens it is 0. **Raises** ValueError for other shapes.
    Source: Fedus et al. 2021, equations 4 to 6.
    """
    if probabilities.dim() != 2:
        shape = tuple(probabilities.shape)
        raise ValueError(f"probabilities of shape {shape}; must be (tokens, num_experts)")
    if len(probabilities) != len(expert_index):
        raise ValueError(f"{len(probabilities)} tokens, but {len(expert_index)} choices")
    return loss_with_shares(probabilities, chosen_shares(expert_index, probabilities.size(-1)))


def loss_with_shares(probabilities: Tensor, shares: Tensor) -> Tensor:
    """`switch_loss` with f given: that of all micro-batches or ranks, known beforehand.

    The mean of this over equal micro-batches is the loss of the batch, and so is its gradient.
    **Shapes** probabilities (tokens, num_experts), shares (num_experts,) -> ().
    """
    return probabilities.size(-1) * (shares.to(probabilities) * _mean(probabilities)).sum()


def chosen_shares(expert_index: Tensor, num_experts: int) -> Tensor:
    """f: which share of the choices fell on each expert, dropped ones included: (num_experts,)."""
    counts = torch.bincount(expert_index.flatten(), minlength=num_experts)
    return counts.double() / max(expert_index.numel(), 1)


def pooled_switch_loss(group: Group, probabilities: Tensor, expert_index: Tensor) -> Tensor:
    """`switch_loss` of all ranks' tokens together, equal on all ranks (equal numbers of tokens).

    The gradient is that of the whole loss by this rank's probabilities: where gradients are then
    averaged over the group, multiply by its size; where they are summed, do not.
    **Bytes** two all_reduces of num_experts numbers.
    """
    shares = group.all_reduce(chosen_shares(expert_index, probabilities.size(-1)), "mean")
    mean = reduce_from(group, _mean(probabilities) / group.size)
    return probabilities.size(-1) * (shares.to(mean) * mean).sum()


def _mean(probabilities: Tensor) -> Tensor:
    return probabilities.sum(0) / max(len(probabilities), 1)
