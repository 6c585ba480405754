"""Megatron's sequence parallelism: what tensor parallelism leaves whole is cut along the sequence.

The problem
-----------
Tensor parallelism cuts the wide activations inside attention and feed-forward. Norms, dropouts and
residual sums stay whole on every rank: 10 s b h bytes of 34 in a layer (16-bit, with dropout) that
more ranks do not make smaller.

How it works
------------
Norm, dropout and residual sum treat each position by itself, so each rank can keep s/N positions.
f and g change into

    g      all_gather along the sequence, before the parallel region     backward: reduce_scatter
    g bar  reduce_scatter along the sequence, behind it                  backward: all_gather

A ring all_reduce *is* a reduce_scatter and an all_gather: the bytes on the wire stay the same, and
everything in a layer is now cut: 34 s b h / N.

Two memories
------------
The linear layers behind g need their gathered input again, for the gradient of their weights.

    keep the gathered input    4 all_gathers + 4 reduce_scatters a layer; 2 s b h elements whole
    keep the shard alone       gather it once more in backward: 6 + 4, and 34 s b h / N

`regathered` does the second: it hangs on autograd's saved tensors, keeps the shard, and gathers
when backward asks.

The trap: norms and row-parallel biases are replicated but see only their slice of the sequence.
Their gradients are *parts of a sum*: `sum_replicated_gradients` adds them up (not: averages).

Source: Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.collectives import gather, reduce_scatter
from pedagogy.parameters import unique_parameters
from pedagogy.ranks import Group
from pedagogy.tensor_parallel.blocks import ParallelBlock
from pedagogy.tensor_parallel.random_streams import RandomStreams, StreamDropout
from pedagogy.workloads import Block

SEQUENCE = 1  # the dimension that is cut: (batch, sequence / N, hidden)


class SequenceParallelBlock(ParallelBlock):
    """A layer in which every activation is cut: by heads, by columns, or along the sequence.

    **Shapes** `(batch, sequence / N, hidden)` -> the same, other positions on each rank.
    **Bytes** 2 all_gathers and 2 reduce_scatters of (batch, sequence, hidden) forward, as many
    backward. **Memory** the two gathered inputs stay whole.
    Call `sum_replicated_gradients` once a step, after the last backward.
    """

    def __init__(self, group: Group, whole: Block, streams: RandomStreams | None = None) -> None:
        streams = streams or RandomStreams(group)
        super().__init__(group, whole, streams)
        self.group = group
        self.dropout = StreamDropout(whole.dropout.p, streams.own)  # each rank has other positions
        self.train(whole.training)

    def forward(self, x: Tensor) -> Tensor:
        """Two residual sums, on this rank's positions."""
        x = x + self.dropout(self._attend(self.attention_norm(x)))
        return x + self.dropout(self._feed_forward(self.feed_forward_norm(x)))

    def _attend(self, x: Tensor) -> Tensor:
        whole = gather(self.group, x, SEQUENCE)  # takes f's place
        with self._saving(whole, x):
            part = self.attention.project.partial(self.attention.heads_of(whole))
        return self._add_up(part, self.attention.project.bias)

    def _feed_forward(self, x: Tensor) -> Tensor:
        expand, project = self.feed_forward.expand, self.feed_forward.project
        whole = gather(self.group, x, SEQUENCE)
        with self._saving(whole, x):
            part = project.partial(functional.gelu(expand.local(whole)))
        return self._add_up(part, project.bias)

    def _add_up(self, part: Tensor, bias: Tensor | None) -> Tensor:
        y = reduce_scatter(self.group, part, SEQUENCE)  # takes g's place
        return y if bias is None else y + bias

    def _saving(self, whole: Tensor, shard: Tensor) -> AbstractContextManager:
        return nullcontext()

    def replicated_parameters(self) -> list[nn.Parameter]:
        """The parameters that every rank holds whole and uses on its positions alone."""
        norms = [*self.attention_norm.parameters(), *self.feed_forward_norm.parameters()]
        biases = [self.attention.project.bias, self.feed_forward.project.bias]
        return [*norms, *(bias for bias in biases if bias is not None)]


class RegatheringBlock(SequenceParallelBlock):
    """A `SequenceParallelBlock` that keeps only its shard of the gathered inputs.

    **Bytes** 2 more all_gathers backward. **Memory** everything is divided by N; not under
    autocast, where autograd keeps 16-bit copies that it makes itself.
    """

    def _saving(self, whole: Tensor, shard: Tensor) -> AbstractContextManager:
        return regathered(self.group, whole, shard)


@contextmanager
def regathered(group: Group, whole: Tensor, shard: Tensor) -> Iterator[None]:
    """In the block, autograd keeps `shard` wherever it would keep `whole`, gathered from it.

    When backward first asks for it, it is gathered again; it is dropped when backward has asked as
    often as it was saved. **Bytes** one all_gather in backward.
    """
    address, kept = whole.untyped_storage().data_ptr(), _Shard(group, shard.detach())
    del whole

    def pack(saved: Tensor) -> Tensor | tuple:
        if saved.untyped_storage().data_ptr() != address:
            return saved
        kept.tickets += 1
        return saved.size(), saved.stride(), saved.storage_offset()

    def unpack(packed: Tensor | tuple) -> Tensor:
        return packed if isinstance(packed, Tensor) else kept.gathered().as_strided(*packed)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


class _Shard:
    """A shard that is gathered once for several who ask."""

    def __init__(self, group: Group, shard: Tensor) -> None:
        self._group, self._shard = group, shard
        self._whole: Tensor | None = None
        self.tickets = self._asked = 0

    def gathered(self) -> Tensor:
        if self._whole is None:
            self._whole = torch.cat(self._group.all_gather(self._shard), SEQUENCE)
        self._asked = (self._asked + 1) % self.tickets
        whole, self._whole = self._whole, self._whole if self._asked else None
        return whole


@torch.no_grad()
def sum_replicated_gradients(group: Group, parameters: Iterable[nn.Parameter]) -> None:
    """Each gradient is the sum of the ranks' parts: it is that of the whole sequence.

    **Bytes** an all_reduce of the gradients. To be called once, after backward.
    """
    for parameter in unique_parameters(parameters):
        if parameter.grad is not None:
            group.all_reduce_(parameter.grad)
