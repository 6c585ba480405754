"""Chapter 05: wrong ways to round, and what to say about each.

A number's way to fp16 has four parts: its exponent, the spacing there, the nearest multiple of the
spacing, and what is beyond the largest. `_rounded` takes each of them apart; a wrong spacing or a
wrong "nearest" is recognised as well where subnormal numbers or the overflow, or both, are still to
be written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor

LARGEST, INFINITY = 65504.0, float("inf")


def _overflow(rounded: Tensor, x: Tensor) -> Tensor:
    return rounded.where(rounded.abs() <= LARGEST, rounded.sign() * INFINITY)


def _plus_infinity(rounded: Tensor, x: Tensor) -> Tensor:
    return rounded.where(rounded.abs() <= LARGEST, INFINITY)


def _as_it_is(rounded: Tensor, x: Tensor) -> Tensor:
    return rounded


def _rounded(
    x: Tensor,
    nearest: Callable[[Tensor], Tensor] = torch.round,
    bits: int = 10,
    extra: int = 0,
    lowest: int = -14,
    beyond: Callable[[Tensor, Tensor], Tensor] = _overflow,
) -> Tensor:
    exponent = (torch.frexp(x).exponent - 1 + extra).clamp(min=lowest)
    step = torch.ldexp(torch.ones_like(x), exponent - bits)
    return beyond(nearest(x / step) * step, x)


def _away(x: Tensor) -> Tensor:
    return x.sign() * (x.abs() + 0.5).floor()


def _up(x: Tensor) -> Tensor:
    return (x + 0.5).floor()


def _toward_zero(x: Tensor) -> Tensor:
    return x.sign() * (x.abs() - 0.5).ceil()


def _multiples(x: Tensor, step: float, beyond: Callable = _overflow) -> Tensor:
    return beyond((x / step).round() * step, x)


def _infinite_where(beyond: Callable[[Tensor, Tensor], Tensor]) -> Callable:
    """Infinity, with the sign of x, where `beyond(rounded, x)`."""
    return partial(_rounded, beyond=lambda r, x: torch.where(beyond(r, x), x.sign() * INFINITY, r))


def _flushed(x: Tensor, below: float, **parts: Callable) -> Tensor:
    return torch.where(x.abs() < below, 0 * x, _rounded(x, **parts))


def _zero_is_nan(x: Tensor, **parts: Callable) -> Tensor:
    """The exponent from log2, which is -inf for 0."""
    return torch.where(x == 0, float("nan"), _rounded(x, lowest=-999, **parts))


def _without_sign(x: Tensor, **parts: Callable) -> Tensor:
    return _rounded(x.abs(), **parts)


_NO_END = {"beyond": _as_it_is}
_NO_SUBNORMAL = {"lowest": -999}

_SPACINGS = [
    (
        {"nearest": torch.trunc},
        "The digits that do not fit are cut off. The nearest number may be the next one: round, "
        "do not truncate.",
    ),
    (
        {"nearest": torch.floor},
        "floor goes down, for negative numbers as well: the nearest may be above.",
    ),
    ({"nearest": torch.ceil}, "ceil goes up: the nearest may be below."),
    (
        {"nearest": _away},
        "Of two that are equally near, the one farther from 0 is taken. It is the even one: "
        "torch.round does that, floor(... + 0.5) does not.",
    ),
    (
        {"nearest": _up},
        "Of two that are equally near, the upper one is taken. It is the even one: torch.round "
        "does that, floor(... + 0.5) does not.",
    ),
    (
        {"nearest": _toward_zero},
        "Of two that are equally near, the one nearer to 0 is taken. It is the even one, which "
        "may be the larger.",
    ),
    (
        {"bits": 11},
        "The spacing is half of what it is. The mantissa has 10 bits; the 1 before the point, "
        "which would be the 11th, is not one of them: neighbours are 2^(e-10) apart.",
    ),
    (
        {"extra": 1},
        "torch.frexp writes x as 0.5...1 times 2^exponent. fp16 has a 1 before the point: its "
        "exponent is one less, and the spacing half.",
    ),
    ({"bits": 7}, "That is bf16's mantissa, of 7 bits; fp16 has 10."),
]

_EXPONENTS = [
    (
        {"lowest": -15},
        "Below 2^-14 the spacing is half of what it is. Subnormal numbers have the exponent of the "
        "smallest normal ones, -14, so that neighbours are 2^-24 apart.",
    ),
    (
        {"lowest": -24},
        "2^-24 is the smallest number above 0, and not where the spacing stops to shrink: that is "
        "at the exponent -14.",
    ),
    (
        {"lowest": -13},
        "The spacing stops to shrink one power of two too early: the smallest normal exponent is "
        "-14.",
    ),
]

_ONE_SUBNORMAL = (
    "Numbers below 2^-14 keep all their digits here. There the spacing does not shrink any more: "
    "it stays 2^-24, so clamp the exponent at -14."
)
_NAN_AT_ZERO = (
    "0 becomes NaN: log2(0) is -inf, and so the spacing 0. A lower limit for the exponent, -14, "
    "helps 0 and the subnormal numbers alike."
)
_TRAP = (
    "Not all that is below 2^-24 becomes 0: the nearest number decides, and above half of 2^-24 "
    "that is 2^-24."
)
_FLUSHED = "All below 2^-14 becomes 0. These are the subnormal numbers: fp16 has them, 2^-24 apart."

_TWO_SPACINGS = [
    (
        2**-10,
        "The spacing is 2^-10 everywhere. That is true between 1 and 2 alone: it doubles with each "
        "power of two, and halves below.",
    ),
    (
        2**-24,
        "The spacing is 2^-24 everywhere: that is true of subnormal numbers, and larger ones are "
        "2^(e-10) apart.",
    ),
]

_ENDS = [
    (
        _infinite_where(lambda r, x: x.abs() > LARGEST),
        "Everything above 65504 becomes infinity. Up to 65520, half a spacing beyond, 65504 is "
        "the nearest: round first, then compare.",
    ),
    (
        _infinite_where(lambda r, x: r.abs() >= LARGEST),
        "65504 itself is a number of fp16, the largest; infinity begins beyond it.",
    ),
    (
        _infinite_where(lambda r, x: x.abs() >= 65536),
        "What lies between 65520 and 65536 rounds to 65536 here, which fp16 does not have: it is "
        "infinity as well. Compare the rounded number with 65504.",
    ),
    (
        _infinite_where(lambda r, x: x.abs() > 65520),
        "65520 is halfway between 65504 and the next one, 65536, which is even and stands for "
        "infinity: from 65520 on, not from above it.",
    ),
    (
        _infinite_where(lambda r, x: r > LARGEST),
        "Large negative numbers stay finite: compare the absolute value with 65504.",
    ),
    (
        partial(_rounded, beyond=_plus_infinity),
        "Large negative numbers become +infinity: it keeps the sign, as -inf.",
    ),
    (
        partial(_rounded, beyond=lambda r, x: r.clamp(-LARGEST, LARGEST)),
        "What is too large becomes 65504 here. IEEE 754 makes it infinity, and that is how a loss "
        "scaler sees that a gradient was too large.",
    ),
    (
        partial(_rounded, beyond=lambda r, x: r.where(r.abs() <= LARGEST, float("nan"))),
        "What is too large becomes infinity, with its sign; NaN is for what has no value at all.",
    ),
    (
        partial(_rounded, **_NO_END),
        "Numbers beyond 65504 are still there: fp16 ends, and what rounds to more is infinity.",
    ),
]

_SIGN = "The sign is lost: the spacing depends on |x|, and x keeps its sign."

WRONG_NUMBERS = [
    (
        lambda x: x.half(),
        "The dtype is to stay float64; and a cast rounds twice, to fp32 and then to fp16.",
    ),
    (
        lambda x: x.half().double(),
        "Nearly. PyTorch casts float64 by way of fp32 and so rounds twice: a hair above halfway "
        "becomes halfway, and then the even one. Round once, with exponent and spacing.",
    ),
    *_ENDS,
    (partial(_rounded, **_NO_SUBNORMAL), _ONE_SUBNORMAL),
    (partial(_rounded, beyond=_plus_infinity, **_NO_SUBNORMAL), _ONE_SUBNORMAL),
    (
        partial(_rounded, **_NO_SUBNORMAL, **_NO_END),
        "Right between 2^-14 and 65504; both ends are missing. Below, the spacing stays 2^-24; "
        "beyond, it is infinity.",
    ),
    *((partial(_zero_is_nan, **end), _NAN_AT_ZERO) for end in ({}, _NO_END)),
    *((partial(_flushed, below=2**-14, **end), _FLUSHED) for end in ({}, _NO_END)),
    *((partial(_flushed, below=2**-24, **end), _TRAP) for end in ({}, _NO_END)),
    *(
        (partial(_rounded, **part, **end), why)
        for (part, why), end in product(_EXPONENTS, ({}, _NO_END))
    ),
    *(
        (partial(_rounded, **part, **below, **end), why)
        for (part, why), below, end in product(_SPACINGS, ({}, _NO_SUBNORMAL), ({}, _NO_END))
    ),
    *(
        (partial(_multiples, step=step, **end), why)
        for (step, why), end in product(_TWO_SPACINGS, ({}, _NO_END))
    ),
    *((partial(_without_sign, **end), _SIGN) for end in ({}, _NO_END)),
]
