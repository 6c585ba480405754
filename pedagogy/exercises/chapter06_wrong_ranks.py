"""Chapter 06: wrong ways to accumulate on several ranks, and what to say about each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from pedagogy.exercises.chapter06_rank_parts import nothing, on_ranks, summed, total_items
from pedagogy.ranks import Group


def _together(group, model, microbatches, loss_sum, count):
    divisor = total_items(group, [count(microbatch) for microbatch in microbatches], microbatches)
    model.zero_grad()
    losses = [loss_sum(model, microbatch) / divisor for microbatch in microbatches]
    if losses:
        sum(losses).backward()
    summed(group, model)


def _averaged(group: Group, model: nn.Module) -> None:
    summed(group, model)
    for parameter in model.parameters():
        parameter.grad /= group.size


def _where_there_is_one(group: Group, model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            group.all_reduce_(parameter.grad)


def _of_none(group: Group, model: nn.Module) -> None:
    for parameter in model.parameters():
        group.all_reduce_(parameter.grad)


def _mean_of_none(group: Group, model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = group.all_reduce(parameter.grad, "mean")


def _after_the_first(group, model, microbatches, loss_sum, count):
    """And not after the last."""
    divisor = total_items(group, [count(microbatch) for microbatch in microbatches], microbatches)
    model.zero_grad()
    for index in range(max(len(microbatches), 1)):
        if microbatches:
            (loss_sum(model, microbatches[index]) / divisor).backward()
        if index == 0:
            summed(group, model)


def _divided_here(group, model, microbatches, *others):
    on_ranks(group, model, microbatches, *others, by=_one)
    for parameter in model.parameters():
        parameter.grad /= max(sum(map(others[1], microbatches)), 1)


def _leaves_without(group, model, microbatches, *others):
    if microbatches:
        on_ranks(group, model, microbatches, *others)


def _count_in_each(group, model, microbatches, loss_sum, count):
    def total(group, counts, microbatches):
        return max(sum(int(group.all_reduce(torch.tensor(items))) for items in counts), 1)

    on_ranks(group, model, microbatches, loss_sum, count, by=total)


def _added_in_each(group, model, microbatches, loss_sum, count, rounds=None):
    """Each micro-batch's gradient is summed over the ranks and added; right, where it ends."""
    divisor = total_items(group, [count(microbatch) for microbatch in microbatches], microbatches)
    added = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for index in range(len(microbatches) if rounds is None else rounds(group, microbatches)):
        model.zero_grad()
        if index < len(microbatches):
            (loss_sum(model, microbatches[index]) / divisor).backward()
        summed(group, model)
        for total, parameter in zip(added, model.parameters(), strict=True):
            total += parameter.grad
    for total, parameter in zip(added, model.parameters(), strict=True):
        parameter.grad = total


def _most(group: Group, microbatches: Sequence[Any]) -> int:
    return int(group.all_reduce(torch.tensor(len(microbatches)), "max"))


def _cleared(model: nn.Module, index: int) -> None:
    model.zero_grad()


def _never(model: nn.Module, index: int) -> None:
    """Nothing is cleared."""


def _own_items(group: Group, counts: list[int], microbatches: Sequence[Any]) -> float:
    return sum(counts)


def _own_or_one(group: Group, counts: list[int], microbatches: Sequence[Any]) -> float:
    return max(sum(counts), 1)


def _one(group: Group, counts: list[int], microbatches: Sequence[Any]) -> float:
    return 1


def _number(group: Group, counts: list[int], microbatches: Sequence[Any]) -> float:
    return len(microbatches)


def _all_microbatches(group: Group, counts: list[int], microbatches: Sequence[Any]) -> float:
    return max(int(group.all_reduce(torch.tensor(len(microbatches)))), 1)


def _lengths(group: Group, counts: list[int], microbatches: Sequence[Any]) -> float:
    return int(group.all_reduce(torch.tensor(sum(len(labels) for _, labels in microbatches))))


def _mean_items(group: Group, counts: list[int], microbatches: Sequence[Any]) -> float:
    return max(float(group.all_reduce(torch.tensor(float(sum(counts))), "mean")), 1.0)


def _all_items(group: Group, counts: list[int], microbatches: Sequence[Any]) -> float:
    return int(group.all_reduce(torch.tensor(sum(counts))))


_RANKS_MEANS = (
    "That is the mean of the ranks' means: an item counts more on a rank that has few. Divide by "
    "the number of items of all ranks, which is summed first."
)
_SUM_OF_MEANS = (
    "Each rank divides by its own items, and the ranks' means are added: the number of items is "
    "to be summed over the ranks too, before the first backward."
)
_MICROBATCH_MEANS = (
    "Each micro-batch is divided by its own items, so that an item counts more where there are "
    "few. Divide each sum by the number of items of all micro-batches of all ranks."
)
_IN_EACH = (
    "There is an all_reduce in every micro-batch. Ranks with different numbers of them wait for "
    "one another, and k times the bytes are sent: sum the gradients once, after the last one."
)
_BYTES = (
    "The gradients are sent in every micro-batch. They can be added up here first, and sent once, "
    "after the last one."
)

_NO_ITEMS = (
    "Where no item counts anywhere, 0 is divided by 0, and the NaN is everywhere: divide by "
    "max(total, 1)."
)
_NONE = (
    "A rank without micro-batches has .grad None, which cannot be summed. It takes part with zeros "
    "of the parameter's shape."
)

MISTAKES = [  # the frequent ones first: each costs a launch, once a session
    *((partial(on_ranks, by=own), _SUM_OF_MEANS) for own in (_own_items, _own_or_one)),
    *(
        (partial(on_ranks, by=own, end=_averaged), _RANKS_MEANS)
        for own in (_own_items, _own_or_one)
    ),
    (partial(on_ranks, after_each=summed, end=nothing), _IN_EACH),
    (
        partial(on_ranks, end=_where_there_is_one),
        "A rank without micro-batches has .grad None and skips the all_reduce, in which the others "
        "wait: it takes part with zeros.",
    ),
    (
        _after_the_first,
        "The ranks sum after the first micro-batch, and each of them then adds its others alone: "
        "their gradients part. Sum once, after the last.",
    ),
    (partial(on_ranks, end=_of_none), _NONE),
    (partial(on_ranks, by=_own_or_one, end=_mean_of_none), _NONE),
    (partial(on_ranks, by=_all_items), _NO_ITEMS),
    (
        partial(on_ranks, end=nothing),
        "The number of items is summed over the ranks, and .grad is not: each rank has its own "
        "part alone. all_reduce_ sums in place; all_reduce returns the sum as a new tensor.",
    ),
    (
        partial(on_ranks, end=_averaged),
        "Divided by the number of ranks as well. The total already counts the items of all ranks: "
        "sum the gradients.",
    ),
    (
        partial(on_ranks, clear=_never),
        "What stood in .grad before is still in it: clear it before the first micro-batch.",
    ),
    *(
        (partial(on_ranks, by=by, own=own, end=end), _MICROBATCH_MEANS)
        for by, own, end in (
            (_number, lambda items: items, _averaged),
            (_one, lambda items: items, summed),
            (_all_microbatches, lambda items: items, summed),
            (_all_microbatches, lambda items: max(items, 1), summed),
        )
    ),
    (
        _leaves_without,
        "A rank without micro-batches returns at once, and the others wait for it: an all_reduce "
        "is for all ranks. Its part is 0.",
    ),
    (
        partial(on_ranks, by=_own_or_one, end=nothing),
        "Nothing is sent: each rank has the mean over its own items.",
    ),
    (
        partial(on_ranks, by=_mean_items),
        "The number of items is averaged over the ranks, and the gradients are summed: sum both.",
    ),
    (
        _divided_here,
        "The gradients are summed over the ranks, and then each rank divides by its own items "
        "alone: the number of items is to be summed too.",
    ),
    (partial(_added_in_each, rounds=_most), _BYTES),
    (
        _count_in_each,
        "The number of items is summed in every micro-batch, and ranks with different numbers of "
        "them wait for one another: add up the own ones first, then one all_reduce.",
    ),
    (
        partial(on_ranks, by=_one),
        "The sums are not divided: by the number of items of all ranks.",
    ),
    (
        partial(on_ranks, by=_lengths),
        "Divided by the full length of the labels, ignored ones included: count(microbatch) says "
        "how many items count.",
    ),
    (
        partial(on_ranks, clear=_cleared),
        "The gradients are cleared before each micro-batch, so that the last ones remain alone.",
    ),
    (
        _together,
        "The gradients are right, but the activations of all micro-batches live at once: backward "
        "for each, before the next forward.",
    ),
]
