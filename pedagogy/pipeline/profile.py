"""The profile that a partitioner works on: what each layer costs, measured.

Why it exists
-------------
A partition is as good as the costs it is given. Operations of equal FLOPs take unequal time, so a
partitioner should not count them: it should run a few minibatches and look at a clock. PipeDream
profiles a thousand minibatches on one machine; here a handful do.

How it works
------------
Each layer gets the output of the one before, detached: a layer's backward ends at its own input,
as a stage's backward ends where the gradient goes over the wire. The first of the runs is not
counted. The fastest of the others stands: whatever disturbs a run only ever adds time.

Layers are copied, one at a time, and the state of the random generators is put back: profiling
changes no weight, no gradient, no running average and no mask of the training that follows.

Source: Harlap et al. 2018 (PipeDream), profiling; Narayanan et al. 2019 (PipeDream).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import torch

from pedagogy.measure import restore_rng_state, rng_state
from pedagogy.pipeline.partition import LayerCost


def profile_layers(
    layers: Sequence[torch.nn.Module], inputs: torch.Tensor, repeats: int = 3
) -> list[LayerCost]:
    """The cost of each layer when they run one after the other on `inputs`.

    Seconds are of forward and backward, the fastest of `repeats` runs after one that does not
    count; activation bytes are those of the output, for the whole of `inputs`; weight bytes those
    of the parameters that need a gradient, each counted in every layer that holds it.
    **Raises** ValueError for no layer, no repeat, or an output that is not a tensor.
    """
    if not layers or repeats < 1:
        raise ValueError(f"{len(layers)} layers, {repeats} repeats: each must be 1 or more")
    generators, costs = rng_state(), []
    try:
        for index, layer in enumerate(layers):
            twin = copy.deepcopy(layer)
            runs = [_run(twin, inputs, index) for _ in range(1 + repeats)]
            inputs = runs[0][1]
            weights = [p for p in layer.parameters() if p.requires_grad]
            costs.append(
                LayerCost(
                    seconds=min(seconds for seconds, _ in runs[1:]),
                    activation_bytes=_num_bytes([inputs]),
                    weight_bytes=_num_bytes(weights),
                )
            )
    finally:
        restore_rng_state(generators)
    return costs


@torch.enable_grad()
def _run(layer: torch.nn.Module, inputs: torch.Tensor, index: int) -> tuple[float, torch.Tensor]:
    """Seconds of one forward and backward, and the output."""
    inputs = inputs.detach().requires_grad_(inputs.is_floating_point())
    inputs = inputs.clone()  # no leaf, so that a layer may work in place
    _wait_for_device(inputs)
    start = time.perf_counter()
    outputs = layer(inputs)
    if not isinstance(outputs, torch.Tensor):
        raise ValueError(
            f"layer {index} ({type(layer).__name__}) returns {type(outputs).__name__}: "
            "a layer of a pipeline takes one tensor and returns one"
        )
    if outputs.requires_grad:
        outputs.backward(torch.ones_like(outputs))
    _wait_for_device(inputs)
    return time.perf_counter() - start, outputs.detach()


def _wait_for_device(tensor: torch.Tensor) -> None:
    """A GPU computes after the call returns; the clock must not stop before it has."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _num_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
