"""Whether numbers by name are those of another run, to a share of the largest of them.

One rule for all chapters: an element may be off by `tolerance` times the largest element of its
kind. A limit for each tensor alone would ask more of a gradient that is nearly zero than rounding
can give.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def all_close(mine: Mapping[str, Tensor], right: Mapping[str, Tensor], tolerance: float) -> bool:
    """Whether each tensor of `mine` is the one of that name in `right`, of the same shape.

    `right` may hold more: a rank has a part of the model. No element may be off by more than
    `tolerance` of the largest element in all of `right`.
    """
    largest = max(tensor.abs().max() for tensor in right.values())
    return all(
        mine[name].shape == right[name].shape
        and bool((mine[name] - right[name]).abs().max() <= tolerance * largest)
        for name in mine
    )
