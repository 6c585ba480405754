"""Number formats bit by bit: fp32, tf32, fp16, bf16, and two of 8 bits.

How a floating-point number is written
--------------------------------------
A sign, an exponent of e bits, a mantissa of m bits:

    (-1)^sign x 2^(exponent - bias) x 1.mantissa      bias = 2^(e-1) - 1
    (-1)^sign x 2^(1 - bias)        x 0.mantissa      where the exponent's bits are all 0: subnormal

The exponent's bits decide the *range*, the mantissa's the *spacing*: neighbours between 1 and 2 are
2^-m apart. fp16 spends 5 + 10 bits, bf16 8 + 7: the range of fp32 with an eighth of fp16's
precision. tf32 (8 + 10) is no format of storage: it is what an Ampere tensor core makes of the
*inputs* of a matrix product of fp32 numbers, while it adds in fp32.

Rounding goes to the nearest, and to the even one of two that are equally near: 2^-25 is halfway
between 0 and fp16's smallest number, 2^-24, and becomes 0; anything above it becomes 2^-24.

Sources: IEEE 754-2019, section 3 (binary16, binary32); NVIDIA A100 white paper 2020 (tf32);
Micikevicius et al. 2022 for the 8-bit formats (E4M3 has no infinity).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor


class Format(NamedTuple):
    """How many bits go where; `dtype` is PyTorch's, None where it has none."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    dtype: torch.dtype | None
    has_infinity: bool = True

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent's bits."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def bits(self) -> int:
        """All bits: sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def max(self) -> float:
        """The largest number."""
        if self.has_infinity:
            return 2.0**self.bias * (2 - self.epsilon)
        return 2.0 ** (self.bias + 1) * (2 - 2 * self.epsilon)  # all bits but one pattern, NaN

    @property
    def smallest_normal(self) -> float:
        """Below it, digits are lost."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above 0, a subnormal one."""
        return self.smallest_normal * self.epsilon

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0**-self.mantissa_bits


FORMATS = {
    one.name: one
    for one in (
        Format("fp32", 8, 23, torch.float32),
        Format("tf32", 8, 10, None),
        Format("fp16", 5, 10, torch.float16),
        Format("bf16", 8, 7, torch.bfloat16),
        Format("fp8 e4m3", 4, 3, torch.float8_e4m3fn, has_infinity=False),
        Format("fp8 e5m2", 5, 2, torch.float8_e5m2),
    )
}


def format_of(dtype: torch.dtype) -> Format:
    """The format of a dtype. **Raises** ValueError that lists the dtypes there are."""
    for one in FORMATS.values():
        if one.dtype == dtype:
            return one
    known = ", ".join(str(one.dtype) for one in FORMATS.values() if one.dtype)
    raise ValueError(f"no format for {dtype}: choose one of {known}")


def round_to(x: Tensor, to: Format) -> Tensor:
    """Each value rounded to the nearest of the format, ties to even; the dtype stays.

    Beyond the largest number it is infinity, as IEEE 754 rounds. A format without infinity keeps
    its largest number there (the 8-bit standard allows that, or NaN: versions of PyTorch differ).
    **Shapes** any, float32 or float64 -> the same. **Raises** ValueError for other dtypes.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"values of {x.dtype}: must be float32 or float64, to hold what is rounded"
        )
    wide = x.double()
    exponent = torch.frexp(wide).exponent - 1  # x = 1.something * 2^exponent
    step = torch.ldexp(
        torch.ones_like(wide), exponent.clamp(min=1 - to.bias) - to.mantissa_bits
    )  # the distance of neighbours here
    rounded = torch.where(wide.isfinite() & (wide != 0), (wide / step).round() * step, wide)
    beyond = float("inf") if to.has_infinity else to.max
    rounded = torch.where(rounded.abs() > to.max, rounded.sign() * beyond, rounded)
    return rounded.to(x.dtype)


def bit_fields(value: float, of: Format) -> tuple[str, str, str]:
    """Sign, exponent and mantissa of the value, rounded to the format, as strings of 0 and 1.

    >>> bit_fields(1.5, FORMATS["fp16"])
    ('0', '01111', '1000000000')
    """
    rounded = round_to(torch.tensor(value, dtype=torch.float64), of).item()
    sign = "1" if struct.pack(">d", rounded)[0] & 0x80 else "0"
    e, m = of.exponent_bits, of.mantissa_bits
    if rounded != rounded:
        return sign, "1" * e, "1" * m
    if rounded in (float("inf"), float("-inf")):
        return sign, "1" * e, "0" * m
    in_steps = abs(rounded) / of.smallest  # a whole number, however large
    if in_steps < 2**m:
        exponent, mantissa = 0, int(in_steps)
    else:
        power = int(torch.frexp(torch.tensor(in_steps, dtype=torch.float64)).exponent) - 1 - m
        exponent, mantissa = power + 1, int(in_steps / 2.0**power) - 2**m
    return sign, f"{exponent:0{e}b}", f"{mantissa:0{m}b}"
