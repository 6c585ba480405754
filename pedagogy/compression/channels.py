"""Pruning channels: the layer really becomes smaller, and so does the one that reads it.

Why it exists
-------------
A zero in a weight saves neither time nor memory while it stands in a full tensor. A whole output
channel can be taken out: its filter, its bias, its place in BatchNorm, and in the next layer all
the weights that read it. What is left is an ordinary, smaller network.

Which channels
--------------
Those whose filters have the least sum of magnitudes. They are chosen before the next layer is
looked at; that layer only follows. (Feature maps that a residual sum adds together must lose the
same channels; this file is for chains.)

What it saves
-------------
Halving the channels of every layer of a chain quarters the weights and the FLOPs of the layers
between, at once and on every machine. It is a coarser choice than that of single connections: a
channel takes good weights along with bad ones.

Source: Li et al. 2017, section 3.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import Tensor, nn

from pedagogy.compression.checks import check_fraction, check_layer, check_weights


class Shrunk(NamedTuple):
    """What `prune_channels` returns: new modules, and which channels they have."""

    convolution: nn.Conv2d
    norm: nn.BatchNorm2d | None
    following: nn.Conv2d | nn.Linear
    kept: Tensor


def prune_channels(
    convolution: nn.Conv2d,
    following: nn.Conv2d | nn.Linear,
    fraction: float,
    norm: nn.BatchNorm2d | None = None,
) -> Shrunk:
    """The layers without the round(fraction out) filters of least sum of magnitudes.

    `following` reads the channels, as a convolution or, flattened or averaged, as a linear layer;
    `norm` is a BatchNorm between the two. The modules given are left as they are.
    **Raises** ValueError for other layers, a fraction outside 0 .. 1, weights that are not
    finite, if no channel would be left, or the layers do not fit together.
    Source: Li et al. 2017, section 3.1.
    """
    check_layer(convolution, nn.Conv2d)
    check_layer(following, nn.Conv2d, nn.Linear)
    check_fraction("fraction", fraction)
    check_weights(convolution.weight)
    channels = convolution.out_channels
    num_kept = channels - round(fraction * channels)
    if not num_kept:
        raise ValueError(f"{fraction} of {channels} channels: none would be left")
    read = following.in_channels if isinstance(following, nn.Conv2d) else following.in_features
    if read % channels or (isinstance(following, nn.Conv2d) and read != channels):
        raise ValueError(f"{channels} channels are followed by a layer that reads {read}")
    if norm is not None and norm.num_features != channels:
        raise ValueError(f"{channels} channels are followed by a norm of {norm.num_features}")
    if convolution.groups != 1 or getattr(following, "groups", 1) != 1:
        raise ValueError("layers of several groups are not pruned by channels")
    sizes = convolution.weight.detach().abs().sum(dim=(1, 2, 3))
    kept = sizes.argsort(descending=True, stable=True)[:num_kept].sort().values
    return Shrunk(
        _outputs(convolution, kept),
        None if norm is None else _norm(norm, kept),
        _inputs(following, kept, read // channels),
        kept,
    )


def _outputs(old: nn.Conv2d, kept: Tensor) -> nn.Conv2d:
    new = _with(old, weight=old.weight[kept], bias=None if old.bias is None else old.bias[kept])
    new.out_channels = len(kept)
    return new


def _norm(old: nn.BatchNorm2d, kept: Tensor) -> nn.BatchNorm2d:
    values = {name: value for name, value in old.state_dict().items() if value.dim()}
    new = _with(old, **{name: value[kept] for name, value in values.items()})
    new.num_features = len(kept)
    return new


def _inputs(
    old: nn.Conv2d | nn.Linear, kept: Tensor, numbers_a_channel: int
) -> nn.Conv2d | nn.Linear:
    """A layer that reads the kept channels only; flattened, each is several numbers."""
    if isinstance(old, nn.Conv2d):
        new = _with(old, weight=old.weight[:, kept])
        new.in_channels = len(kept)
        return new
    by_channel = old.weight.unflatten(1, (-1, numbers_a_channel))  # (out, channels, numbers)
    new = _with(old, weight=by_channel[:, kept].flatten(1))
    new.in_features = len(kept) * numbers_a_channel
    return new


def _with(old: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """A copy with other tensors; dtype, device, mode and what is frozen stay."""
    new = copy.deepcopy(old)
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(new, name, _as(getattr(old, name), tensor.detach().clone()))
    return new


def _as(like: Tensor, tensor: Tensor) -> Tensor:
    if isinstance(like, nn.Parameter):
        return nn.Parameter(tensor, requires_grad=like.requires_grad)
    return tensor
