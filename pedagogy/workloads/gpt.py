"""A small GPT, written so that its memory can be derived and its parts can be cut.

Why it exists
-------------
The techniques of this workbook were invented for transformers, so the chapters train one: it
reads bytes and predicts the next byte. It is GPT-2's architecture (pre-norm, learned positions,
GELU, biases), small enough for a laptop.

How it is written
-----------------
* *Attention is written out* as two matrix products and a softmax. A fused kernel would be faster
  and would hide the tensor of (batch, heads, sequence, sequence) that selective recomputation,
  sequence parallelism and the memory formulas are about.
* *Query, key and value are three linear layers.* One fused layer is faster on a GPU, but its rows
  mix what tensor parallelism must cut by heads.
* *The residual sum is in `Block`*, not inside its parts, so a part can be replaced by a sharded
  one that ends in an all_reduce.
* *No part knows its neighbours*: `embed`, each of `blocks`, and `unembed` are the places where a
  pipeline cuts.

What it costs
-------------
Parameters: L(12 h^2 + 13 h) + V h + s h + 2 h, and V h more when the output is not tied to the
embedding. What backward needs is derived term by term in `pedagogy.costs.memory`.

Sources: Radford et al. 2019 (GPT-2), section 2.3, for the architecture and for scaling the
initial weights that end in the residual stream by 1/sqrt(number of residual layers); Press and
Wolf 2017 for tied embeddings.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention with several heads, written out.

    **Shapes** `(batch, sequence, hidden)` -> the same.
    **Memory** the probabilities, `(batch, heads, sequence, sequence)`, are kept for backward.
    """

    def __init__(self, hidden: int, heads: int, sequence: int, dropout: float = 0.0) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(
                f"hidden {hidden} is not divisible by heads {heads}: "
                f"the remainder is {hidden % heads}"
            )
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.project = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        future = torch.ones(sequence, sequence, dtype=torch.bool).triu(diagonal=1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Each position reads from itself and from earlier ones."""
        sequence = x.size(1)
        q, k, v = (self._split(f(x)) for f in (self.query, self.key, self.value))
        q = q / math.sqrt(q.size(-1))
        scores = q @ k.transpose(-2, -1)  # (batch, heads, sequence, sequence)
        scores = scores.masked_fill(self.future[:sequence, :sequence], -math.inf)
        probabilities = self.dropout(scores.softmax(dim=-1))
        mixed = probabilities @ v  # (batch, heads, sequence, head_dim)
        return self.project(mixed.transpose(1, 2).flatten(2))  # (batch, sequence, hidden)

    def _split(self, x: Tensor) -> Tensor:
        """Heads become a dimension of their own: (batch, heads, sequence, head_dim)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them, four times as wide inside.

    **Shapes** `(batch, sequence, hidden)` -> the same.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.project = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """The same function at each position."""
        return self.project(functional.gelu(self.expand(x)))


class Block(nn.Module):
    """One layer: attention and feed-forward, each normalised before and added after.

    **Shapes** `(batch, sequence, hidden)` -> the same.
    """

    def __init__(self, hidden: int, heads: int, sequence: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, sequence, dropout)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Two residual sums."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class GPT(nn.Module):
    """The whole model: embed, blocks, unembed.

    Initial weights come from torch's global generator: seed it with `torch.manual_seed` before.

    **Shapes** ids `(batch, sequence)`, int64 -> logits `(batch, sequence, vocabulary)`.
    **Raises** ValueError for heads that do not divide hidden, or inputs longer than `sequence`.
    """

    def __init__(
        self,
        vocabulary: int = 256,
        layers: int = 2,
        hidden: int = 64,
        heads: int = 4,
        sequence: int = 64,
        tied: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.sequence = sequence
        self.token = nn.Embedding(vocabulary, hidden)
        self.position = nn.Embedding(sequence, hidden)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(hidden, heads, sequence, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.apply(_initialise)
        for block in self.blocks:  # the sum of 2L parts should not grow with L
            for layer in (block.attention.project, block.feed_forward.project):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * layers))
        if tied:
            self.head.weight = self.token.weight

    def embed(self, ids: Tensor) -> Tensor:
        """Token plus position: (batch, sequence, hidden)."""
        if ids.size(1) > self.sequence:
            raise ValueError(
                f"inputs of {ids.size(1)} tokens: this GPT has {self.sequence} positions"
            )
        return self.dropout(self.token(ids) + self.position.weight[: ids.size(1)])

    def unembed(self, x: Tensor) -> Tensor:
        """Logits of each position: (batch, sequence, vocabulary)."""
        return self.head(self.norm(x))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits for the token that follows each position."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.unembed(x)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all positions, in nats."""
        return functional.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module) -> None:
    """Weights from a normal distribution of standard deviation 0.02, biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
