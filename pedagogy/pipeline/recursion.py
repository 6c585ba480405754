"""The recursions that the papers state for asynchronous pipelines, run in one process.

A pipeline without a flush is not equal to one process that trains on one minibatch after the other:
its gradients come from older weights. But *which* older weights is fixed, and so the run can be
repeated without any pipeline: for each minibatch, put together the model from the versions that its
stages would have met, take the gradient there, and step from the newest weights.

    w(t+1) = w(t) - nu * grad f(versions that minibatch t met)

The ranks are held to this to the last digit. `version_of(k, stage)` says which version it was; the
three rules of the papers are below.

Sources: Harlap et al. 2018 (PipeDream, arXiv:1806.03377); Narayanan et al. 2021
(PipeDream-2BW), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

VersionOf = Callable[[int, int], int]


def stashing(num_stages: int) -> VersionOf:
    """Weight stashing: stage s (from 0) meets minibatch k with version max(k - (p - 1 - s), 0)."""
    return lambda k, stage: max(k - (num_stages - 1 - stage), 0)


def vertical_sync(num_stages: int) -> VersionOf:
    """Vertical sync: all stages meet minibatch k with the version of the first."""
    return lambda k, stage: max(k - (num_stages - 1), 0)


def two_versions(microbatches_per_batch: int) -> VersionOf:
    """2BW: micro-batch k, from 0, meets version max(floor(k / m) - 1, 0)."""
    return lambda k, stage: max(k // microbatches_per_batch - 1, 0)


def train_by_recursion(
    stages: Sequence[nn.Module],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    version_of: VersionOf,
    microbatches_per_update: int = 1,
) -> list[list[Tensor]]:
    """`stages` have been trained; the weights after 0, 1, 2, ... updates are returned.

    A weight list holds all parameters, stage by stage. Loss and optimizer as in `run_schedule`.
    """
    optimizer = make_optimizer([p for stage in stages for p in stage.parameters()])
    sizes, m = [len(target) for target in targets], microbatches_per_update
    history = [_snapshot(stages)]
    for k, (x, target) in enumerate(zip(inputs, targets, strict=True)):
        met = [_leaves(stage, history[version_of(k, s)][s]) for s, stage in enumerate(stages)]
        for stage, weights in zip(stages, met, strict=True):
            x = functional_call(stage, weights, (x,))
        first = k - k % m
        (loss(x, target) * sizes[k] / sum(sizes[first : first + m])).backward()
        for stage, weights in zip(stages, met, strict=True):
            for name, parameter in stage.named_parameters():
                gradient, had = weights[name].grad, parameter.grad
                if gradient is not None:
                    parameter.grad = gradient if had is None else had + gradient
        if k % m == m - 1:
            optimizer.step()
            optimizer.zero_grad()
            history.append(_snapshot(stages))
    return [[w for weights in version for w in weights.values()] for version in history]


def _snapshot(stages: Sequence[nn.Module]) -> list[dict[str, Tensor]]:
    return [
        {name: parameter.detach().clone() for name, parameter in stage.named_parameters()}
        for stage in stages
    ]


def _leaves(stage: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Old weights that gradients can be taken for, where the stage's parameters are trained."""
    return {
        name: weights[name].clone().requires_grad_(parameter.requires_grad)
        for name, parameter in stage.named_parameters()
    }
