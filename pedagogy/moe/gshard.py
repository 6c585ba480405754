"""GShard's gate: two experts a token, a capacity in each group, and a second one by chance.

How it works
------------
The batch is cut into groups of S tokens; each is routed by itself, in parallel. In a group:

[1] The first expert is the most probable one, the second the next. Their two probabilities are
    scaled to sum to 1.
[2] First choices are placed, in the order of the tokens. What finds the buffer full is dropped, but
    counted all the same.
[3] Second choices follow, with what is left of the buffers, and only by chance: with probability
    2 g2, so that a second expert of little weight often costs nothing. They too are counted whether
    they find room or not.
[4] A token whose both choices are dropped overflows: only the residual carries it on.

The auxiliary loss is (1/E) sum_e (c_e / S) m_e: c_e counts the *first* choices of expert e, m_e is
its mean probability. Balanced, it is 1/E^2; Switch multiplies by E^2, so that its loss is 1.

Source: Lepikhin et al. 2020 (GShard), section 2.2 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pedagogy.moe.routing import Routing, keep_within, places_of, widened


def gshard_gate(
    logits: Tensor, capacity: int | None, generator: torch.Generator | None = None
) -> Routing:
    """The routing of one group: top 2, the second by chance.

    **Shapes** logits (tokens, num_experts). A second choice that chance leaves out is not kept.
    **Raises** ValueError for fewer than 2 experts. Source: Lepikhin et al. 2020, algorithm 1.
    """
    num_experts = logits.size(-1)
    if num_experts < 2:
        raise ValueError(f"{num_experts} experts; GShard's gate chooses 2")
    probabilities = widened(logits).softmax(-1)
    experts = probabilities.argsort(dim=-1, descending=True, stable=True)[:, :2]
    chosen = probabilities.gather(-1, experts)
    weights = chosen / chosen.sum(-1, keepdim=True)  # [1]
    drawn = torch.rand(len(logits), generator=generator, device=logits.device)
    wanted = torch.ones_like(experts, dtype=torch.bool)
    wanted[:, 1] = 2 * weights[:, 1].detach() > drawn  # [3]
    places = places_of(experts, num_experts)  # [2] every choice counts, wanted or not
    kept = keep_within(places, capacity) & wanted
    return Routing(experts, weights, places, kept, probabilities)


def gshard_loss(routing: Routing) -> Tensor:
    """(1/E) sum_e (c_e/S) m_e over the tokens of a group, without its coefficient; 1/E^2 balanced.

    Without tokens it is 0.
    Source: Lepikhin et al. 2020, section 2.2, auxiliary loss.
    """
    tokens, num_experts = routing.probabilities.shape
    mean = routing.probabilities.sum(0) / max(tokens, 1)
    first = torch.bincount(routing.experts[:, 0], minlength=num_experts).to(mean) / max(tokens, 1)
    return (first * mean).sum() / num_experts


def in_groups(route: Callable[[Tensor], Routing], group_tokens: int) -> Callable[[Tensor], Routing]:
    """`route`, applied to each `group_tokens` tokens by themselves: GShard's local groups.

    A gate counts through its tokens one after the other; groups do so in parallel, each with a part
    of the buffer of its own: the places of a later group follow those of an earlier one.
    **Raises** ValueError where the groups do not divide the tokens. Source: section 2.2.
    """

    def grouped(logits: Tensor) -> Routing:
        if group_tokens < 1 or len(logits) % group_tokens:
            raise ValueError(f"{len(logits)} tokens in groups of {group_tokens}: must divide them")
        routings = [route(part) for part in logits.split(group_tokens)]
        most = max((int(r.places.max()) + 1 for r in routings if r.places.numel()), default=0)
        later = [r._replace(places=r.places + i * most) for i, r in enumerate(routings)]
        return Routing(*(torch.cat(fields) for fields in zip(*later, strict=True)))

    return grouped
