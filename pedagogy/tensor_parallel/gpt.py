"""The whole GPT, cut over ranks: embedding, layers, output, loss; and put together again.

How it works
------------
    embed     rows of the vocabulary (g behind it); positions on every rank
    blocks    `ParallelBlock`; or, along the sequence, `SequenceParallelBlock`, `RegatheringBlock`
    output    the last norm on every rank, the logits of this rank's tokens, the loss where they lie

With a sequence-parallel block the g behind the embedding becomes a reduce_scatter, and the f in
front of the logits an all_gather: the activations between are cut along the sequence all the way.

The embedding is tied to the output here too: both use the same rows, on the same rank.

Source: Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pedagogy.collectives import copy_to, gather, reduce_scatter
from pedagogy.parameters import Part, clip_by_global_norm
from pedagogy.ranks import Group
from pedagogy.tensor_parallel.blocks import ParallelBlock, replicated_norm
from pedagogy.tensor_parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    gather_linear,
    share,
)
from pedagogy.tensor_parallel.random_streams import RandomStreams, StreamDropout
from pedagogy.tensor_parallel.sequence_parallel import (
    SEQUENCE,
    SequenceParallelBlock,
    sum_replicated_gradients,
)
from pedagogy.tensor_parallel.vocabulary import (
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from pedagogy.workloads import GPT


class ParallelGPT(nn.Module):
    """A GPT of which every rank holds 1/N of the wide weights.

    `block` is one of `ParallelBlock`, `SequenceParallelBlock`, `RegatheringBlock`.
    **Shapes** ids `(batch, sequence)` -> this rank's logits `(batch, sequence, V / N)`.
    **Raises** ValueError where the ranks do not divide the heads, before anything is sent; in the
    forward, with sequence parallelism, where they do not divide the sequence.
    """

    def __init__(
        self,
        group: Group,
        whole: GPT,
        block: type[ParallelBlock] = ParallelBlock,
        streams: RandomStreams | None = None,
    ) -> None:
        super().__init__()
        for layer in whole.blocks:  # before anything is sent
            share(layer.attention.heads, group, "heads")
        streams = streams or RandomStreams(group)
        self.group, self.sequence = group, whole.sequence
        self.cuts_sequence = issubclass(block, SequenceParallelBlock)
        self.token = VocabParallelEmbedding.from_embedding(group, whole.token)
        self.position = nn.Parameter(
            group.broadcast(whole.position.weight.detach()), whole.position.weight.requires_grad
        )
        mask = streams.own if self.cuts_sequence else streams.shared
        self.dropout = StreamDropout(whole.dropout.p, mask)
        self.blocks = nn.ModuleList(block(group, layer, streams) for layer in whole.blocks)
        self.norm = replicated_norm(group, whole.norm)
        self.tied = whole.head.weight is whole.token.weight
        if not self.tied:
            self.head = VocabParallelEmbedding.from_embedding(group, _as_embedding(whole.head))
        self.train(whole.training)

    def forward(self, ids: Tensor) -> Tensor:
        """This rank's logits for the token that follows each position."""
        x = self._embed(ids)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        whole = gather(self.group, x, SEQUENCE) if self.cuts_sequence else copy_to(self.group, x)
        return (self.token if self.tied else self.head).logits(whole)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all positions, equal on all ranks."""
        return self.loss_of(self(inputs), targets)

    def loss_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The same, for this rank's logits."""
        return vocab_parallel_cross_entropy(
            self.group, logits, targets, vocabulary=self.token.vocabulary
        )

    def _embed(self, ids: Tensor) -> Tensor:
        if ids.size(1) > self.sequence:
            raise ValueError(
                f"inputs of {ids.size(1)} tokens: this GPT has {self.sequence} positions"
            )
        positions = self.position[: ids.size(1)]
        if not self.cuts_sequence:
            return self.dropout(self.token(ids) + positions)
        share(ids.size(1), self.group, "sequence")
        part = reduce_scatter(self.group, self.token.partial(ids), SEQUENCE)
        mine = positions.chunk(self.group.size)[self.group.rank]
        return self.dropout(part + mine)

    def finish_backward(self) -> None:
        """Every gradient is complete. To be called once a step, after the last backward.

        A second call would sum the first one's gradients again.
        **Bytes** with sequence parallelism, an all_reduce of norms, biases and positions.
        """
        if self.cuts_sequence:
            partial = [p for block in self.blocks for p in block.replicated_parameters()]
            partial += [*self.norm.parameters(), self.position]
            sum_replicated_gradients(self.group, partial)

    def parts(self) -> list[Part]:
        """The gradients, sorted for `pedagogy.parameters.global_norm`: cut ones, whole ones."""
        return gradient_parts(self.group, self)

    def to_gpt(self) -> GPT:
        """An ordinary GPT with these weights, on every rank. **Bytes** all weights, gathered."""
        first = self.blocks[0].attention if len(self.blocks) else None
        hidden = self.token.weight.size(1)
        whole = GPT(
            self.token.vocabulary,
            len(self.blocks),
            hidden,
            first.heads * self.group.size if first else 1,
            self.sequence,
            self.tied,
            self.dropout.p,
        ).to(self.token.weight)
        with torch.no_grad():
            _fill(whole.token.weight, self._rows(self.token))
            _fill(whole.position.weight, self.position)
            if not self.tied:
                _fill(whole.head.weight, self._rows(self.head))
            whole.norm.load_state_dict(self.norm.state_dict())
        for block, target in zip(self.blocks, whole.blocks, strict=True):
            self._put_together(block, target)
        trained = self.token.weight.requires_grad, self.position.requires_grad
        whole.token.weight.requires_grad_(trained[0])
        whole.position.weight.requires_grad_(trained[1])
        return whole.train(self.training)

    def _rows(self, embedding: VocabParallelEmbedding) -> Tensor:
        return torch.cat(self.group.all_gather(embedding.weight.detach()))[: embedding.vocabulary]

    def _put_together(self, block: ParallelBlock, target: nn.Module) -> None:
        for half in ("attention", "feed_forward"):
            norm = f"{half}_norm"
            getattr(target, norm).load_state_dict(getattr(block, norm).state_dict())
            for name, layer in getattr(block, half).named_children():
                if hasattr(layer, "local") or hasattr(layer, "partial"):
                    linear = gather_linear(self.group, layer)
                    getattr(getattr(target, half), name).load_state_dict(linear.state_dict())


def gradient_parts(group: Group, module: nn.Module) -> list[Part]:
    """The gradients of a cut module: those cut over `group`, and those that are whole."""
    cut, whole, seen = [], [], set()
    for layer in sorted(module.modules(), key=lambda layer: not isinstance(layer, CUT)):
        for name, parameter in layer.named_parameters(recurse=False):
            if parameter.grad is not None and id(parameter) not in seen:
                seen.add(id(parameter))  # tied weights count once, as what a cut layer says
                (cut if _is_cut(layer, name) else whole).append(parameter.grad)
    return [Part((group,), cut), Part((), whole)]


def clip_grad_norm(group: Group, module: nn.Module, max_norm: float) -> Tensor:
    """The gradients' global norm is at most `max_norm`; every parameter counts once.

    Returns the norm before, equal on all ranks. **Bytes** an all_reduce of one number.
    **Raises** ValueError unless `max_norm` is positive.
    """
    return clip_by_global_norm(gradient_parts(group, module), max_norm)


CUT = (ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding)


def _is_cut(layer: nn.Module, name: str) -> bool:
    if isinstance(layer, RowParallelLinear):
        return name == "weight"
    return isinstance(layer, ColumnParallelLinear | VocabParallelEmbedding)


def _as_embedding(head: nn.Linear) -> nn.Embedding:
    return nn.Embedding.from_pretrained(head.weight, freeze=not head.weight.requires_grad)


def _fill(target: Tensor, values: Iterable) -> None:
    target.copy_(values)
