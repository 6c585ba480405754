"""Attention, feed-forward and a whole layer of the GPT, cut over ranks.

How it works
------------
    feed-forward   expand by columns, GELU, project by rows
    attention      query, key and value by columns, so that each rank has whole heads; each rank
                   computes its heads; project by rows
    a layer        both of them; norms, residual sums and the dropout after are whole on all ranks

One f and one g in each half: two all_reduces forward, two backward.

What it costs
-------------
Each all_reduce moves b s h elements, every layer, and nothing overlaps with it: tensor parallelism
stays inside a node, where links are fast.

Source: Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional

from pedagogy.collectives import copy_to
from pedagogy.ranks import Group
from pedagogy.tensor_parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_of,
    share,
)
from pedagogy.tensor_parallel.random_streams import RandomStreams, StreamDropout
from pedagogy.workloads import Attention, Block, FeedForward


class ParallelMLP(nn.Module):
    """The feed-forward half: expand by columns, project by rows.

    **Shapes** `(batch, sequence, hidden)` -> the same, equal on all ranks.
    **Bytes** one all_reduce of the output forward, one of the input's gradient backward.
    **Raises** ValueError where the ranks do not divide 4 * hidden.
    """

    def __init__(self, group: Group, hidden: int) -> None:
        super().__init__()
        share(4 * hidden, group, "4 * hidden")
        self._cut(group, FeedForward(hidden))

    @classmethod
    def from_feed_forward(cls, group: Group, whole: FeedForward) -> ParallelMLP:
        """The slice of an existing one (rank 0's values hold)."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._cut(group, whole)
        return layer

    def _cut(self, group: Group, whole: FeedForward) -> None:
        self.expand = ColumnParallelLinear.from_linear(group, whole.expand)
        self.project = RowParallelLinear.from_linear(group, whole.project)

    def forward(self, x: Tensor) -> Tensor:
        """The same function at each position."""
        return self.project(functional.gelu(self.expand(x)))


class ParallelAttention(nn.Module):
    """Causal self-attention in which each rank computes some of the heads.

    **Shapes** `(batch, sequence, hidden)` -> the same, equal on all ranks.
    **Bytes** one all_reduce forward, one backward (query, key and value share their f).
    **Memory** the probabilities of this rank's heads, `(batch, heads / N, sequence, sequence)`.
    **Raises** ValueError where the ranks do not divide the heads.
    """

    def __init__(
        self, group: Group, hidden: int, heads: int, sequence: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        share(heads, group, "heads")
        whole = Attention(hidden, heads, sequence, dropout)
        self._cut(group, whole, RandomStreams(group))

    @classmethod
    def from_attention(
        cls, group: Group, whole: Attention, streams: RandomStreams | None = None
    ) -> ParallelAttention:
        """The slice of an existing one (rank 0's values hold)."""
        share(whole.heads, group, "heads")  # before anything is sent
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._cut(group, whole, streams or RandomStreams(group))
        return layer

    def _cut(self, group: Group, whole: Attention, streams: RandomStreams) -> None:
        self.group = group
        self.heads = share(whole.heads, group, "heads")
        self.query = ColumnParallelLinear.from_linear(group, whole.query)
        self.key = ColumnParallelLinear.from_linear(group, whole.key)
        self.value = ColumnParallelLinear.from_linear(group, whole.value)
        self.project = RowParallelLinear.from_linear(group, whole.project)
        self.dropout = StreamDropout(whole.dropout.p, streams.own)  # each rank has other heads
        self.register_buffer("future", whole.future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """f once, this rank's heads, g."""
        return self.project(self.heads_of(copy_to(self.group, x)))

    def heads_of(self, x: Tensor) -> Tensor:
        """What this rank's heads read: (batch, sequence, hidden / N), from the whole sequence."""
        sequence = x.size(1)
        if sequence > len(self.future):
            raise ValueError(f"{sequence} positions: this attention has {len(self.future)}")
        q, k, v = (self._split(f.local(x)) for f in (self.query, self.key, self.value))
        scores = q / math.sqrt(q.size(-1)) @ k.transpose(-2, -1)  # (batch, heads / N, s, s)
        scores = scores.masked_fill(self.future[:sequence, :sequence], -math.inf)
        probabilities = self.dropout(scores.softmax(dim=-1))
        return (probabilities @ v).transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads / N, s, head_dim)


class ParallelBlock(nn.Module):
    """One layer: the halves are cut, norms and residual sums are the same on all ranks.

    **Shapes** `(batch, sequence, hidden)` -> the same, equal on all ranks.
    **Bytes** two all_reduces forward, two backward.
    **Raises** ValueError where the ranks do not divide the heads.
    """

    def __init__(self, group: Group, whole: Block, streams: RandomStreams | None = None) -> None:
        super().__init__()
        share(whole.attention.heads, group, "heads")
        streams = streams or RandomStreams(group)
        self.attention_norm = replicated_norm(group, whole.attention_norm)
        self.attention = ParallelAttention.from_attention(group, whole.attention, streams)
        self.feed_forward_norm = replicated_norm(group, whole.feed_forward_norm)
        self.feed_forward = ParallelMLP.from_feed_forward(group, whole.feed_forward)
        self.dropout = StreamDropout(whole.dropout.p, streams.shared)  # the same on all ranks
        self.train(whole.training)

    def forward(self, x: Tensor) -> Tensor:
        """Two residual sums."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


def replicated_norm(group: Group, norm: nn.LayerNorm) -> nn.LayerNorm:
    """A LayerNorm with rank 0's weight and bias on every rank."""
    if not isinstance(norm, nn.LayerNorm):
        raise ValueError(f"a {type(norm).__name__}: only LayerNorm is replicated here")
    copy = nn.LayerNorm(norm.normalized_shape, norm.eps, norm.elementwise_affine)
    for name in ("weight", "bias"):
        value = getattr(norm, name)
        setattr(copy, name, None if value is None else copy_of(group, value))
    return copy
