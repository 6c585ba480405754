"""What accumulation leaves as evidence: is it the large batch, and where it is not, by how much?

Texts of unequal length
-----------------------
A batch of texts is padded to one length, and the labels behind a text's end are `IGNORED`. So
micro-batches with the same number of texts hold different numbers of tokens that count. That is
where the mean of the means goes wrong (`mean_of_means`), and where a micro-batch may hold nothing.

BatchNorm
---------
`batch_norm_gaps` runs the same digits in more and more micro-batches and compares two things with
the large batch, each relative to it: the gradient, and the running statistics. They differ for
different reasons, and only the second can be mended.

Large batches
-------------
`train_digits` trains on the same micro-batches with windows of 1 or of many, so that what a larger
batch does to the loss can be seen beside equal work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.accumulation.accumulate import accumulate
from pedagogy.accumulation.accumulator import GradientAccumulator
from pedagogy.parameters import flatten, unique_parameters
from pedagogy.workloads import MLP, digits, digits_batch, text_batch

IGNORED = -100  # torch's default for cross_entropy's ignore_index
Pair = tuple[Tensor, Tensor]  # inputs and labels


def cross_entropy(model: nn.Module, batch: Pair, reduction: str) -> Tensor:
    """Over the labels that count, () or, for "none", (labels,)."""
    inputs, labels = batch
    logits = model(inputs).flatten(0, -2)  # (labels, classes)
    return functional.cross_entropy(
        logits, labels.flatten(), ignore_index=IGNORED, reduction=reduction
    )


def loss_sum(model: nn.Module, microbatch: Pair) -> Tensor:
    """Summed over the labels that count."""
    return cross_entropy(model, microbatch, "sum")


def count(microbatch: Pair) -> int:
    """How many labels count."""
    return int((microbatch[1] != IGNORED).sum())


def cut(batch: Pair, num_microbatches: int) -> list[Pair]:
    """A batch as micro-batches.

    **Raises** ValueError unless the batch is divisible by their number.
    """
    inputs, labels = batch
    if num_microbatches < 1 or len(inputs) % num_microbatches:
        raise ValueError(
            f"a batch of {len(inputs)} in {num_microbatches} micro-batches: "
            "the number must divide the batch"
        )
    pieces = inputs.chunk(num_microbatches), labels.chunk(num_microbatches)
    return list(zip(*pieces, strict=True))


def padded_texts(lengths: Sequence[Sequence[int]], sequence: int, step: int = 0) -> list[Pair]:
    """One micro-batch for each list of lengths: texts of that many tokens, then padding.

    **Shapes** inputs and labels: (texts, sequence), int64; labels behind a text's end are ignored.
    **Raises** ValueError for a length below 0 or above `sequence`.
    """
    flat = [length for row in lengths for length in row]
    if not all(0 <= length <= sequence for length in flat):
        raise ValueError(f"lengths {flat}: must be between 0 and the sequence, {sequence}")
    inputs, labels = text_batch(len(flat), sequence, step=step)
    behind = torch.arange(sequence) >= torch.tensor(flat).unsqueeze(1)  # (texts, sequence)
    labels = labels.masked_fill(behind, IGNORED)
    sizes = [len(row) for row in lengths]
    return list(zip(inputs.split(sizes), labels.split(sizes), strict=True))


def gradient(model: nn.Module) -> Tensor:
    """All gradients in one, (elements,)."""
    parameters = unique_parameters(model.parameters())
    return flatten([p.grad for p in parameters if p.grad is not None])


def large_batch(model: nn.Module, microbatches: Sequence[Pair]) -> Tensor:
    """The truth, loss () and `.grad`: one batch of everything, and PyTorch's own mean."""
    inputs, labels = (torch.cat(parts) for parts in zip(*microbatches, strict=True))
    model.zero_grad()
    loss = cross_entropy(model, (inputs, labels), "mean")
    loss.backward()
    return loss.detach()


def mean_of_means(model: nn.Module, microbatches: Sequence[Pair]) -> Tensor:
    """The popular form, loss () and `.grad`: wrong where counts differ, NaN where one is 0."""
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for microbatch in microbatches:
        share = cross_entropy(model, microbatch, "mean") / len(microbatches)
        share.backward()
        total += share.detach()
    return total


def largest_gap(mine: Tensor, right: Tensor) -> float:
    """The largest difference of an element, as a share of the largest element of `right`."""
    return ((mine - right).abs().max() / right.abs().max()).item()


class Gaps(NamedTuple):
    """How far a run in micro-batches is from the large batch: norms, relative to it."""

    gradient: float
    statistics: float  # running means and variances; 0 for a model without


def batch_norm_gaps(
    make_model: Callable[[int], nn.Module], parts: Sequence[int], batch: int = 64
) -> dict[int, Gaps]:
    """For each number of micro-batches how far digits end from the large batch, in float64.

    `make_model(num_microbatches)` is called for each, with the same seed.
    """
    found, whole = {}, _digits_run(make_model, 1, batch)
    for num_microbatches in parts:
        mine = _digits_run(make_model, num_microbatches, batch)
        found[num_microbatches] = Gaps(*map(_relative, mine, whole))
    return found


def _digits_run(
    make_model: Callable[[int], nn.Module], num_microbatches: int, batch: int
) -> tuple[Tensor, Tensor]:
    """The gradient and the running statistics after one window."""
    torch.manual_seed(0)
    model = make_model(num_microbatches).double()
    images, labels = digits_batch(batch)
    accumulate(model, cut((images.double(), labels), num_microbatches), loss_sum, count)
    named = [b for name, b in model.named_buffers() if "running" in name]
    return gradient(model), torch.cat([torch.zeros(0), *named]).double()


def _relative(mine: Tensor, right: Tensor) -> float:
    """The norm of the difference as a share of that of `right`; 0 where there is nothing."""
    return ((mine - right).norm() / right.norm()).item() if right.numel() else 0.0


class Curve(NamedTuple):
    """The loss over all training digits, after so many images."""

    images: list[int]
    losses: Tensor  # (points,)


def train_digits(
    window: int, learning_rate: float, seed: int = 0, num_microbatches: int = 512, each: int = 8
) -> Curve:
    """A small MLP, trained by SGD on micro-batches of `each` digits, an update for each window.

    The micro-batches are the same for every window and learning rate. A point of the curve after
    each 32 of them.
    """
    torch.manual_seed(seed)
    model = MLP((64, 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    trainer = GradientAccumulator(model, optimizer, window, loss_sum, count)
    everything, points = digits()[:2], []
    for step in range(1, num_microbatches + 1):
        trainer.add(digits_batch(each, seed=seed, step=step))
        if step == num_microbatches:
            trainer.finish()
        if step % 32 == 0:
            with torch.no_grad():
                mean = loss_sum(model, everything) / len(everything[0])
            points.append((each * step, mean))
    images, losses = zip(*points, strict=True)
    return Curve(list(images), torch.stack(losses))


def window_seconds(
    model: nn.Module, optimizer: Any, batch: Pair, ks: Sequence[int], repeats: int = 3
) -> dict[int, float]:
    """The fastest seconds of a window in k micro-batches, first forward to update; it trains.

    All k are run in turn, `repeats` times, so that a busy moment does not fall on one of them.
    """
    seconds: dict[int, list[float]] = {k: [] for k in ks}
    for _ in range(repeats + 1):  # the first warms up
        for k in ks:
            microbatches, start = cut(batch, k), _now()
            accumulate(model, microbatches, loss_sum, count)
            optimizer.step()
            seconds[k].append(_now() - start)
    return {k: min(times[1:]) for k, times in seconds.items()}


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
