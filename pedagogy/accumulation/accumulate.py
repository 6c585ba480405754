"""A large batch in pieces: backward for each, gradients added, one update.

Why it exists
-------------
Activations grow with the batch, and a batch may be too large for the device. Cut it into k
*micro-batches*, run forward and backward for one after the other, and let `.grad` add up: PyTorch's
backward adds to `.grad`, it does not replace it. The activations of one micro-batch live at a time.
Nothing else changes: the same FLOPs, the same update.

What must be divided by what
----------------------------
The loss of a batch is the mean over its *items* (tokens that count, images). The mean of the
micro-batches' means is that only where all have the same number of items. With tokens they have
not: labels are ignored, sequences end early. Four tokens of gradient 1 and one token of gradient 6
have the mean (4 x 1 + 6) / 5 = 2; the mean of the two means is 3.5. So each micro-batch contributes
the *sum* of its losses, and the total is divided by the number of items of all of them, of all
ranks. A micro-batch without items contributes 0, where its mean would be 0/0 = NaN.

The number is known before anything runs, because it only needs the labels. So the sum is divided
before backward: gradients are as small as those of the mean, and do not overflow in 16 bits.

What is not equal
-----------------
BatchNorm: its statistics are those of a micro-batch. The order of additions: rounding differs.

Source: the arithmetic is the chain rule's; that most trainers had it wrong was noticed in 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pedagogy.parameters import add_up, fill_gradients, unique_parameters
from pedagogy.ranks import Group

MicroBatch = TypeVar("MicroBatch")
LossSum = Callable[[nn.Module, MicroBatch], Tensor]
Count = Callable[[MicroBatch], Any]  # an int, or a tensor of one number


def accumulate(
    model: nn.Module,
    microbatches: Sequence[MicroBatch],
    loss_sum: LossSum,
    count: Count,
    group: Group | None = None,
) -> Tensor:
    """Every `.grad` is that of the mean loss over all items of all micro-batches of all ranks.

    `loss_sum(model, microbatch)` is a summed loss, `count(microbatch)` its number of valid items.
    What stood in `.grad` before is replaced. Returns the mean loss, (); 0 where there is no item.
    **Bytes** with a group: each gradient is all-reduced once, after the last micro-batch; so are a
    byte for each parameter, that tells which gradients exist, the number of items and the loss.
    The ranks may have different numbers of micro-batches, or none.
    **Raises** ValueError for a count that is no whole number of 0 or more, or a loss that is not
    one number.
    """
    total = num_items([count(microbatch) for microbatch in microbatches], group)
    for parameter in unique_parameters(model.parameters()):
        parameter.grad = None
    mean = torch.zeros((), dtype=torch.float64)
    for microbatch in microbatches:
        loss = loss_sum(model, microbatch)
        check_single(loss)
        share = loss / max(total, 1)
        if share.requires_grad:  # a micro-batch without items may have a constant loss
            share.backward()
        mean += share.detach().double().cpu()
    if group is not None:
        add_up(group, [p.grad for p in fill_gradients(group, model.parameters())])
        mean = group.all_reduce(mean.to(group.device)).cpu()
    return mean


def num_items(counts: Sequence[Any], group: Group | None = None) -> int:
    """The number of items of all micro-batches, and of all ranks of the group.

    **Raises** ValueError for a count that is no whole number of 0 or more.
    """
    for count in counts:
        if count < 0 or int(count) != count:
            raise ValueError(
                f"{float(count):g} items in a micro-batch: must be a whole number, 0 or more"
            )
    total = torch.tensor(sum(map(int, counts)), dtype=torch.int64)
    return int(total if group is None else group.all_reduce(total.to(group.device)))


def check_single(loss: Tensor) -> None:
    """Raise ValueError for a loss that was not summed."""
    if loss.dim():
        raise ValueError(
            f"loss_sum returned a tensor of shape {tuple(loss.shape)}: it must sum its losses "
            "to one number"
        )
