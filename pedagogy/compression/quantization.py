"""Fewer bits for each number: 16, 8, or one.

Three things that are easily confused
-------------------------------------
    weight sharing     k values, anywhere; an index of a few bits for each weight (`sharing`)
    quantisation       2^b - 1 values at equal distances; an integer of b bits, and one scale
    binary weights     two values, +scale and -scale; one bit

Quantisation's values need no list and can be computed with: integers multiply faster than floats.

How it works
------------
*b bits.* The largest magnitude is given the largest integer, 2^(b-1) - 1; every number becomes the
nearest multiple of scale = largest / (2^(b-1) - 1), at most half a scale away.

*One bit.* The two values nearest to all weights are +a and -a with a the mean magnitude; sign(0) is
+1, or there were three values.

*Training through a step function.* Rounding has the derivative 0 nearly everywhere. The
*straight-through* estimate takes it for the identity: what rounding lets through is passed back as
it came; where the input lies beyond the range (|w| > 1 for a sign), nothing comes back. The real
weights are kept behind it, move a little at each step, and are clamped to [-1, 1], or a weight
could run so far that it never changes its sign again.

What it saves
-------------
In a file, 32/b. While training: nothing, as the real weights, gradients and moments all stay.

Sources: Rastegari et al. 2016 (XNOR-Net), section 3.1; Courbariaux et al. 2016, sections 1.1-1.3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pedagogy.compression.checks import check_weights


def quantize(tensor: Tensor, bits: int) -> Tensor:
    """The nearest numbers that `bits`-bit integers and one scale can give, as floats.

    **Shapes** as the tensor. Its gradient passes straight through.
    **Raises** ValueError for fewer than 2 bits (see `binarize`), more than 16, or a tensor without
    numbers or with some that are not finite.
    """
    integers, scale = to_integers(tensor, bits)
    return _straight_through(tensor, (integers * scale).to(tensor.dtype))


def to_integers(tensor: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The integers, int16, and the scale, (), of 32 bits or more.

    The scale is never below the least normal number: a tensor of zeros has one, too.
    """
    if not 2 <= bits <= 16:
        raise ValueError(f"{bits} bits: from 2 to 16; for one bit, binarize")
    check_weights(tensor)
    largest = 2 ** (bits - 1) - 1
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    scale = (wide.abs().amax() / largest).clamp(min=torch.finfo(wide.dtype).tiny)
    return (wide / scale).round().clamp(-largest, largest).to(torch.int16), scale


def sign(x: Tensor) -> Tensor:
    """+1 where x >= 0, else -1; the gradient passes where |x| <= 1.

    Source: Courbariaux et al. 2016, equation 4.
    """
    return _Sign.apply(x)


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


def binarize(weight: Tensor, by_output: bool = False) -> Tensor:
    """+scale and -scale; the scale is the mean magnitude, of all or of each output's weights.

    **Shapes** as the weight. **Raises** ValueError for a weight without numbers or with some that
    are not finite, or by output for one of fewer than 2 dimensions.
    Source: Rastegari et al. 2016, equations 5 and 6.
    """
    check_weights(weight)
    if by_output and weight.dim() < 2:
        raise ValueError(f"a weight of {weight.dim()} dimensions by output: at least 2")
    magnitude = weight.abs()
    dims = tuple(range(1, weight.dim()))
    scale = magnitude.mean(dim=dims, keepdim=True) if by_output else magnitude.mean()
    return scale * sign(weight)


class Binary(nn.Module):
    """A parametrization: the layer computes with one bit a weight, a scale for each output."""

    def forward(self, weight: Tensor) -> Tensor:
        """The binary weight."""
        return binarize(weight, by_output=True)


class Quantized(nn.Module):
    """A parametrization: the layer computes with `bits` bits a weight."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, weight: Tensor) -> Tensor:
        """The quantised weight."""
        return quantize(weight, self.bits)


@torch.no_grad()
def clamp_latent(module: nn.Module) -> None:
    """The real weights behind all binary ones lie in [-1, 1]: call it after each step."""
    for part in module.modules():
        if isinstance(part, parametrize.ParametrizationList) and isinstance(part[0], Binary):
            part.original.clamp_(-1, 1)


def _straight_through(tensor: Tensor, rounded: Tensor) -> Tensor:
    """The value of `rounded`, exactly; the gradient of `tensor`."""
    return rounded.detach() + (tensor - tensor.detach())
