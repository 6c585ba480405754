"""What cannot be compressed: a tensor without numbers, or one whose numbers are none.

NaN is neither small nor large, so that a sorted list of magnitudes has no place for it, a mean with
it is NaN, and an integer made of it is anything. Training that has gone wrong is said to be so
here, before its weights are turned into finite ones.
"""

from __future__ import annotations

from torch import Tensor, nn


def check_weights(weight: Tensor) -> None:
    """**Raises** ValueError for a tensor without numbers, or with some that are not finite."""
    num = weight.numel()
    strange = num - int(weight.detach().isfinite().sum())
    if strange or not num:
        raise ValueError(f"{strange} of {num} weights are not finite: at least 1, and all finite")


def check_fraction(name: str, value: float) -> None:
    """**Raises** ValueError for a value outside 0 .. 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}: must be from 0 to 1")


def check_layer(layer: nn.Module, *kinds: type[nn.Module]) -> None:
    """**Raises** ValueError for a layer of another kind."""
    if not isinstance(layer, kinds):
        asked = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"a layer of type {type(layer).__name__}: must be {asked}")
