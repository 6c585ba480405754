"""A dot product in which the place of each rounding is known.

Why it exists
-------------
A matrix product is many long sums. Each product of two fp16 numbers fits fp32 exactly (11 + 11 bits
of mantissa); what hurts is the sum. Added in fp16, one at a time, ones stop counting at 2048: the
next number after 2048 is 2050, and 2048 + 1 rounds back. Tensor cores multiply 16-bit numbers and
add in fp32; that is the third technique of mixed precision.

A CPU's or GPU's own product cannot show this, as both accumulate in fp32 inside. So the sum is
written out: one term after the other, each result rounded to the dtype of the accumulator.

Source: Micikevicius et al. 2018, section 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dot(x: Tensor, y: Tensor, dtype: torch.dtype, accumulate: torch.dtype) -> Tensor:
    """sum of x_i y_i: products rounded to `dtype`, added from left to right in `accumulate`.

    **Shapes** (..., n) twice -> (...), of dtype `accumulate`.
    **Raises** ValueError for unequal shapes.
    """
    if x.shape != y.shape or not x.dim():
        raise ValueError(
            f"a dot product of shapes {tuple(x.shape)} and {tuple(y.shape)}: must be equal, with "
            "the sum over the last dimension"
        )
    products = (x.to(dtype) * y.to(dtype)).to(dtype)
    total = torch.zeros(x.shape[:-1], dtype=accumulate, device=x.device)
    for term in products.unbind(-1):
        total = (total + term.to(accumulate)).to(accumulate)
    return total


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype, accumulate: torch.dtype) -> Tensor:
    """a @ b, every element a `dot`: (m, n) and (n, k) -> (m, k), of dtype `accumulate`.

    **Raises** ValueError for matrices that do not fit.
    """
    if a.dim() != 2 or b.dim() != 2 or a.size(1) != b.size(0):
        raise ValueError(
            f"matrices of shapes {tuple(a.shape)} and {tuple(b.shape)}: must be (m, n) and (n, k)"
        )
    total = torch.zeros(len(a), b.size(1), dtype=accumulate, device=a.device)
    for column, row in zip(a.to(dtype).T, b.to(dtype), strict=True):  # one term of every sum
        product = column[:, None] * row
        total = (total + product.to(accumulate)).to(accumulate)
    return total
