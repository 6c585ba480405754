"""Chapter 01: averaging over ranks, and buckets.

All-reduces stand in `chapter01_rings` and `chapter01_halving`, a wrapper of one's own in
`chapter01_overlap`, the predictions in `chapter01_predictions`, asynchronous training in
`chapter01_asynchronous`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group

# --- averaging -------------------------------------------------------------------------------


def average_over_ranks(group: Group, parameters: Iterable[Tensor]) -> None:
    """Every parameter's `.grad` is the mean over the ranks."""
    for parameter in parameters:
        parameter.grad = group.all_reduce(parameter.grad) / group.size


def _summed(group, parameters):
    for parameter in parameters:
        parameter.grad = group.all_reduce(parameter.grad)


def _averaged_weights(group, parameters):
    for parameter in parameters:
        parameter.data = group.all_reduce(parameter.data) / group.size


def _result_lost(group, parameters):
    for parameter in parameters:
        group.all_reduce(parameter.grad)  # a new tensor, which nobody keeps
        parameter.grad /= group.size


def _divided_by_parameters(group, parameters):
    for parameter in parameters:
        parameter.grad = group.all_reduce(parameter.grad) / len(parameters)


def _only_rank_0(group, parameters):
    for parameter in parameters:
        total = group.all_reduce(parameter.grad)
        if group.rank == 0:
            parameter.grad = total / group.size


def _parameters(rank: int) -> tuple:
    """A case: three parameters and gradients, others on each rank, so that no mix-up is hidden."""
    draw = torch.Generator().manual_seed(rank)
    parameters = [torch.full(shape, 2.0 + rank, requires_grad=True) for shape in ((3, 2), (3,), ())]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    return (parameters,)


def _averaged(function, group, parameters):
    function(group, parameters)
    return {
        "gradients": [parameter.grad for parameter in parameters],
        "weights": [parameter.detach() for parameter in parameters],
    }


AVERAGE = Exercise(
    name="average_over_ranks",
    title="The second of the three steps",
    chapter="01",
    reference=average_over_ranks,
    cases=[_parameters],
    labels=["three parameters"],
    observe=_averaged,
    ranks=2,
    mistakes=[
        (
            _summed,
            "The gradients are summed, not averaged: divide by group.size. Training would go on, "
            "with a learning rate that grows with the number of ranks.",
        ),
        (
            _averaged_weights,
            "This averages the weights; the gradients stay each rank's own, and so will the "
            "optimizer states that are made of them.",
        ),
        (
            _result_lost,
            "all_reduce returns a new tensor and leaves its argument alone: keep what it returns.",
        ),
        (
            _divided_by_parameters,
            "The sum has one term for each rank, so divide by group.size, not by the number of "
            "parameters.",
        ),
        (
            _only_rank_0,
            "Only rank 0 keeps the mean. There is no master: every rank steps its own replica, so "
            "every rank needs the mean.",
        ),
    ],
    hints=[
        "group.all_reduce(x) returns the sum of the ranks' tensors, on every rank.",
        "A mean is a sum divided by group.size; write it back to parameter.grad.",
    ],
)

# --- buckets ---------------------------------------------------------------------------------


def cut_into_buckets(sizes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """The numbers of the parameters in buckets: last first; one closes at `bucket_bytes`."""
    buckets: list[list[int]] = []
    held = bucket_bytes  # so that the first parameter opens a bucket
    for number in reversed(range(len(sizes))):
        if held >= bucket_bytes:
            buckets.append([])
            held = 0
        buckets[-1].append(number)
        held += sizes[number]
    return buckets


def _first_parameter_first(sizes, bucket_bytes):
    mirrored = cut_into_buckets(sizes[::-1], bucket_bytes)
    return [[len(sizes) - 1 - number for number in one] for one in mirrored]


def _last_bucket_lost(sizes, bucket_bytes):
    buckets, held, open_one = [], 0, []
    for number in reversed(range(len(sizes))):
        open_one.append(number)
        held += sizes[number]
        if held >= bucket_bytes:
            buckets.append(open_one)
            held, open_one = 0, []
    return buckets


def _never_above(sizes, bucket_bytes):
    buckets, held = [[]], 0
    for number in reversed(range(len(sizes))):
        if buckets[-1] and held + sizes[number] > bucket_bytes:
            buckets.append([])
            held = 0
        buckets[-1].append(number)
        held += sizes[number]
    return buckets


def _an_empty_one_at_the_end(sizes, bucket_bytes):
    buckets, held = [[]], 0
    for number in reversed(range(len(sizes))):
        buckets[-1].append(number)
        held += sizes[number]
        if held >= bucket_bytes:
            buckets.append([])
            held = 0
    return buckets


BUCKETS = Exercise(
    name="cut_into_buckets",
    title="Which gradients travel together",
    chapter="01",
    reference=cut_into_buckets,
    cases=[
        ([400, 20, 120, 12], 100),
        ([50, 50, 50, 50], 100),
        ([10, 10, 10], 1000),
        ([30, 80, 30, 80, 30], 60),
    ],
    labels=[
        "[400, 20, 120, 12] with a limit of 100",
        "[50, 50, 50, 50] with a limit of 100",
        "[10, 10, 10] with a limit of 1000",
        "[30, 80, 30, 80, 30] with a limit of 60",
    ],
    mistakes=[
        (
            _first_parameter_first,
            "Backward makes the gradients of the last parameter first: buckets that start with "
            "parameter 0 can only leave when backward has ended.",
        ),
        (
            _last_bucket_lost,
            "What remains when the parameters are used up is a bucket too, although it is not "
            "full; its gradients would never be averaged.",
        ),
        (
            _never_above,
            "A bucket closes once it holds bucket_bytes or more; this one closes before a "
            "parameter would carry it over, which makes more and smaller messages.",
        ),
        (
            _an_empty_one_at_the_end,
            "There is an empty bucket at the end: open a new one only when a parameter needs it.",
        ),
    ],
    hints=[
        "Go through reversed(range(len(sizes))).",
        "Keep the bytes of the open bucket. Before a parameter enters, ask whether the bucket is "
        "full already; if so, open a new one.",
    ],
)

register(AVERAGE, BUCKETS)
