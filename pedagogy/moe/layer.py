"""A mixture-of-experts layer: a gate in front of several feed-forward layers, of which few run.

`MoELayer` holds all experts; `ExpertParallelMoE` has them spread over ranks.

Expert parallelism
------------------
Rank i holds the experts i E/N .. (i+1) E/N - 1, and its own tokens. Gate and everything else are
replicated, as in data parallelism. Two all_to_alls move tokens to where their experts are, and the
outputs back; how many go where is known only once the gate has chosen, so the counts go first.

The scale of gradients
----------------------
The loss of each rank is the mean over its own tokens; data parallelism averages the gradients of
replicated parameters over N ranks. An expert lives on one rank and has already received the
gradients of *all* ranks' tokens: they were summed. Divided by N they are the mean as well.
`average_gradients` must therefore leave the experts out, and the layer divides theirs itself.

Sources: Lepikhin et al. 2020 (GShard), sections 2 and 3; Fedus et al. 2021 (Switch), section 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pedagogy.collectives import all_to_all
from pedagogy.costs.multiples import nearest_multiples
from pedagogy.moe.dispatch import combine, dispatch, run_experts
from pedagogy.moe.routing import Routing
from pedagogy.ranks import Group
from pedagogy.workloads import FeedForward

Route = Callable[[Tensor], Routing]  # logits (tokens, num_experts) -> Routing


class MoELayer(nn.Module):
    """Tokens go through the experts that `route` chooses from the router's logits.

    **Shapes** `(..., hidden)` -> the same. `last` is the routing of the last forward.
    The router computes in float32 or better.
    """

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        route: Route,
        make_expert: Callable[[int], nn.Module] = FeedForward,
    ) -> None:
        super().__init__()
        if num_experts < 1:
            raise ValueError(f"{num_experts} experts; at least 1 is needed")
        self.router = nn.Linear(hidden, num_experts, bias=False)
        nn.init.normal_(self.router.weight, std=0.1 / hidden**0.5)  # Switch's small scale
        self.experts = nn.ModuleList(make_expert(hidden) for _ in range(num_experts))
        self.route = route
        self.last: Routing | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The weighted outputs of each token's experts; zeros for a token that was dropped."""
        tokens = x.flatten(0, -2)  # (tokens, hidden)
        self.last = self.route(self.logits(tokens))
        sent = dispatch(tokens, self.last)
        outputs = run_experts(sent.rows, sent.counts, self.experts)
        return combine(outputs, sent, len(tokens)).view_as(x)

    def logits(self, tokens: Tensor) -> Tensor:
        """The router's logits, (tokens, num_experts), in float32 or better."""
        wide = torch.promote_types(tokens.dtype, torch.float32)
        return nn.functional.linear(tokens.to(wide), self.router.weight.to(wide))


class ExpertParallelMoE(nn.Module):
    """A `MoELayer` whose experts are spread over the ranks of `group`; tokens travel to them.

    **Shapes** each rank's own tokens `(..., hidden)` -> the same. `route` sees this rank's tokens.
    **Bytes** each kept choice whose expert is elsewhere travels there and back, forward and
    backward: 4 times hidden. **Raises** ValueError where the ranks do not divide the experts.
    """

    def __init__(self, group: Group, whole: MoELayer) -> None:
        super().__init__()
        num_experts = len(whole.experts)
        if num_experts % group.size:
            raise ValueError(
                f"{num_experts} experts on {group.size} ranks: "
                f"{nearest_multiples(num_experts, group.size)} would be spread evenly"
            )
        self.group, self.route = group, whole.route
        each = num_experts // group.size
        self.experts = whole.experts[group.rank * each : (group.rank + 1) * each]
        self.router, self.logits = whole.router, whole.logits
        self.last: Routing | None = None
        for parameter in self.experts.parameters():
            parameter.register_hook(lambda gradient: gradient / group.size)

    def forward(self, x: Tensor) -> Tensor:
        """The weighted outputs of each token's experts, wherever these are."""
        tokens = x.flatten(0, -2)
        self.last = self.route(self.logits(tokens))
        sent = dispatch(tokens, self.last)
        outputs = self._travel(sent.rows, sent.counts)
        return combine(outputs, sent, len(tokens)).view_as(x)

    def _travel(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows, sorted by expert, to the experts' ranks; their outputs back, in the same order."""
        size, each = self.group.size, len(self.experts)
        by_rank = torch.tensor(counts, device=rows.device).view(size, each)
        arriving = torch.stack(self.group.all_to_all(list(by_rank)))  # (source, expert here)
        parts = all_to_all(self.group, list(rows.split(by_rank.sum(1).tolist())))
        blocks = [part.split(row.tolist()) for part, row in zip(parts, arriving, strict=True)]
        by_expert = [torch.cat([blocks[r][e] for r in range(size)]) for e in range(each)]
        outputs = [expert(block) for expert, block in zip(self.experts, by_expert, strict=True)]
        back = [out.split(arriving[:, e].tolist()) for e, out in enumerate(outputs)]
        homeward = [torch.cat([back[e][r] for e in range(each)]) for r in range(size)]
        return torch.cat(all_to_all(self.group, homeward))
