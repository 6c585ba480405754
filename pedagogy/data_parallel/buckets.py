"""Averaging in buckets: the naive version, with fewer and larger messages.

Why it exists
    A message has a fixed price, however small it is, and a model has hundreds of small parameters.
    Gradients that are copied into one flat buffer, a *bucket*, travel as one message. 25 MiB is
    large enough that the fixed price does not count, and small enough that the first bucket can
    leave long before backward has ended: which is what `data_parallel.py` adds to this.

How it works
    `.grad` of each parameter becomes a view into the bucket's buffer. A gradient is copied in once;
    what comes back from the all_reduce is in `.grad` without another copy, and no memory is held
    twice. At the end of the buffer stands one number for each parameter, 1 where this rank has a
    gradient: after the all_reduce it is above 0 where *some* rank has one. So unused parameters
    cost no message of their own.

What real systems do differently
    PyTorch's DDP does this with `gradient_as_bucket_view=True`, sends the used-parameter map as a
    message of its own, and rebuilds the buckets after the first step in the order in which the
    gradients really came.

Source: Li et al. 2020, "PyTorch Distributed", section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pedagogy.parameters import (
    FIRST_BUCKET_BYTES,
    bucket,
    check_dense,
    unflatten,
    unique_parameters,
)
from pedagogy.ranks import Group

BUCKET_BYTES = 25 * 2**20


class Bucket:
    """The gradients of some parameters, and a flag for each, in one buffer.

    **Memory** one gradient for each parameter, which is what `.grad` then points to.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        numel = sum(parameter.numel() for parameter in self.parameters)
        first = self.parameters[0]
        self.buffer = torch.zeros(
            numel + len(self.parameters), dtype=first.dtype, device=first.device
        )
        self.views = unflatten(self.buffer[:numel], self.parameters)
        self.flags = self.buffer[numel:]
        self.arrived: set[int] = set()  # the parameters whose gradient is here in this backward
        self._handle = None

    @property
    def complete(self) -> bool:
        """All gradients of this bucket have arrived."""
        return len(self.arrived) == len(self.parameters)

    def put(self, index: int) -> None:
        """The gradient of parameter `index` is in the buffer, and `.grad` is a view of it."""
        parameter, view = self.parameters[index], self.views[index]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad.detach())
            parameter.grad = view

    def start(self, group: Group) -> None:
        """The average is under way. Gradients that are not there count as zero."""
        self.flags.copy_(torch.tensor([p.grad is not None for p in self.parameters]))
        self._handle = group.all_reduce_async_(self.buffer, "mean")

    def settle(self) -> None:
        """Nothing is under way and nothing has arrived; every `.grad` is what it was."""
        if self._handle is not None:
            self._handle.wait()
        self._handle, self.arrived = None, set()

    def finish(self) -> None:
        """Every `.grad` is the mean over the ranks, or still None where no rank has a gradient."""
        self.settle()
        for parameter, view, flag in zip(
            self.parameters, self.views, self.flags.tolist(), strict=True
        ):
            if flag:
                parameter.grad = view


def make_buckets(parameters: Iterable[Tensor], bucket_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """Buckets of the trainable parameters, last parameter first; tied ones once.

    **Raises** ValueError for a limit below 1 byte, or no trainable parameter.
    """
    parameters = [p for p in unique_parameters(parameters) if p.requires_grad]
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; a bucket holds 1 byte or more")
    if not parameters:
        raise ValueError("0 of the parameters require a gradient: there is nothing to average")
    groups = bucket(parameters, bucket_bytes, min(bucket_bytes, FIRST_BUCKET_BYTES))
    return [Bucket(members) for members in groups]


@torch.no_grad()
def average_in_buckets(group: Group, buckets: Sequence[Bucket]) -> None:
    """Every `.grad` is the mean over the ranks, as by `average_gradients`; one message a bucket.

    **Bytes** 2(N-1)/N of the gradients and of one number for each parameter.
    **Raises** ValueError for a sparse gradient.
    """
    for members in buckets:
        check_dense(members.parameters)
        for index in range(len(members.parameters)):
            members.put(index)
        members.start(group)
        members.finish()
