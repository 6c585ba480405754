"""Cut a model into stages: a list of layers, run one after the other, cut at boundaries.

A stage hands one tensor to the next. So a model that is to be cut must be written as a list of
layers with one tensor between each two; what skips layers has to travel inside that tensor.
`gpt_layers` does this for the GPT of the workbook: embedding, blocks, head.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pedagogy.workloads import GPT


class Embed(nn.Module):
    """The first layer of a GPT: ids to hidden states."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.token, self.position, self.dropout = model.token, model.position, model.dropout

    def forward(self, ids: Tensor) -> Tensor:
        """**Shapes** (batch, sequence) -> (batch, sequence, hidden)."""
        return self.dropout(self.token(ids) + self.position.weight[: ids.size(1)])


class Unembed(nn.Module):
    """The last layer of a GPT: hidden states to logits."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        """**Shapes** (batch, sequence, hidden) -> (batch, sequence, vocabulary)."""
        return self.head(self.norm(x))


def gpt_layers(model: GPT) -> list[nn.Module]:
    """The model as a list of layers that share its parameters: embedding, blocks, head."""
    return [Embed(model), *model.blocks, Unembed(model)]


def split_layers(
    layers: Sequence[nn.Module], boundaries: Sequence[tuple[int, int]]
) -> list[nn.Sequential]:
    """One stage for each (first, last + 1) of `boundaries`, as `partition` returns them.

    **Raises** ValueError unless the boundaries cover all layers, in order, without a gap.
    """
    edges = [0, *(last for _, last in boundaries)]
    if [first for first, _ in boundaries] != edges[:-1] or edges[-1] != len(layers):
        raise ValueError(f"{list(boundaries)} do not cover {len(layers)} layers without a gap")
    if any(first >= last for first, last in boundaries):
        raise ValueError(f"{list(boundaries)}: each stage needs a layer")
    return [nn.Sequential(*layers[first:last]) for first, last in boundaries]
