"""Chapter 06: wrong ways to update once a window, and what to say about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from pedagogy.exercises import chapter06_wrong_sums as sums
from pedagogy.exercises.chapter06_wrong_sums import divided


def _cut(microbatches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    return [microbatches[first : first + window] for first in range(0, len(microbatches), window)]


def _full_alone(microbatches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    return [one for one in _cut(microbatches, window) if len(one) == window]


def _begun_early(microbatches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    """An update where index % window == 0, so after the very first."""
    return [microbatches[:1], *_cut(microbatches[1:], window)]


def _begun_early_full(microbatches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    return [microbatches[:1], *_full_alone(microbatches[1:], window)]


def _so_many(microbatches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    """As many windows as one should have micro-batches."""
    return _cut(microbatches, -(-len(microbatches) // window))


def _joined(microbatches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    """Each window as one large micro-batch."""
    windows = _cut(microbatches, window)
    return [[tuple(map(torch.cat, zip(*here, strict=True)))] for here in windows]


def _each(microbatches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    return _cut(microbatches, 1)


def _all(microbatches: Sequence[Any], window: int) -> list[Sequence[Any]]:
    return [microbatches]


def _items(counts: list[int], whole: list[int], window: int, index: int) -> float:
    return max(sum(counts), 1)


def _trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    microbatches: Sequence[Any],
    window: int,
    loss_sum: Callable,
    count: Callable,
    windows: Callable[[Sequence[Any], int], list[Sequence[Any]]] = _cut,
    by: Callable[[list[int], list[int], int, int], float] = _items,
    skip: Callable[[int], bool] = lambda items: False,
    **parts: Callable,
) -> None:
    """An update for each of `windows`; `by` gets the counts of the window and of those so far."""
    seen: list[int] = []
    for here in windows(microbatches, window):
        counts = [count(one) for one in here]
        seen += counts
        if skip(sum(counts)):
            continue
        divisor = partial(_divisor, by, counts, list(seen), window)
        divided(model, here, loss_sum, count, by=divisor, **parts)
        optimizer.step()


def _divisor(by, counts, seen, window, _counts, index, microbatch):
    return by(counts, seen, window, index)


def _by_all(model, optimizer, microbatches, window, loss_sum, count):
    total = max(sum(map(count, microbatches)), 1)
    _trained(model, optimizer, microbatches, window, loss_sum, count, by=lambda *_: total)


def _by_length(model, optimizer, microbatches, window, loss_sum, count):
    for here in _cut(microbatches, window):
        length = sum(len(labels) for _, labels in here)
        divided(model, here, loss_sum, count, by=lambda *_, length=length: length)
        optimizer.step()


def _once_more(clear: Callable[[nn.Module], None]) -> Callable:
    """A step for the rest, also where there is none."""

    def wrong(model, optimizer, microbatches, window, loss_sum, count):
        _trained(model, optimizer, microbatches, window, loss_sum, count)
        if len(microbatches) % window == 0:
            clear(model)
            optimizer.step()

    return wrong


def _kept_and_divided(model, optimizer, microbatches, window, loss_sum, count):
    for here in _cut(microbatches, window):
        sums.divided_at_the_end(model, here, loss_sum, count, least=1, clear=_never)
        optimizer.step()


def _cleared_too_early(model, optimizer, microbatches, window, *others):
    for _ in _cut(microbatches, window):
        model.zero_grad()
        optimizer.step()


def _never(model: nn.Module, index: int) -> None:
    """Nothing is cleared."""


def _each_time(model: nn.Module, index: int) -> None:
    model.zero_grad()


_BY_WINDOW = (
    lambda counts, seen, window, index: counts[index] * window,
    lambda counts, seen, window, index: max(counts[index], 1) * window,
)
_BY_LENGTH = (
    lambda counts, seen, window, index: counts[index] * len(counts),
    lambda counts, seen, window, index: max(counts[index], 1) * len(counts),
)
_FULL_WINDOW = (
    "Each micro-batch's mean is divided by the window, also in the last window, which is not full: "
    "its update is too small. Divide sums by the items that the window holds."
)
_MEANS = (
    "An update is the mean of its micro-batches' means: an item counts more where there are few "
    "of them. Divide sums by the items that the window holds."
)
_EARLY = (
    "The first micro-batch makes an update by itself: index % window == 0 is true at index 0. A "
    "window is full after index + 1 of them."
)
_NAIVE = (
    "Each micro-batch's mean is divided by the window, and the last window, which is not full, is "
    "dropped. Divide sums by the items that the window holds, and step for the rest too."
)
_ONE_TOO_MANY = (
    "Where no micro-batch is left there is one more update, of nothing or of the last gradient "
    "again; momentum moves the weights in any case. Step for the rest only if there is one."
)
_LAST_ALONE = (
    "The gradients are cleared before each micro-batch: an update sees the last one alone. Clear "
    "once a window."
)
_HELD = (
    "The weights are right, but all activations of a window live at once, as in the large batch: "
    "backward for each micro-batch, before the next forward."
)

MISTAKES = [
    (
        partial(_trained, windows=_full_alone),
        "The last micro-batches are dropped, as their window is not full. They make an update of "
        "their own.",
    ),
    *((partial(_trained, by=of), _FULL_WINDOW) for of in _BY_WINDOW),
    *((partial(_trained, by=of, windows=_full_alone), _NAIVE) for of in _BY_WINDOW),
    *((partial(_trained, by=of), _MEANS) for of in _BY_LENGTH),
    (
        partial(_trained, by=lambda c, seen, window, i: len(c)),
        "Sums are divided by the number of micro-batches; divide by the number of items.",
    ),
    (
        partial(_trained, by=lambda c, seen, window, i: window),
        "Sums are divided by the window, which is a number of micro-batches, and may not be full; "
        "divide by the number of items that it holds.",
    ),
    (
        partial(_trained, by=lambda c, seen, window, i: 1),
        "The sums are not divided: by the number of items that the window holds.",
    ),
    (
        partial(_trained, by=lambda c, seen, window, i: max(sum(seen), 1)),
        "The number of items grows from window to window: it begins at 0 in each, as .grad does.",
    ),
    (
        _by_all,
        "Divided by the items of all micro-batches. An update is the mean over those of its own "
        "window.",
    ),
    (
        _by_length,
        "Divided by the full length of the labels, ignored ones included: count(microbatch) says "
        "how many items count.",
    ),
    (
        partial(_trained, by=lambda c, seen, window, i: max(c[-1], 1)),
        "Divided by the items of the window's last micro-batch alone.",
    ),
    (
        partial(_trained, by=lambda c, seen, window, i: sum(c)),
        "A window in which no item counts divides 0 by 0: divide by max(items, 1).",
    ),
    (
        partial(_trained, skip=lambda items: items == 0),
        "A window in which no item counts has no update here. Its gradient is 0, and it is an "
        "update like the others: the number of updates does not depend on labels.",
    ),
    (
        partial(_trained, windows=_each),
        "There is an update after each micro-batch: step once a window.",
    ),
    (
        partial(_trained, windows=_all),
        "There is one update for all micro-batches: step after each `window` of them.",
    ),
    (
        partial(_trained, windows=_so_many),
        "The micro-batches are cut into `window` windows. `window` says how many micro-batches "
        "each of them has.",
    ),
    *((partial(_trained, windows=cut), _EARLY) for cut in (_begun_early, _begun_early_full)),
    *(
        (_once_more(clear), _ONE_TOO_MANY)
        for clear in (
            lambda model: model.zero_grad(),
            lambda model: model.zero_grad(set_to_none=False),
            lambda model: None,
        )
    ),
    *(
        (one, "The gradients of earlier windows are still in .grad: clear when a window begins.")
        for one in (partial(_trained, clear=_never), _kept_and_divided)
    ),
    *(
        (partial(_trained, by=of, clear=_each_time), _LAST_ALONE)
        for of in (_items, lambda c, seen, window, i: max(c[i], 1))
    ),
    (
        _cleared_too_early,
        "The gradients are cleared before the step, which has none then: clear after it.",
    ),
    (partial(_trained, windows=_joined), _HELD),
    *((partial(_trained, backward=way), _HELD) for way in (sums.together, sums.kept_for_later)),
]
