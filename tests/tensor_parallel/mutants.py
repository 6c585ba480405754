"""Tensor parallelism as it is got wrong, each by one line.

`MUTANTS` name a block and what is replaced while it is trained: (where, attribute, by what). `RING`
and `LOSS` are single changes of source text, (what stands there, what stands there instead);
`rewritten` makes a module of them. The equality checks must notice every one, and an exercise can
recognise an answer by what they compute.
"""

from __future__ import annotations

import inspect
from types import ModuleType

import torch
from torch.nn import functional

from pedagogy.collectives import copy_to, gather_from, reduce_from
from pedagogy.parameters import Part, unique_parameters
from pedagogy.ranks import Group
from pedagogy.tensor_parallel import blocks, gpt, linear, sequence_parallel, vocabulary
from tests.tensor_parallel.cutting import BLOCKS

PARALLEL, SEQUENCE_PARALLEL, REGATHERING = BLOCKS
all_reduce = Group.all_reduce


def bias_on_every_rank(self, x):
    """Added before the sum, once by each rank."""
    return reduce_from(self.group, functional.linear(x, self.weight, self.bias))


def bias_over_ranks(self, x):
    """The output is right, the bias's gradient divided."""
    bias = self.bias / self.group.size
    return reduce_from(self.group, functional.linear(x, self.weight, bias))


def partial_with_bias(self, x):
    """With sequence parallelism: added before the sum."""
    return functional.linear(x, self.weight, self.bias)


def untouched(group, x):
    """An f without all_reduce in backward, or a g without one in forward."""
    return x


def summed_both_ways(group, x):
    """A g whose backward is an all_reduce too, as that of an all_reduce of copies would be."""
    return copy_to(group, reduce_from(group, x))


def shard_in_other_order(group, full, dim):
    """Rows of a row-parallel weight from the other end: not the ones its input belongs to."""
    whole = group.broadcast(full.detach())
    place = group.rank if dim == 0 else group.size - 1 - group.rank
    return torch.nn.Parameter(whole.chunk(group.size, dim)[place].clone(), full.requires_grad)


def own_values(self, x, source=0):
    """No broadcast: every rank cuts what it drew itself."""
    return x.detach().clone()


def logits_of_padding(self, x):
    """Rows that stand for no token take part in the softmax."""
    return functional.linear(x, self.weight)


def row_0_for_the_others(self, ids):
    """What another rank holds is looked up as this one's first row."""
    elsewhere = (ids < self.first) | (ids >= self.last)
    return functional.embedding((ids - self.first).masked_fill(elsewhere, 0), self.weight)


def own_maximum(self, x, op="sum"):
    """Every rank shifts its logits by its own maximum."""
    return x.clone() if op == "max" else all_reduce(self, x, op)


def averaged(group, parameters):
    """The mean of the parts of a sum."""
    for parameter in unique_parameters(parameters):
        if parameter.grad is not None:
            group.all_reduce_(parameter.grad, "mean")


def not_summed(group, parameters):
    """Every rank keeps the part of its positions."""


def norms_alone(self):
    """The biases behind the sums are forgotten."""
    return [*self.attention_norm.parameters(), *self.feed_forward_norm.parameters()]


def gather_and_slice(group, x, dim):
    """The gradient of what was gathered is sliced, and the other ranks' parts are lost."""
    return gather_from(group, x, dim)


def gathered_in_other_order(self):
    """The second gathering puts the last rank's positions first."""
    return torch.cat(self._group.all_gather(self._shard)[::-1], sequence_parallel.SEQUENCE)


ROW, VOCABULARY = linear.RowParallelLinear, vocabulary.VocabParallelEmbedding

MUTANTS = {
    "bias on every rank": (PARALLEL, ROW, "forward", bias_on_every_rank),
    "bias over the ranks": (PARALLEL, ROW, "forward", bias_over_ranks),
    "no f before attention": (PARALLEL, blocks, "copy_to", untouched),
    "no f before feed-forward": (PARALLEL, linear, "copy_to", untouched),
    "no f before the logits": (PARALLEL, gpt, "copy_to", untouched),
    "no g": (PARALLEL, linear, "reduce_from", untouched),
    "g sums the gradient too": (PARALLEL, linear, "reduce_from", summed_both_ways),
    "rows in another order": (PARALLEL, linear, "shard_of", shard_in_other_order),
    "no broadcast": (PARALLEL, Group, "broadcast", own_values),
    "padding counts": (PARALLEL, VOCABULARY, "logits", logits_of_padding),
    "row 0 for the others": (PARALLEL, VOCABULARY, "partial", row_0_for_the_others),
    "own maximum": (PARALLEL, Group, "all_reduce", own_maximum),
    "bias before the scatter": (SEQUENCE_PARALLEL, ROW, "partial", partial_with_bias),
    "norms averaged": (SEQUENCE_PARALLEL, gpt, "sum_replicated_gradients", averaged),
    "norms not summed": (SEQUENCE_PARALLEL, gpt, "sum_replicated_gradients", not_summed),
    "biases not summed": (
        SEQUENCE_PARALLEL,
        sequence_parallel.SequenceParallelBlock,
        "replicated_parameters",
        norms_alone,
    ),
    "gathered gradient sliced": (SEQUENCE_PARALLEL, sequence_parallel, "gather", gather_and_slice),
    "gathered in another order": (
        REGATHERING,
        sequence_parallel._Shard,
        "gathered",
        gathered_in_other_order,
    ),
}


def all_cut(group, module):
    """Gradients of norms are counted on every rank."""
    return [Part((group,), [p.grad for p in module.parameters() if p.grad is not None])]


def none_cut(group, module):
    """Every rank takes the norm of what it holds."""
    return [Part((), [p.grad for p in module.parameters() if p.grad is not None])]


NORMS = {"counted on every rank": all_cut, "each rank alone": none_cut}

RING = {
    "nothing rescaled": ("old = (highest - new).exp()", "old = torch.ones_like(new)"),
    "output not rescaled": ("output = output * old.unsqueeze(-1)", "output = output"),
    "every block masked": ("causal and source == group.rank", "causal"),
    "no block masked": ("causal and source == group.rank", "False"),
    "later blocks attended": ("causal and source > group.rank", "False"),
    "the other way around": ("yield (group.rank - step)", "yield (group.rank + step)"),
    "gradients stay": ("travelling, under_way = _pass_on(group, travelling)", "under_way = []"),
    "no scale in backward": (".mul_(scale)", ""),
    "no shift in backward": (".sub_(shift)", ""),
}  # fmt: skip

LOSS = {
    "mean over all positions": ("count = valid.sum()", "count = torch.tensor(valid.numel())"),
    "ignored positions have a gradient": (
        "torch.where(valid, gradient / count, 0.0)",
        "(gradient / count).expand(valid.shape)",
    ),
    "every rank has the label": ("here = valid & (place >= 0) & (place < rows)",
                                 "here, place = valid, place.clamp(0, rows - 1)"),
    "every rank starts at 0": ("place = labels - group.rank * rows", "place = labels"),
    "the rank's own sum": ("sums = group.all_reduce(exponentials.sum(-1))",
                           "sums = exponentials.sum(-1)"),
    "no maximum": ("shifted = logits - highest.unsqueeze(-1)", "shifted = logits"),
}  # fmt: skip


def rewritten(module: ModuleType, old: str, new: str) -> ModuleType:
    """The module with `new` wherever `old` stands in its source; it must stand there."""
    source = inspect.getsource(module)
    assert old in source, old
    changed = ModuleType(f"{module.__name__}_mutant")
    exec(compile(source.replace(old, new), changed.__name__, "exec"), changed.__dict__)
    return changed
