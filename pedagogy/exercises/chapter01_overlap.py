"""Chapter 01, the last exercise: a wrapper that averages while backward is still running."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register
from pedagogy.parameters import bucket, flatten, unflatten
from pedagogy.ranks import Group
from pedagogy.workloads import MLP

STEPS, BUCKET_BYTES = 3, 500
NUM_BUCKETS = 3


def replicate(group: Group, module: nn.Module, bucket_bytes: int) -> None:
    """From now on each `backward()` through `module` leaves gradients averaged over the ranks."""
    for parameter in module.parameters():
        group.broadcast_(parameter.data)
    buckets = bucket(module.parameters(), bucket_bytes)
    missing = [len(members) for members in buckets]  # gradients that have not come yet
    home = {parameter: number for number, members in enumerate(buckets) for parameter in members}
    started: list[tuple] = []

    def on_gradient(parameter: Tensor) -> None:
        number = home[parameter]
        missing[number] -= 1
        if missing[number] == 0:
            flat = flatten([member.grad for member in buckets[number]])
            started.append((buckets[number], flat, group.all_reduce_async_(flat, "mean")))
        if len(started) == len(buckets):  # this was the last gradient of this backward
            for members, flat, handle in started:
                handle.wait()
                for member, mean in zip(members, unflatten(flat, members), strict=True):
                    member.grad.copy_(mean)
            started.clear()
            missing[:] = [len(members) for members in buckets]

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(on_gradient)


def _no_broadcast(group, module, bucket_bytes):
    kept = [parameter.detach().clone() for parameter in module.parameters()]
    replicate(group, module, bucket_bytes)
    for parameter, own in zip(module.parameters(), kept, strict=True):
        parameter.data.copy_(own)


def _summed(group, module, bucket_bytes):
    replicate(group, module, bucket_bytes)
    for parameter in module.parameters():  # runs after the hook that replicate has registered
        parameter.register_hook(lambda gradient: gradient * group.size)


def _never_copied_back(group, module, bucket_bytes):
    for parameter in module.parameters():  # what is averaged and thrown away might as well not be
        group.broadcast_(parameter.data)


def _counts_never_reset(group, module, bucket_bytes):
    _never_copied_back(group, module, bucket_bytes)
    done = set()

    def first_time(parameter: Tensor) -> None:
        if parameter not in done:
            group.all_reduce_(parameter.grad, "mean")
        done.add(parameter)

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(first_time)


def _one_bucket(group, module, bucket_bytes):
    replicate(group, module, 10**9)


def _one_for_each_parameter(group, module, bucket_bytes):
    replicate(group, module, 1)


def _arguments(rank: int) -> tuple:
    """A case: a small MLP that starts differently on each rank, and the size of a bucket."""
    state = torch.get_rng_state()
    torch.manual_seed(rank)
    model = MLP((64, 16, 12, 10))
    torch.set_rng_state(state)
    return model, BUCKET_BYTES


def _trained(function, group, model, bucket_bytes):
    """Three steps with the function's wrapper; notes when backward reaches the first layer."""
    function(group, model, bucket_bytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.layers[0].register_forward_hook(lambda layer, inputs, output: _watch(group, output))
    gradients = []
    for step in range(STEPS):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(10 * step + group.rank)
        model(torch.randn(8, 64, generator=draw)).square().mean().backward()
        gradients += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    return {"gradients": gradients, "weights": weights}


def _watch(group: Group, output: Tensor) -> None:
    def reached(_: Tensor) -> None:
        with group.span("first layer"):
            pass

    output.register_hook(reached)


def _few_messages(function, outcome) -> str | None:
    sent = len(outcome.trace.of("all_reduce", rank=0))
    if sent <= STEPS * NUM_BUCKETS:
        return None
    return f"{sent} all_reduces were made in {STEPS} steps, and {STEPS * NUM_BUCKETS} are enough"


def _overlapped(function, outcome) -> str | None:
    reached = outcome.trace.of("first layer", rank=0)[0].start
    if outcome.trace.of("all_reduce", rank=0)[0].start < reached:
        return None
    return "no all_reduce starts before backward has reached the first layer"


REPLICATE = Exercise(
    name="replicate",
    title="A DataParallel of your own",
    chapter="01",
    reference=replicate,
    cases=[_arguments],
    labels=["three steps of a small MLP"],
    observe=_trained,
    ranks=2,
    targets=[_few_messages, _overlapped],
    mistakes=[
        (
            _no_broadcast,
            "The gradients are averaged, but the replicas start from different weights: broadcast "
            "rank 0's parameters first.",
        ),
        (
            _summed,
            "The gradients are summed, not averaged: use op='mean', or divide by group.size.",
        ),
        (
            _never_copied_back,
            "After backward the gradients are still each rank's own: the bucket is a copy, so "
            "bring its averaged pieces back into every .grad after wait().",
        ),
        (
            _counts_never_reset,
            "The first backward is right and later ones average nothing: count again from the "
            "start when a backward has ended.",
        ),
        (
            _one_bucket,
            "Everything is in one bucket, which is complete only when backward has ended: nothing "
            "overlaps.",
        ),
        (
            _one_for_each_parameter,
            "Each parameter is a bucket of its own, so each pays the price of a message.",
        ),
    ],
    hints=[
        "pedagogy.parameters.bucket(parameters, bucket_bytes) makes the buckets, last parameter "
        "first; flatten and unflatten turn a bucket into one tensor and back.",
        "parameter.register_post_accumulate_grad_hook(f) calls f(parameter) right after its "
        "gradient was accumulated: count how many of a bucket have come.",
        "When the last one of a bucket has come, start group.all_reduce_async_(flat, 'mean') and "
        "keep the handle. When all buckets have started, wait for each and copy the means back; "
        "then reset the counts for the next backward.",
    ],
)

register(REPLICATE)
