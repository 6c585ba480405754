"""Pruning connections: the smallest weights become zero, and stay zero.

Why it exists
-------------
After training most weights are small, and a network hardly notices when they are removed; it
notices less if it may train on with those that are left, and less still if it is done in steps.

How it works
------------
[1] *Mask.* The round(s n) weights of least magnitude get a 0, all others a 1. Exactly so many, also
    where magnitudes are equal. What was pruned before is pruned first.
[2] *Hold.* Multiplying the gradient by the mask is not enough. Momentum and Adam's moments remember
    gradients from before, and move a pruned weight although its gradient is zero. So the mask is
    applied to the *weight*, after each step.
[3] *Iterate.* Sparsity rises in steps, with training between them.

What it saves
-------------
While it trains: nothing. The zeros are stored and multiplied like any other number, gradient and
moments have their full size, and the mask comes on top. In a file: what `files` makes of it.

Whole kernels: `prune_kernels` removes k by k slices of a convolution, which a program can skip more
easily than single numbers; the tensor's shape is still the same. What makes a layer smaller is
`channels`.

Sources: Han et al. 2015, section 3; Zhu and Gupta 2017 for the rising schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from pedagogy.compression.checks import check_fraction, check_layer, check_weights


def magnitude_mask(weight: Tensor, sparsity: float, mask: Tensor | None = None) -> Tensor:
    """1 for what is kept, 0 for the round(sparsity n) weights of least magnitude.

    `mask`: an earlier one; its zeros are among the new ones, as far as there is room.
    **Shapes** as the weight, and its dtype. **Raises** ValueError for a sparsity outside 0 .. 1,
    a mask of another shape, a weight without numbers or with some that are not finite.
    Source: Han et al. 2015, section 3.1.
    """
    check_fraction("sparsity", sparsity)
    check_weights(weight)
    if mask is not None and mask.shape != weight.shape:
        raise ValueError(f"a mask of {tuple(mask.shape)} for a weight of {tuple(weight.shape)}")
    magnitude = weight.detach().abs().flatten()
    if mask is not None:
        magnitude = torch.where(mask.flatten() == 0, -1.0, magnitude)
    order = magnitude.argsort(stable=True)
    kept = torch.ones_like(magnitude)
    kept[order[: round(sparsity * weight.numel())]] = 0
    return kept.view_as(weight)


def prune_kernels(convolution: nn.Conv2d, fraction: float) -> Tensor:
    """The k by k kernels with the least sum of magnitudes become zero; returns the mask.

    **Shapes** weight and mask `(out, in, k, k)`; round(fraction out in) kernels are zero.
    **Raises** ValueError for a layer that is no convolution, or a fraction outside 0 .. 1.
    """
    check_layer(convolution, nn.Conv2d)
    weight = convolution.weight
    sizes = weight.detach().abs().sum(dim=(2, 3))  # (out, in)
    mask = magnitude_mask(sizes, fraction)[:, :, None, None].expand_as(weight).clone()
    with torch.no_grad():
        weight.mul_(mask)
    return mask


class Masks:
    """Keeps pruned weights at zero: call `apply` after each step of the optimizer.

    `of`: mask by parameter. **Memory** one number for each weight that has a mask.
    """

    def __init__(self, of: Mapping[nn.Parameter, Tensor] | None = None) -> None:
        self.of = dict(of or {})

    def prune(self, parameters: Iterable[nn.Parameter], sparsity: float) -> None:
        """Each of the parameters has this sparsity from now on."""
        for parameter in parameters:
            self.of[parameter] = magnitude_mask(parameter, sparsity, self.of.get(parameter))
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Pruned weights are zero."""
        for parameter, mask in self.of.items():
            parameter.masked_fill_(mask == 0, 0)  # NaN times 0 would be NaN

    @property
    def sparsity(self) -> float:
        """The share of zeros, over all masks; 0 without a mask."""
        zeros = sum(int((mask == 0).sum()) for mask in self.of.values())
        return zeros / max(sum(mask.numel() for mask in self.of.values()), 1)


def rising_sparsity(final: float, num_times: int) -> list[float]:
    """s_i = s (1 - (1 - i/n)^3): much at first, when much is superfluous, little at the end.

    **Raises** ValueError without a time, or for a sparsity outside 0 .. 1.
    Source: Zhu and Gupta 2017, equation 1.
    """
    check_fraction("the final sparsity", final)
    if num_times < 1:
        raise ValueError(f"{num_times} times: at least 1")
    return [final * (1 - (1 - i / num_times) ** 3) for i in range(1, num_times + 1)]
