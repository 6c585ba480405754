"""Chapter 08: what is asked before anything runs again."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as checkpoint_of_pytorch

from pedagogy.costs.recompute import least_units
from pedagogy.exercises.chapter08_cuts import best_cuts, peak_of
from pedagogy.exercises.chapter08_policies import ALEXNET
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.measure import count_flops
from pedagogy.recompute import CheckpointFunction, checkpoint, optimal_forwards, plan


@cache
def _batches_counted() -> list[int]:
    counted = []
    for run in (partial(checkpoint_of_pytorch, use_reentrant=False), checkpoint):
        norm = nn.BatchNorm1d(2)
        run(norm, torch.arange(6.0).view(3, 2).requires_grad_()).square().sum().backward()
        counted.append(int(norm.num_batches_tracked))
    return counted


BATCHES = Prediction(
    name="batches_that_batchnorm_counts",
    chapter="08",
    question="BatchNorm inside a checkpoint, one training step. What is its num_batches_tracked "
    "afterwards? [torch.utils.checkpoint, ours]",
    key=_batches_counted,
    tolerance=0.0,
    mistakes=[
        ([1, 1], "the batch passes twice, and PyTorch's does nothing about buffers."),
        ([2, 2], "ours puts back the buffers that the second run changed."),
        ([1, 2], "the other way round."),
    ],
    because="The same batch passes twice; its running mean and variance move twice too.",
)


@cache
def _share_of_flops() -> float:
    layers = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(2)))
    x = torch.ones(4, 8, requires_grad=True)
    plain = count_flops(lambda: layers(x).sum().backward())
    again = count_flops(lambda: CheckpointFunction.apply(layers, x).sum().backward())
    return again / plain - 1


FLOPS = Prediction(
    name="extra_flops_of_recomputing_all",
    chapter="08",
    question="Backward costs twice what forward costs. All layers are run again once. How many "
    "FLOPs more is that, as a share of the step without?",
    key=_share_of_flops,
    mistakes=[
        (1.0, "forward runs twice, but it is one third of the step."),
        (0.5, "that is relative to backward; the step is forward and backward."),
        (
            4 / 3,
            "that is the longer step over the other; the share that it has more was asked for.",
        ),
        (0.25, "that is relative to the longer step, 4 parts; the step without has 3."),
    ],
    because="3 parts become 4.",
)

NUM_LAYERS = 64

SQRT = Prediction(
    name="sqrt_segments",
    chapter="08",
    question="64 equal layers in k equal segments: k inputs are kept, and 64/k activations while a "
    "segment runs backward. What is the least sum?",
    key=lambda: least_units(NUM_LAYERS),
    tolerance=0.0,
    unit="activations",
    mistakes=[
        (8, "that is k, or 64/k: both are there at once."),
        (64, "that is how many there are without segments."),
        (20, "that is with 4 segments or 16; 8 are better."),
        (15, "the two terms' sum is one more; the next question counts the first input once."),
    ],
    because="k = 8: 8 + 8, which is 2 sqrt(64).",
)

UNEQUAL = Prediction(
    name="unequal_segments",
    chapter="08",
    question="The same 64 layers, and the input of the segment that runs counted once: 8 segments "
    "of 8 need 15. While a segment runs backward, the inputs of later ones are gone. What is least "
    "if lengths may differ?",
    key=lambda: peak_of(best_cuts([1] * NUM_LAYERS), [1] * NUM_LAYERS),
    tolerance=0.0,
    unit="activations",
    mistakes=[
        (15, "an early segment runs backward while few inputs are kept: it may be longer."),
        (8, "8 + 7 + ... + 1 = 36 layers: not enough for 64."),
        (10, "10 + 9 + ... + 1 = 55 layers: not enough for 64."),
        (12, "with 11, lengths 11, 10, 9, ..., 1 would be enough for 66 layers."),
    ],
    because="11 + 10 + 9 + ... + 1 = 66: s(s + 1)/2 >= n, about sqrt(2n) instead of 2 sqrt(n).",
)

BINOMIAL = Prediction(
    name="binomial_forwards",
    chapter="08",
    question="10 layers and 3 slots for kept activations, of which the input takes one. How many "
    "forwards of single layers beyond the first pass, at least?",
    key=lambda: optimal_forwards(10, 3),
    tolerance=0.0,
    unit="forwards",
    mistakes=[
        (45, "that is with 1 slot: from the input for each layer, 9 + 8 + ... + 1."),
        (20, "that is with 2 slots."),
        (10, "each layer once again takes more slots; with 3 and each once, 4 layers can be done."),
        (25, "the first pass is not counted."),
    ],
    because="beta(3, 2) = 10: no layer runs more than twice again, and 2 x 10 - C(5, 4) = 15.",
)

MEMORY = Prediction(
    name="memory_centric_forwards",
    chapter="08",
    question="A segment of 6 cheap layers behind a kept one, memory-centric: how many extra "
    "forwards?",
    key=lambda: plan([9, *[1] * 6], [1] * 7, "memory", kept=[0]).extra_forwards,
    tolerance=0.0,
    unit="forwards",
    mistakes=[
        (6, "that is speed-centric, which keeps the segment while it is used."),
        (15, "5 + 4 + ... + 1: the last layer's own output is needed too, 6 layers."),
        (36, "to layer i lead i layers, not always all 6."),
    ],
    because="6 + 5 + 4 + 3 + 2 + 1.",
)


def _of_alexnet(policy: str) -> int:
    sizes, kept, input_size = ALEXNET
    layers = [layer for layer, stays in enumerate(kept) if stays]
    return plan([1] * len(sizes), sizes, policy, kept=layers, input_size=input_size).extra_forwards


ALEX = Prediction(
    name="alexnet_forwards",
    chapter="08",
    question="AlexNet keeps convolutions and fully connected layers; the others are segments of 3, "
    "3, 1, 1, 2, 2 and 2. How many extra forwards? [speed, memory]",
    key=lambda: [_of_alexnet("speed"), _of_alexnet("memory")],
    tolerance=0.0,
    mistakes=[
        ([14, 32], "memory-centric: n(n + 1)/2, not n^2, for a segment of n."),
        ([14, 9], "memory-centric: n(n + 1)/2, not n(n - 1)/2, for a segment of n."),
        ([14, 14], "memory-centric keeps nothing on the way, and runs a layer more than once."),
        ([7, 23], "each dropped layer runs again, not each segment once."),
        ([23, 14], "the other way round."),
    ],
    because="3 + 3 + 1 + 1 + 2 + 2 + 2, and 6 + 6 + 1 + 1 + 3 + 3 + 3. Cost-aware is between them.",
)

register(BATCHES, FLOPS, SQRT, UNEQUAL, BINOMIAL, MEMORY, ALEX)
