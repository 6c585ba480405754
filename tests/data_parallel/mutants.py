"""Data parallelism as it is got wrong.

Mutants of `average_gradients` have its signature, `mutant(group, parameters)`; `after_backward`
makes a technique of one. Techniques have the signature of `tests/equality.py`,
`technique(group, model, optimizer) -> (model, optimizer, after_backward)`. The equality check must
notice every one of them, and an exercise can recognise an answer by what they compute.
"""

import torch

from pedagogy.data_parallel import DataParallel, average_gradients, broadcast_parameters
from pedagogy.data_parallel import data_parallel as implementation
from pedagogy.data_parallel.buckets import Bucket
from pedagogy.parameters import unique_parameters


def nothing():
    """What there is to do after backward, where there is nothing to do."""


def after_backward(average):
    """The technique that broadcasts first and calls `average(group, parameters)` after backward."""

    def technique(group, model, optimizer):
        broadcast_parameters(group, model)
        named = model.named_parameters(remove_duplicate=False)
        parameters = [parameter for _, parameter in named]  # a tied one under each of its names
        return model, optimizer, lambda: average(group, parameters)

    technique.__name__ = average.__name__
    return technique


# --- mutants of average_gradients -------------------------------------------------------------


def sums(group, parameters):
    """Gradients are summed, not averaged."""
    for parameter in unique_parameters(parameters):
        if parameter.grad is not None:
            group.all_reduce_(parameter.grad, "sum")


def divides_twice(group, parameters):
    """The mean is divided by the number of ranks once more."""
    average_gradients(group, parameters)
    for parameter in unique_parameters(parameters):
        if parameter.grad is not None:
            parameter.grad /= group.size


def does_nothing(group, parameters):
    """Every rank trains alone."""


def sums_tied_parameters_twice(group, parameters):
    """A tied parameter is summed once for each of its names, and divided once."""
    for parameter in parameters:
        if parameter.grad is not None:
            group.all_reduce_(parameter.grad, "sum")
    for parameter in unique_parameters(parameters):
        if parameter.grad is not None:
            parameter.grad /= group.size


def fills_unused_with_zero(group, parameters):
    """Parameters without any gradient get one of zeros: weight decay and moments then move them."""
    for parameter in unique_parameters(parameters):
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            group.all_reduce_(parameter.grad, "mean")


def averages_a_copy(group, parameters):
    """The average is computed, and `.grad` keeps the rank's own."""
    for parameter in unique_parameters(parameters):
        if parameter.grad is not None:
            group.all_reduce(parameter.grad, "mean")


def averages_weights(group, parameters):
    """The weights are averaged instead of the gradients."""
    with torch.no_grad():
        for parameter in unique_parameters(parameters):
            group.all_reduce_(parameter, "mean")


AVERAGES = [
    sums,
    divides_twice,
    does_nothing,
    sums_tied_parameters_twice,
    fills_unused_with_zero,
    averages_a_copy,
    averages_weights,
]

# --- right techniques, in order of increasing complexity --------------------------------------


naive = after_backward(average_gradients)


def overlapped(group, model, optimizer):
    """Buckets of 300 bytes, so that even a small model has several."""
    return DataParallel(group, model, bucket_bytes=300), optimizer, nothing


def overlapped_in_one_bucket(group, model, optimizer):
    """The default: 25 MiB."""
    return DataParallel(group, model), optimizer, nothing


# --- wrong techniques -------------------------------------------------------------------------


def no_broadcast(group, model, optimizer):
    """The replicas start from different weights."""
    return model, optimizer, lambda: average_gradients(group, model.parameters())


class AveragesWeights:
    """Steps with the rank's own gradient and averages the weights afterwards."""

    def __init__(self, group, model, optimizer):
        self.group, self.model, self.optimizer = group, model, optimizer
        self.zero_grad = optimizer.zero_grad

    @torch.no_grad()
    def step(self):
        """Step first, average then: equal to averaging gradients for plain SGD only."""
        self.optimizer.step()
        for parameter in self.model.parameters():
            self.group.all_reduce_(parameter, "mean")


def averaged_weights(group, model, optimizer):
    """The weights are averaged instead of the gradients; each rank keeps an optimizer state."""
    broadcast_parameters(group, model)
    return model, AveragesWeights(group, model, optimizer), nothing


def averaged_after_the_step(group, model, optimizer):
    """The average comes one call too late: after the optimizer has stepped."""
    broadcast_parameters(group, model)

    class Late:
        zero_grad = staticmethod(optimizer.zero_grad)

        @staticmethod
        def step():
            optimizer.step()
            average_gradients(group, model.parameters())

    return model, Late(), nothing


class UnflushedDataParallel(DataParallel):
    """Buckets that are not complete at the end of backward are forgotten."""

    @torch.no_grad()
    def _end_of_backward(self):
        for members in self.buckets[: self._next]:
            members.finish()
        for members in self.buckets:
            members.arrived.clear()
        self._next, self._in_backward = 0, False


def unflushed_bucket(group, model, optimizer):
    """The bucket with the unused parameter never leaves, nor do those behind it."""
    return UnflushedDataParallel(group, model, bucket_bytes=300), optimizer, nothing


class UnwaitedBucket(Bucket):
    """The average is started and its result is not waited for before the optimizer steps."""

    def start(self, group):
        """Send a copy; `.grad` keeps the rank's own gradient."""
        self.flags.fill_(1)
        self.sent = self.buffer.clone()
        self._handle = group.all_reduce_async_(self.sent, "mean")

    def finish(self):
        """Wait, and do not copy back."""
        self._handle.wait()
        self.arrived = set()


def result_not_copied_back(group, model, optimizer):
    """The bucket is averaged, but `.grad` is not a view of it."""
    wrapped = implementation.DataParallel(group, model, bucket_bytes=300)
    for members in wrapped.buckets:
        members.__class__ = UnwaitedBucket
    return wrapped, optimizer, nothing


MUTANTS = [
    *map(after_backward, AVERAGES),
    no_broadcast,
    averaged_weights,
    averaged_after_the_step,
    unflushed_bucket,
    result_not_copied_back,
]
