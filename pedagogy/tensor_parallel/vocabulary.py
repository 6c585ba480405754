"""Embedding and loss, cut over the vocabulary: the widest tensors of a small GPT.

How it works
------------
Rank i holds the rows of V/N tokens. To embed, it looks up the tokens that it has, writes zeros for
the others, and the ranks' results are summed (g). For the output, rank i computes the logits of its
tokens, and the loss is computed where they lie. Cross-entropy needs three numbers per position from
the other ranks, instead of V logits:

    loss = log(sum over tokens of exp(z - max)) - (z[label] - max)

the maximum, the sum, and the label's logit, which one rank has.

Padding
-------
A vocabulary that the ranks do not divide (50257) is filled up with rows that stand for no token.
Their logits are -inf: the loss, and every gradient, is that of the unpadded model.

What it costs: an all_reduce of (batch, sequence, hidden) to embed; 3 numbers per position and
all_reduce in the loss.

Source: Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pedagogy.collectives import reduce_from
from pedagogy.ranks import Group
from pedagogy.tensor_parallel.linear import shard_of


def padded_vocabulary(vocabulary: int, ranks: int, multiple: int = 1) -> int:
    """The smallest multiple of multiple * ranks that holds the vocabulary.

    >>> padded_vocabulary(50257, 2, 128)
    50432
    """
    if min(vocabulary, ranks, multiple) < 1:
        raise ValueError(f"{vocabulary} tokens, {ranks} ranks, multiple {multiple}: all at least 1")
    unit = multiple * ranks
    return -(-vocabulary // unit) * unit


class VocabParallelEmbedding(nn.Module):
    """Rank i holds the rows of the i-th part of the (padded) vocabulary.

    `vocabulary` counts the real tokens, `first` and `last` this rank's rows (last is excluded, and
    may lie above the vocabulary: padding).
    **Shapes** ids `(batch, sequence)` -> `(batch, sequence, hidden)`, equal on all ranks.
    **Bytes** forward: an all_reduce of the output. Backward: none.
    **Raises** ValueError, in the forward, for an id outside the vocabulary.
    """

    def __init__(self, group: Group, vocabulary: int, hidden: int, multiple: int = 1) -> None:
        super().__init__()
        self._cut(group, nn.Embedding(vocabulary, hidden), multiple)

    @classmethod
    def from_embedding(
        cls, group: Group, embedding: nn.Embedding, multiple: int = 1
    ) -> VocabParallelEmbedding:
        """The part of an existing embedding (rank 0's values hold)."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._cut(group, embedding, multiple)
        return layer

    def _cut(self, group: Group, embedding: nn.Embedding, multiple: int) -> None:
        special = ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse")
        values = {name: getattr(embedding, name) for name in special}
        wrong = [name for name, value in values.items() if value is not None and value is not False]
        if wrong:
            raise ValueError(
                f"an embedding with {', '.join(wrong)} cannot be cut: it would be lost"
            )
        self.group, self.vocabulary = group, embedding.num_embeddings
        padded = padded_vocabulary(self.vocabulary, group.size, multiple)
        rows = padded // group.size
        self.first, self.last = group.rank * rows, (group.rank + 1) * rows
        full = functional.pad(embedding.weight.detach(), (0, 0, 0, padded - self.vocabulary))
        self.weight = shard_of(group, full.requires_grad_(embedding.weight.requires_grad), 0)

    @property
    def num_real(self) -> int:
        """How many of this rank's rows stand for a token."""
        return max(0, min(self.last, self.vocabulary) - self.first)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up what is here, zeros for the rest, g."""
        return reduce_from(self.group, self.partial(ids))

    def partial(self, ids: Tensor) -> Tensor:
        """This rank's part of the sum, before g."""
        if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < self.vocabulary):
            raise ValueError(
                f"ids from {int(ids.min())} to {int(ids.max())}: the vocabulary has "
                f"{self.vocabulary} tokens"
            )
        elsewhere = (ids < self.first) | (ids >= self.last)
        rows = (ids - self.first).masked_fill(elsewhere, 0)
        found = functional.embedding(rows, self.weight)  # (batch, sequence, hidden)
        return found.masked_fill(elsewhere.unsqueeze(-1), 0.0)

    def logits(self, x: Tensor) -> Tensor:
        """This rank's logits, for an x that has been through f: (..., rows), -inf for padding."""
        z = functional.linear(x, self.weight)
        if self.num_real < z.size(-1):
            padding = torch.arange(z.size(-1), device=z.device) >= self.num_real
            z = z.masked_fill(padding, -torch.inf)
        return z


def vocab_parallel_cross_entropy(
    group: Group,
    logits_shard: Tensor,
    labels: Tensor,
    ignore_index: int = -100,
    vocabulary: int | None = None,
) -> Tensor:
    """The mean cross-entropy over the labels that are not `ignore_index`, equal on all ranks.

    `vocabulary` counts the real tokens, where the last rows are padding.
    **Shapes** logits `(..., V / N)`, labels `(...)`, int64 -> `()`. NaN, as torch's, where every
    label is ignored. **Bytes** 3 all_reduces of one number per position. Backward: none.
    **Raises** ValueError for shapes that do not fit, or a label outside the vocabulary.
    Source: Shoeybi et al. 2019 (Megatron-LM), section 3.
    """
    if logits_shard.dtype in (torch.float16, torch.bfloat16):
        logits_shard = logits_shard.float()  # as torch's own under autocast
    if logits_shard.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits of shape {tuple(logits_shard.shape)} need labels of shape "
            f"{tuple(logits_shard.shape[:-1])}, got {tuple(labels.shape)}"
        )
    rows = logits_shard.size(-1) * group.size
    size = rows if vocabulary is None else vocabulary
    if not 1 <= size <= rows:
        raise ValueError(
            f"a vocabulary of {size} in {rows} rows, {group.size} equal shards of them"
        )
    valid = labels != ignore_index
    wrong = valid & ((labels < 0) | (labels >= size))
    if bool(wrong.any()):
        raise ValueError(
            f"label {int(labels[wrong][0])}: the vocabulary has {size} tokens, 0 to {size - 1}"
        )
    group.agree("vocab_parallel_cross_entropy", [logits_shard])  # equal shards: padded_vocabulary
    return _CrossEntropy.apply(logits_shard, labels, valid, group)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor, valid: Tensor, group: Group) -> Tensor:
        rows = logits.size(-1)
        highest = group.all_reduce(logits.detach().amax(-1), "max")
        shifted = logits - highest.unsqueeze(-1)
        exponentials = shifted.exp()
        sums = group.all_reduce(exponentials.sum(-1))
        place = labels - group.rank * rows
        here = valid & (place >= 0) & (place < rows)
        place = place.masked_fill(~here, 0)
        of_label = shifted.gather(-1, place.unsqueeze(-1)).squeeze(-1).masked_fill(~here, 0.0)
        of_label = group.all_reduce(of_label)
        losses = (sums.log() - of_label).masked_fill(~valid, 0.0)
        count = valid.sum()
        ctx.save_for_backward(exponentials / sums.unsqueeze(-1), place, here, valid, count)
        return losses.sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        probabilities, place, here, valid, count = ctx.saved_tensors
        ones = torch.zeros_like(probabilities)
        ones.scatter_(-1, place.unsqueeze(-1), here.unsqueeze(-1).to(ones.dtype))
        scale = torch.where(valid, gradient / count, 0.0).unsqueeze(-1)  # not NaN if all ignored
        return (probabilities - ones) * scale, None, None, None
