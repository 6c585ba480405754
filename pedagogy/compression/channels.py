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
between, at once and on every machine. It costs more accuracy for each weight than connections do.

Source: Li et al. 2017, section 3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


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
    **Raises** ValueError if no channel would be left, or the layers do not fit together.
    Source: Li et al. 2017, section 3.1.
    """
    channels = convolution.out_channels
    num_kept = channels - round(fraction * channels)
    if not 1 <= num_kept <= channels:
        raise ValueError(f"{fraction} of {channels} channels: {num_kept} would be left")
    read = following.in_channels if isinstance(following, nn.Conv2d) else following.in_features
    if read % channels or (isinstance(following, nn.Conv2d) and read != channels):
        raise ValueError(f"{channels} channels are followed by a layer that reads {read}")
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


@torch.no_grad()
def _outputs(old: nn.Conv2d, kept: Tensor) -> nn.Conv2d:
    new = _like(old, old.in_channels, len(kept))
    new.weight.copy_(old.weight[kept])
    if old.bias is not None:
        new.bias.copy_(old.bias[kept])
    return new


@torch.no_grad()
def _norm(old: nn.BatchNorm2d, kept: Tensor) -> nn.BatchNorm2d:
    new = nn.BatchNorm2d(len(kept), old.eps, old.momentum, old.affine, old.track_running_stats).to(
        kept.device
    )
    for name, value in old.state_dict().items():
        new.state_dict()[name].copy_(value if value.dim() == 0 else value[kept])
    return new


@torch.no_grad()
def _inputs(
    old: nn.Conv2d | nn.Linear, kept: Tensor, numbers_a_channel: int
) -> nn.Conv2d | nn.Linear:
    """A layer that reads the kept channels only; flattened, each is several numbers."""
    if isinstance(old, nn.Conv2d):
        new = _like(old, len(kept), old.out_channels)
        new.weight.copy_(old.weight[:, kept])
    else:
        new = nn.Linear(len(kept) * numbers_a_channel, old.out_features, old.bias is not None)
        by_channel = old.weight.unflatten(1, (-1, numbers_a_channel))  # (out, channels, numbers)
        new.weight.copy_(by_channel[:, kept].flatten(1))
    if old.bias is not None:
        new.bias.copy_(old.bias)
    return new


def _like(old: nn.Conv2d, channels_in: int, channels_out: int) -> nn.Conv2d:
    return nn.Conv2d(
        channels_in,
        channels_out,
        old.kernel_size,
        old.stride,
        old.padding,
        old.dilation,
        bias=old.bias is not None,
        padding_mode=old.padding_mode,
    ).to(old.weight)
