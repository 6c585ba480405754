"""Chapter 06: wrong ways to add up micro-batches, and what to say about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Divisor = Callable[[list[int], int, Any], float]  # (counts, index, micro-batch)


def divided(
    model: nn.Module,
    microbatches: Sequence[Any],
    loss_sum: Callable,
    count: Callable,
    by: Divisor,
    clear: Callable[[nn.Module, int], None] | None = None,
    backward: Callable[[list[Tensor]], None] | None = None,
) -> None:
    """Each micro-batch's sum, divided by `by`; backward for each, or `backward` for all."""
    counts, losses = [count(microbatch) for microbatch in microbatches], []
    if clear is None:
        model.zero_grad()
    for index, microbatch in enumerate(microbatches):
        if clear is not None:
            clear(model, index)
        loss = loss_sum(model, microbatch) / by(counts, index, microbatch)
        if backward is None:
            loss.backward()
        else:
            losses.append(loss)
    if backward is not None:
        backward(losses)


def _total(counts: list[int], index: int, microbatch: Any) -> float:
    return max(sum(counts), 1)


def _own(counts: list[int], index: int, microbatch: Any) -> float:
    return counts[index]


def _own_or_one(counts: list[int], index: int, microbatch: Any) -> float:
    return max(counts[index], 1)


def _means(own: Divisor, of: Callable[[list[int]], float]) -> Callable:
    """The mean of the micro-batches' means, of as many as `of` says."""
    return partial(
        divided, by=lambda counts, index, one: own(counts, index, one) * max(of(counts), 1)
    )


def _full_length(counts: list[int], index: int, microbatch: Any) -> float:
    return len(microbatch[1])


def _divided_each_time(model, microbatches, loss_sum, count):
    model.zero_grad()
    total = max(sum(map(count, microbatches)), 1)
    for microbatch in microbatches:
        loss_sum(model, microbatch).backward()
        for parameter in model.parameters():
            parameter.grad /= total


def divided_at_the_end(model, microbatches, loss_sum, count, least=0, clear=None):
    """Sums first; the gradients are divided by the number of items once, after the last."""
    divided(model, microbatches, loss_sum, count, by=lambda *_: 1.0, clear=clear)
    for parameter in model.parameters():
        parameter.grad /= max(sum(map(count, microbatches)), least)


def _cleared_at_the_end(model, microbatches, loss_sum, count):
    divided(model, microbatches, loss_sum, count, by=_total)
    model.zero_grad()


def _all_in_one(model, microbatches, loss_sum, count):
    """The large batch itself."""
    together = tuple(torch.cat(parts) for parts in zip(*microbatches, strict=True))
    divided(model, [together], loss_sum, count, by=_total)


def _sum_so_far(losses: list[Tensor]) -> None:
    """Backward of the running sum, each time."""
    so_far = 0
    for loss in losses:
        so_far = so_far + loss
        so_far.backward(retain_graph=True)


def _by_all_lengths(model, microbatches, *others):
    length = sum(len(labels) for _, labels in microbatches)
    divided(model, microbatches, *others, by=lambda *_: length)


def _means_of_those_with_items(model, microbatches, loss_sum, count):
    left = [microbatch for microbatch in microbatches if count(microbatch)]
    divided(
        *(model, left, loss_sum, count),
        by=lambda counts, index, one: counts[index] * len(counts),
    )


def _returns_them(model, microbatches, loss_sum, count):
    total = max(sum(map(count, microbatches)), 1)
    loss = sum(loss_sum(model, microbatch) for microbatch in microbatches) / total
    return torch.autograd.grad(loss, list(model.parameters()))


def _last_cleared(model: nn.Module, index: int) -> None:
    model.zero_grad()


def _never(model: nn.Module, index: int) -> None:
    """Nothing is cleared."""


def together(losses: list[Tensor]) -> None:
    """One backward for all."""
    sum(losses).backward()


def kept_for_later(losses: list[Tensor]) -> None:
    """All forwards first, then all backwards."""
    for loss in losses:
        loss.backward()


_MEANS = (
    "That is the mean of the micro-batches' means: an item counts more where there are few of "
    "them. Divide each sum by the number of items of all micro-batches."
)
_SUM_OF_MEANS = (
    "Each micro-batch is divided by its own items, and their means are added. Divide each sum by "
    "the number of items of all micro-batches."
)
_NO_ITEMS = "Where no item counts, 0 is divided by 0: divide by max(total, 1), so that 0 stays 0."
_SO_FAR = (
    "Divided by the items seen so far. The total must be known before the first backward: count "
    "all micro-batches first."
)
_LAST_ALONE = (
    "The gradients are cleared before each micro-batch, so that those of the last remain alone: "
    "clear once, before the first."
)
_HELD = (
    "The gradients are right, but the activations of all micro-batches live at once: that is the "
    "memory of the large batch. Backward for each, before the next forward."
)

MISTAKES = [
    *((_means(own, len), _MEANS) for own in (_own, _own_or_one)),
    (
        _means_of_those_with_items,
        "The mean over the micro-batches that have items at all of their means: items still "
        "count more where there are few. Divide each sum by the number of all items.",
    ),
    *((partial(divided, by=own), _SUM_OF_MEANS) for own in (_own, _own_or_one)),
    (
        partial(divided, by=lambda counts, index, one: len(counts)),
        "The sums are divided by the number of micro-batches, and not by that of the items.",
    ),
    (
        partial(divided, by=lambda *_: 1.0),
        "The sums are not divided: the mean over all items was asked for.",
    ),
    (
        _by_all_lengths,
        "Divided by the full length, ignored labels included: count(microbatch) says how many "
        "items count.",
    ),
    (
        partial(divided, by=_full_length),
        "Each micro-batch is divided by its own full length. Divide by the number of items that "
        "count (`count`), of all micro-batches together.",
    ),
    (
        partial(divided, by=lambda counts, index, one: len(one[1]) * len(counts)),
        "Each micro-batch's mean is over its full length, ignored labels included, and then the "
        "mean of these is taken. Divide each sum by the number of all items that count.",
    ),
    (partial(divided, by=lambda counts, *_: sum(counts)), _NO_ITEMS),
    (divided_at_the_end, _NO_ITEMS),
    *(
        (partial(divided, by=so_far), _SO_FAR)
        for so_far in (
            lambda counts, index, one: sum(counts[: index + 1]),
            lambda counts, index, one: max(sum(counts[: index + 1]), 1),
        )
    ),
    (
        partial(divided, by=lambda counts, index, one: max(counts[-1], 1)),
        "Divided by the items of the last micro-batch alone.",
    ),
    (
        partial(divided, by=lambda counts, index, one: max(counts[0], 1)),
        "Divided by the items of the first micro-batch alone.",
    ),
    (
        partial(divided, by=lambda counts, index, one: max(sum(counts), 1) * len(counts)),
        "Divided once too often: by the number of all items, and by the number of micro-batches "
        "as well.",
    ),
    (
        _divided_each_time,
        "All of .grad is divided after each micro-batch, so what the first ones left is divided "
        "again and again. Divide each loss, or .grad once at the end.",
    ),
    *(
        (partial(divided, by=of, clear=_last_cleared), _LAST_ALONE)
        for of in (_total, _own, _own_or_one)
    ),
    *(
        (one, "What stood in .grad before is still in it: clear it before the first micro-batch.")
        for one in (
            partial(divided, by=_total, clear=_never),
            partial(divided_at_the_end, least=1, clear=_never),
        )
    ),
    (
        _cleared_at_the_end,
        "The gradients are cleared at the end, and they are the result: clear before the first "
        "micro-batch.",
    ),
    (
        partial(divided, by=_total, backward=_sum_so_far),
        "Each backward is that of the sum so far, so that the first micro-batches are added again "
        "and again: backward for each micro-batch's own loss.",
    ),
    *(
        (partial(divided, by=of, backward=way), _HELD)
        for of in (_total, lambda counts, *_: sum(counts))
        for way in (together, kept_for_later)
    ),
    (_all_in_one, _HELD),
    (
        _returns_them,
        "torch.autograd.grad leaves .grad as it was, and returns the gradients: use backward().",
    ),
]
