"""A mixture-of-experts layer: a router in front of several feed-forward layers, of which few run.

What it replaces
----------------
A transformer's feed-forward layer is the same function for every token. Here there are E of them,
the *experts*, and a router sends each token to k. Parameters grow with E, FLOPs per token with k.

What it is not
--------------
An ensemble asks all of its members and averages; each was trained alone. Here only k run, and
router and experts are trained together, by one loss: the gradient reaches the router through the
weights that multiply the outputs, for the choice itself has none.

Experts can be anything that maps (tokens, hidden) to the same shape: a mixture too. Two levels are
`MoELayer(hidden, groups, route, lambda hidden: MoELayer(hidden, each, route))`; each token asks the
first router, then only the routers of the groups that it was sent to.

Sources: Shazeer et al. 2017, section 2; Lepikhin et al. 2020 (GShard), section 2.1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pedagogy.moe.dispatch import combine, dispatch, run_experts
from pedagogy.moe.router import Route, Router
from pedagogy.moe.routing import Routing
from pedagogy.workloads import GPT, FeedForward


class MoELayer(nn.Module):
    """Tokens go through the experts that the router chooses.

    `route` is a pure function of the logits (then a `Router` holds the weights), or a module that
    maps tokens to a Routing, such as `NoisyTopKGate`. `last` is the routing of the last forward.
    **Shapes** `(..., hidden)` -> the same. **Raises** ValueError without experts.
    """

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        route: Route | nn.Module,
        make_expert: Callable[[int], nn.Module] = FeedForward,
    ) -> None:
        super().__init__()
        is_router = isinstance(route, nn.Module)
        self.router = route if is_router else Router(hidden, num_experts, route)
        self.experts = nn.ModuleList(make_expert(hidden) for _ in range(num_experts))
        self.last: Routing | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The weighted outputs of each token's experts; zeros for a token that was dropped."""
        tokens = x.reshape(-1, x.size(-1))  # (tokens, hidden)
        self.last = self.router(tokens)
        sent = dispatch(tokens, self.last)
        outputs = run_experts(sent.rows, sent.counts, self.experts)
        return combine(outputs, sent, len(tokens)).view_as(x)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without the last routing, which belongs to a graph."""
        return self.__dict__ | {"last": None}


def mixture(
    model: GPT, num_experts: int, make_route: Callable[[], Route | nn.Module], every: int = 2
) -> GPT:
    """`model`, where a mixture has taken the place of each `every`-th feed-forward layer.

    In place. `make_route` is called once for each mixture. Experts have the shape of what they
    replace, and weights of their own, drawn with the same spread.
    **Raises** ValueError where there are fewer than `every` blocks.
    Source: Lepikhin et al. 2020, section 2.1: every second layer.
    """
    if not 1 <= every <= len(model.blocks):
        raise ValueError(f"every {every}th of {len(model.blocks)} blocks: 1 to {len(model.blocks)}")
    for block in model.blocks[every - 1 :: every]:
        make_expert = partial(_like, block.feed_forward)
        block.feed_forward = MoELayer(
            model.token.embedding_dim, num_experts, make_route(), make_expert
        ).to(model.token.weight.device)
    return model


def _like(dense: nn.Module, hidden: int) -> nn.Module:
    """A module of the same shape whose matrices are drawn again, with the spread that they had."""
    fresh = copy.deepcopy(dense)
    for parameter in fresh.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.detach().std().item())
    return fresh


def moe_layers(model: nn.Module) -> Iterator[nn.Module]:
    """The mixtures of a model, in order: what has experts, and a routing of its last forward."""
    return (module for module in model.modules() if hasattr(module, "experts"))


def balance_loss(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The mean over the mixtures of `loss(probabilities, experts)` of their last forward."""
    each = [loss(layer.last.probabilities, layer.last.experts) for layer in moe_layers(model)]
    return torch.stack(each).mean()
