"""Which share of a tensor's values a format can hold.

A value that is rounded to a narrower format ends in one of five ways: it was zero before; it
becomes zero (*underflow*); it lands among the subnormal numbers, with fewer digits; it is normal;
it becomes infinite (*overflow*). Gradients are small: many fall below fp16's smallest number and
none near its largest, so that multiplying all of them by one constant, the loss scale, moves the
useful ones into the range.

The popular "all below 2^-24 becomes zero" is wrong by a factor of two: fp16 rounds to the nearest,
so that what lies between 2^-25 and 2^-24 becomes 2^-24.

Source: Micikevicius et al. 2018, section 3.2, for the histogram of gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pedagogy.precision.formats import format_of

KINDS = ("zero", "underflow", "subnormal", "normal", "overflow")


def range_shares(tensor: Tensor, dtype: torch.dtype) -> dict[str, float]:
    """Shares of the values by what becomes of them in `dtype`, in the order of `KINDS`; sum 1.

    A NaN counts as overflow, and so does an infinity. **Shapes** any.
    **Raises** ValueError for a tensor without values, or a dtype that is no format.
    """
    to = format_of(dtype)
    if not tensor.numel():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has no values")
    before, after = tensor.detach().abs(), tensor.detach().to(dtype).double().abs()
    half_step = 2.0 ** (math.frexp(to.max)[1] - 2 - to.mantissa_bits)
    inside = before.double() < to.max + half_step  # a tie becomes infinity, where there is one
    beyond = ~(inside if to.has_infinity else before.double() <= to.max + half_step)
    tests = {
        "zero": before == 0,
        "underflow": (before > 0) & (after == 0),
        "subnormal": (after > 0) & (after < to.smallest_normal),
        "normal": (after >= to.smallest_normal) & ~beyond,
        "overflow": beyond,
    }
    return {kind: test.double().mean().item() for kind, test in tests.items()}
