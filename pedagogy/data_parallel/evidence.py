"""What a run leaves as evidence, and whether it equals one process.

Outputs, gradients and weights after several steps: a wrong average shows in the first, a wrong
optimizer state from the second step on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.measure import all_close
from pedagogy.parameters import flatten, unique_parameters


class Evidence(NamedTuple):
    """What the last step left: the outputs of this rank's part, and all gradients and weights."""

    outputs: Tensor
    gradients: Tensor  # flat
    weights: Tensor  # flat


def evidence(outputs: Tensor, module: nn.Module) -> Evidence:
    """Outputs, gradients and weights, to be taken after the optimizer's step.

    **Raises** ValueError where a trainable parameter has no gradient.
    """
    parameters = [p for p in unique_parameters(module.parameters()) if p.requires_grad]
    missing = sum(parameter.grad is None for parameter in parameters)
    if missing:
        raise ValueError(f"{missing} of {len(parameters)} parameters have no gradient")
    gradients = flatten([parameter.grad for parameter in parameters])
    return Evidence(outputs.detach().clone(), gradients, flatten(parameters))


def equals_one_process(
    ranks: Iterable[Evidence], alone: Evidence, tolerance: float = 1e-10
) -> bool:
    """Whether the ranks' outputs, one behind the other, and each rank's rest are those of `alone`.

    Two tensors are equal where no element is off by more than `tolerance` of the largest one.
    """
    ranks = list(ranks)
    pairs = [(torch.cat([one.outputs for one in ranks]), alone.outputs)]
    pairs += [(one.gradients, alone.gradients) for one in ranks]
    pairs += [(one.weights, alone.weights) for one in ranks]
    return all(all_close({"": mine}, {"": right}, tolerance) for mine, right in pairs)
