"""Chapter 04: what `expert_parallel_forward` does, in steps that a mistake can replace.

`travel` takes the counts that arrive, the way from what arrived to the experts' inputs, the way
back, and both exchanges as arguments. An answer that goes wrong has one of them otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pedagogy.collectives import all_to_all
from pedagogy.ranks import Group


def exchanged(group: Group, counts: Tensor, each: int) -> Tensor:
    """(source, expert here)."""
    return torch.stack(group.all_to_all(list(counts.view(group.size, each))))


def split(part: Tensor, lengths: Tensor) -> list[Tensor]:
    """The rows of a part, cut into pieces of these lengths."""
    return list(part.split(lengths.tolist()))


def sliced(part: Tensor, lengths: Tensor) -> list[Tensor]:
    """As `split`, but silent where the lengths are wrong."""
    ends = lengths.cumsum(0).tolist()
    return [part[end - n : end] for end, n in zip(ends, lengths.tolist(), strict=True)]


def by_expert(parts: list[Tensor], arriving: Tensor, split: Callable) -> list[Tensor]:
    """Each expert's input: its block from each source, one behind the other."""
    blocks = [split(part, n) for part, n in zip(parts, arriving, strict=True)]
    return [torch.cat(of_expert) for of_expert in zip(*blocks, strict=True)]


def by_source(outputs: list[Tensor], arriving: Tensor, split: Callable) -> list[Tensor]:
    """What goes back to each source: its block of each expert's output."""
    back = [split(output, n) for output, n in zip(outputs, arriving.T, strict=True)]
    return [torch.cat(of_source) for of_source in zip(*back, strict=True)]


def in_order_of_arrival(parts: list[Tensor], arriving: Tensor, split: Callable) -> list[Tensor]:
    """A mistake: what arrived is cut as if it lay expert by expert."""
    return list(torch.cat(parts).split(arriving.sum(0).tolist()))


def in_order_of_experts(outputs: list[Tensor], arriving: Tensor, split: Callable) -> list[Tensor]:
    """A mistake: the outputs are cut as if they lay source by source."""
    return list(torch.cat(outputs).split(arriving.sum(1).tolist()))


def run_each(experts: list[Callable], inputs: list[Tensor]) -> list[Tensor]:
    """The output of each expert for its own input."""
    return [expert(rows) for expert, rows in zip(experts, inputs, strict=True)]


def travel(
    group,
    rows,
    counts,
    experts,
    arrive=exchanged,
    regroup=by_expert,
    run=run_each,
    home=by_source,
    split=split,
    there=all_to_all,
    back=all_to_all,
):
    """The reference, whose steps are arguments."""
    arriving = arrive(group, counts, len(experts))
    lengths = counts.view(group.size, -1).sum(1)
    parts = there(group, split(rows, lengths))
    outputs = run(experts, regroup(parts, arriving, split))
    return torch.cat(back(group, home(outputs, arriving, split)))
