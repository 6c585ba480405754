"""Batches that the ranks do not share equally.

The mean of means
    Rank 0 has 3 samples with gradients 1, 2, 3, rank 1 has one with gradient 9. The mean of all is
    15/4 = 3.75; the mean of the ranks' means is (2 + 9)/2 = 5.5, and nothing complains. It is right
    only where every rank has the same number of samples (tokens, valid pixels). Otherwise a rank's
    mean must count as often as it has samples: `average_gradients_by_count`, or, where something
    else averages (DDP), the loss is scaled before backward: `scaled_by_count`.

Sum or mean
    Where the loss is a *sum* over samples, one process has the sum of the ranks' gradients;
    averaging gives 1/N of it. Both are used; which is right depends only on the loss:
    `sum_gradients` for a sum, `average_gradients` for a mean.

One batch more
    5 samples on 2 ranks are 3 and 2. A rank that makes a step more than the others waits in it for
    ever. Three ways out, and each changes how many samples are learnt from (`Split.effective`):

        padded    repeat samples until all ranks have as many    6: one sample counts twice
        dropped   leave out what does not divide                 4: one sample is never seen
        join      go on, with nothing, until all are done        5: `until_all_are_done`

Sources: torch.utils.data.DistributedSampler (padded, dropped); torch.distributed.algorithms.join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TypeVar

import torch
from torch import Tensor

from pedagogy.parameters import fill_gradients
from pedagogy.ranks import Group

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Split:
    """Which samples each rank gets: `indices[rank]`."""

    indices: tuple[tuple[int, ...], ...]

    @property
    def effective(self) -> int:
        """Samples that are learnt from in an epoch, repeated ones counted each time."""
        return sum(len(own) for own in self.indices)


def padded(num_samples: int, num_ranks: int) -> Split:
    """Every rank gets as many; the first samples come again at the end where they must."""
    _check_split(num_samples, num_ranks)
    total = -(-num_samples // num_ranks) * num_ranks
    order = [index % num_samples for index in range(total)]
    return Split(tuple(tuple(order[rank::num_ranks]) for rank in range(num_ranks)))


def dropped(num_samples: int, num_ranks: int) -> Split:
    """Every rank gets as many; the last `num_samples % num_ranks` samples are left out."""
    _check_split(num_samples, num_ranks)
    order = range(num_samples - num_samples % num_ranks)
    return Split(tuple(tuple(order[rank::num_ranks]) for rank in range(num_ranks)))


def joined(num_samples: int, num_ranks: int) -> Split:
    """Every sample once; the first ranks may get one more. To be used with `until_all_are_done`."""
    _check_split(num_samples, num_ranks)
    order = range(num_samples)
    return Split(tuple(tuple(order[rank::num_ranks]) for rank in range(num_ranks)))


def until_all_are_done(group: Group, batches: Iterable[Batch]) -> Iterator[Batch | None]:
    """This rank's batches and then None, as long as any rank has a batch left.

    A rank without a batch must still take part in whatever the others do together; with
    `average_gradients_by_count(..., count=0)` it counts for nothing.
    **Bytes** one number for each step.
    """
    for batch in chain(batches, repeat(None)):
        has_one = torch.tensor(float(batch is not None), device=group.device)
        if not group.all_reduce_(has_one, "max"):
            return
        yield batch


@torch.no_grad()
def average_gradients_by_count(
    group: Group, parameters: Iterable[Tensor], count: int | Tensor
) -> None:
    """Every `.grad` is the mean over all samples of all ranks, in place.

    Each rank's `.grad` was the mean over its own `count` samples, or is None where that is 0.
    **Bytes** as `average_gradients`, and one number. **Raises** ValueError where no rank has any.
    """
    count = float(count)
    total = _total(group, count)
    for parameter in fill_gradients(group, parameters):
        group.all_reduce_(parameter.grad.mul_(count / total))


def scaled_by_count(group: Group, loss: Tensor, count: int | Tensor) -> Tensor:
    """The rank's mean loss, scaled so that *averaging* its gradients gives the mean over samples.

    The factor is count * N / total: 1 where all ranks have the same count.
    **Bytes** one number. **Raises** ValueError where no rank has any sample.
    """
    count = float(count)
    return loss * (count * group.size / _total(group, count))


def _total(group: Group, count: float) -> float:
    if count < 0:
        raise ValueError(f"count is {count:g}; a rank has 0 samples or more")
    total = group.all_reduce_(torch.tensor(count, dtype=torch.float64, device=group.device)).item()
    if total == 0:
        raise ValueError(f"0 samples on all {group.size} ranks: there is no mean")
    return total


def _check_split(num_samples: int, num_ranks: int) -> None:
    if num_samples < 1 or num_ranks < 1:
        raise ValueError(f"{num_samples} samples for {num_ranks} ranks; both must be 1 or more")
