"""Many small tensors as one long one, and back.

Why it exists
-------------
A message costs a fixed time however small it is, and a model has hundreds of small tensors.
Copied one behind the other into a flat buffer they travel as one message. The way back copies
nothing: views into the buffer have the old shapes, so what is written to the buffer (a sum that
arrives, say) is at once in every view.

What it costs
-------------
`flatten` allocates the sum of the sizes and copies once. `unflatten` allocates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """A new 1-D tensor that holds all values, in order, whatever the strides were.

    **Shapes** any -> `(sum of numel,)`. Part of no graph: values, not history.
    **Raises** ValueError if there is no tensor, or dtypes or devices differ.
    """
    if not tensors:
        raise ValueError("no tensors to flatten: at least one is needed, its dtype is the result's")
    kinds = {(str(tensor.dtype), str(tensor.device)) for tensor in tensors}
    if len(kinds) > 1:
        raise ValueError(
            f"tensors of {len(kinds)} kinds, {sorted(kinds)}: one buffer holds one dtype on one "
            "device; put them into several buckets"
        )
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views into `flat` with the shapes of `like`, in order; nothing is copied.

    **Shapes** `(sum of numel,)` -> the shapes of `like`.
    **Raises** ValueError if `flat` does not hold exactly their number of values.
    """
    sizes = [tensor.numel() for tensor in like]
    if flat.dim() != 1 or flat.numel() != sum(sizes):
        raise ValueError(
            f"a buffer of shape {tuple(flat.shape)} for {len(sizes)} tensors: "
            f"needs one dimension and {sum(sizes)} values"
        )
    pieces = flat.split(sizes) if sizes else []
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def unique_parameters(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Each tensor once, in order: a tied parameter is one parameter with two names."""
    return list({id(parameter): parameter for parameter in parameters}.values())
