"""Experts on several ranks: tokens travel to them, or every rank runs its own and they are summed.

By all_to_all
-------------
Rank i holds the experts i E/N .. (i+1) E/N - 1, and its own tokens. Router and everything else are
replicated, as in data parallelism. Two all_to_alls move tokens to where their experts are, and the
outputs back; how many go where is known only once the gate has chosen, so the counts go first.

The scale of gradients
----------------------
The loss of each rank is the mean over its own tokens; data parallelism averages the gradients of
replicated parameters over N ranks. An expert lives on one rank and has already received the
gradients of *all* ranks' tokens: they were summed. Divided by N they are the mean as well.
`average_gradients` must therefore leave the experts out, and the layer divides theirs itself. Where
each expert has replicas (a grid of dp x ep), average its gradients over the dp axis alone.

By all_reduce
-------------
Ranks that hold the *same* tokens, as tensor-parallel ranks do, need no dispatch: each runs its own
experts on them, and the outputs are summed. One all_reduce instead of two all_to_alls, of all
tokens instead of the chosen ones. Each rank then sees only its own experts' part of the gradient of
the input and of the gate's weights; both must be summed, or the ranks' routers drift apart.

Sources: Lepikhin et al. 2020 (GShard), sections 2 and 3; Fedus et al. 2021 (Switch), section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from pedagogy.collectives import all_to_all, copy_to, reduce_from
from pedagogy.costs.multiples import nearest_multiples
from pedagogy.moe.dispatch import combine, dispatch, run_experts
from pedagogy.moe.layer import MoELayer
from pedagogy.moe.routing import Routing
from pedagogy.parameters import broadcast
from pedagogy.ranks import Group

Exchange = Callable[[list[Tensor]], list[Tensor]]  # one tensor for each rank, with gradients


class _Spread(nn.Module):
    """The router of `whole` on all ranks, and this rank's share of its experts."""

    def __init__(self, group: Group, whole: MoELayer) -> None:
        super().__init__()
        num_experts = len(whole.experts)
        if num_experts % group.size:
            raise ValueError(
                f"{num_experts} experts over {group.size} ranks: must be a multiple, "
                f"such as {nearest_multiples(num_experts, group.size)}"
            )
        broadcast(group, whole.parameters())  # all begin with rank 0's
        self.group, self.router = group, whole.router
        each = num_experts // group.size
        self.first = group.rank * each
        self.experts = whole.experts[self.first : self.first + each]
        self.last: Routing | None = None

    def _route(self, tokens: Tensor) -> Routing:
        num_experts = len(self.experts) * self.group.size
        self.last = self.router(tokens)
        if self.last.num_experts != num_experts:
            raise ValueError(
                f"the router chooses among {self.last.num_experts} experts; there are {num_experts}"
            )
        return self.last


class ExpertParallelMoE(_Spread):
    """A `MoELayer` whose experts are spread over the ranks of `group`; tokens travel to them.

    **Shapes** each rank's own tokens `(..., hidden)` -> the same. The router sees this rank's
    tokens; their number may differ from rank to rank, and be zero. `exchange` replaces the flat
    all_to_all (`two_level_exchange`).
    **Bytes** each kept choice whose expert is elsewhere travels there and back, forward and
    backward: 4 times hidden. **Raises** ValueError where the ranks do not divide the experts.
    """

    def __init__(self, group: Group, whole: MoELayer, exchange: Exchange | None = None) -> None:
        super().__init__(group, whole)
        self.exchange = exchange or partial(all_to_all, group)
        for parameter in self.experts.parameters():
            trains = parameter.requires_grad  # a frozen one may be unfrozen later
            parameter.requires_grad_().register_hook(lambda gradient: gradient / group.size)
            parameter.requires_grad_(trains)

    def forward(self, x: Tensor) -> Tensor:
        """The weighted outputs of each token's experts, wherever these are."""
        tokens = x.reshape(-1, x.size(-1))
        sent = dispatch(tokens, self._route(tokens))
        rows = sent.rows
        if torch.is_grad_enabled() and not rows.requires_grad:
            rows.requires_grad_()  # or a rank of frozen experts would not take part in backward
        outputs = self._travel(rows, sent.counts)
        return combine(outputs, sent, len(tokens)).view_as(x)

    def _travel(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows, sorted by expert, to the experts' ranks; their outputs back, in the same order."""
        size, each = self.group.size, len(self.experts)
        by_rank = torch.tensor(counts, device=rows.device).view(size, each)
        arriving = torch.stack(self.exchange(list(by_rank)))  # (source, expert here)
        parts = self.exchange(list(rows.split(by_rank.sum(1).tolist())))
        blocks = [part.split(row.tolist()) for part, row in zip(parts, arriving, strict=True)]
        by_expert = [torch.cat([blocks[r][e] for r in range(size)]) for e in range(each)]
        outputs = [expert(block) for expert, block in zip(self.experts, by_expert, strict=True)]
        back = [out.split(arriving[:, e].tolist()) for e, out in enumerate(outputs)]
        homeward = [torch.cat([back[e][r] for e in range(each)]) for r in range(size)]
        return torch.cat(self.exchange(homeward))


class SummedExperts(_Spread):
    """A `MoELayer` on ranks that hold the same tokens: each runs its experts, outputs are summed.

    **Shapes** the same tokens `(..., hidden)` on all ranks -> the same on all ranks. A gate that
    draws must draw alike on all of them: from generators seeded alike.
    **Bytes** an all_reduce of the output in forward; in backward one of the input's gradient and a
    small one of the weights'.
    Gradients are complete on every rank: average none of them over this group.
    **Raises** ValueError where the ranks do not divide the experts.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The weighted outputs of each token's experts, on every rank."""
        tokens = x.reshape(-1, x.size(-1))
        all_ranks = self._route(tokens)
        here = all_ranks.experts - self.first
        mine = all_ranks.kept & (here >= 0) & (here < len(self.experts))
        routing = all_ranks._replace(
            weights=copy_to(self.group, all_ranks.weights), kept=mine
        )  # each rank knows the gradient of its own experts' weights only
        sent = dispatch(copy_to(self.group, tokens), routing)
        counts = sent.counts[self.first : self.first + len(self.experts)]
        outputs = run_experts(sent.rows, counts, self.experts)
        return reduce_from(self.group, combine(outputs, sent, len(tokens))).view_as(x)
