"""Chapter 05: what the nearest number of fp16 is, without asking the machine.

The wrong ways stand in `chapter05_wrong_numbers`. One step with master weights is in
`chapter05_masters`, the search for a loss scale in `chapter05_scale`, the whole training loop in
`chapter05_training`, predictions in `chapter05_predictions` and `chapter05_limits`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pedagogy.exercises.chapter05_wrong_numbers import WRONG_NUMBERS
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def round_to_fp16(x: Tensor) -> Tensor:
    """x (n,) float64, finite: each value as the nearest number of fp16, in float64."""
    exponent = torch.frexp(x).exponent - 1  # x = 1.something * 2^exponent
    exponent = exponent.clamp(min=-14)  # below, the spacing does not shrink any more
    step = torch.ldexp(torch.ones_like(x), exponent - 10)  # from one number to the next
    rounded = (x / step).round() * step  # ties to even
    return rounded.where(rounded.abs() <= 65504, rounded.sign() * float("inf"))


def _values(*values: float) -> tuple[Tensor]:
    return (torch.tensor(values, dtype=torch.float64),)


CASES = {
    "between 1 and 2": _values(1, 1.5, 1.3, 1 + 2**-12, 1 + 2**-11, 1 + 3 * 2**-11),
    "larger, smaller and negative": _values(0, -3.3, 2049, 2051, -2049, 12345.6, -0.1, 0.01),
    "below 2^-14": _values(2**-15, 3.3e-6, -1e-5, 2**-24, 1.5 * 2**-24, 2.5 * 2**-24),
    "around 2^-25": _values(2**-25, 1.0001 * 2**-25, -0.75 * 2**-24, 0.49 * 2**-24, -1e-9),
    "near 65504": _values(65504, 65504.1, 65519.9, 65520, -65520, 65535, 70_000, -1e6),
    "a hair above halfway": _values(1 + 2**-11 + 2**-40),
}

ROUND = Exercise(
    name="round_to_fp16",
    title="The nearest of few",
    chapter="05",
    reference=round_to_fp16,
    cases=list(CASES.values()),
    labels=list(CASES),
    mistakes=WRONG_NUMBERS,
    tolerance=0.0,
    hints=[
        "Where |x| is between 2^e and 2^(e+1), neighbours are 2^(e-10) apart. "
        "torch.frexp(x).exponent - 1 is e; torch.ldexp(torch.ones_like(x), e - 10) is the spacing.",
        "Count in spacings: torch.round(x / step) * step. torch.round goes to the even one of two "
        "that are equally near.",
        "Below 2^-14 the spacing stays 2^-24: clamp e at -14.",
        "Round first, as if there were no end; what is then beyond 65504, on either side, is "
        "infinity.",
    ],
)

register(ROUND)
