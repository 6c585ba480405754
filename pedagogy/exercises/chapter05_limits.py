"""Chapter 05: what is asked of number formats: where they end, what they swallow, who has them."""

from __future__ import annotations

from functools import cache

import torch

from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.precision import FORMATS, dot, round_to

HALF_OF_SMALLEST = 2.0**-25


def _around_half() -> list[float]:
    two = torch.tensor([HALF_OF_SMALLEST, 1.0001 * HALF_OF_SMALLEST], dtype=torch.float64)
    return (round_to(two, FORMATS["fp16"]) / FORMATS["fp16"].smallest).tolist()


AROUND_HALF = Prediction(
    name="around_half_of_smallest",
    chapter="05",
    question="2^-25 and 1.0001 x 2^-25, in fp16: each in units of 2^-24? [first, second]",
    key=_around_half,
    tolerance=0.0,
    mistakes=[
        (
            [0, 0],
            "not all that is below 2^-24 becomes 0. The second is above halfway, so 2^-24 is "
            "nearer.",
        ),
        ([1, 1], "the first is just halfway, and of 0 and 2^-24 the even one is 0."),
        ([0.5, 0.5], "there is no number between 0 and 2^-24: they are rounded to one of the two."),
        (
            [0.5, 0.50005],
            "there is no number between 0 and 2^-24: they are rounded to one of the two.",
        ),
        ([1, 0], "the other way round: the second is larger, and above halfway."),
    ],
    because="Halfway goes to the even one, 0; anything above goes to 2^-24.",
)

TF32 = Prediction(
    name="tf32_rounds",
    chapter="05",
    question="Which of these has only 10 bits of mantissa where TF32 is on: 'inputs' (of a matrix "
    "product), 'accumulator' or 'weights' (as they are stored and updated)?",
    key="inputs",
    mistakes=[
        ("accumulator", "the products are added in fp32; what is rounded goes in."),
        (
            "weights",
            "they are stored and updated in fp32; as inputs of a product, a rounded copy goes in.",
        ),
    ],
    because="8 bits of exponent and 10 of mantissa, for the inputs alone; all else is fp32.",
)

T4 = Prediction(
    name="t4_bf16",
    chapter="05",
    question="Do the tensor cores of a T4 multiply in bf16? True or False",
    key=False,
    mistakes=[
        (
            True,
            "bf16 came to tensor cores one generation later, with Ampere (A100). On a T4 it is "
            "fp16, with loss scaling; bf16 code runs there, slowly.",
        ),
    ],
    because="Turing has fp16 and integers; bf16 and TF32 came with Ampere.",
)


@cache
def _swallowed(dtype: torch.dtype = torch.bfloat16) -> float:
    """1.0, after 100 updates of -0.001."""
    weight = torch.ones((), dtype=dtype)
    for _ in range(100):
        weight = weight - 0.001
    return weight.item()


SWALLOWED = Prediction(
    name="swallowed_update_c36",
    chapter="05",
    question="A weight of 1.0, stored in bf16; an update of -0.001, 100 times. What is it then?",
    key=_swallowed,
    tolerance=1e-4,
    mistakes=[
        (0.9, "that is fp32. In bf16 the next number below 1 is 0.996, and -0.001 is nearer to 1."),
        (
            lambda: torch.tensor(_swallowed(torch.float32)).bfloat16().item(),
            "that is what fp32 master weights come to, rounded. Without them, each update is "
            "rounded away by itself.",
        ),
        (0.999, "bf16 has no such number: the next one below 1 is 0.996, and 1 is nearer."),
        (
            1 - 2.0**-8,
            "that is the next number below 1; halfway to it is 0.998, and one update does not get "
            "there.",
        ),
        (1 - 2.0**-9, "that is halfway to the next number; bf16 does not have it."),
        (0.0, "the updates together are -0.1."),
    ],
    because="Neighbours below 1 are 2^-8 apart; 0.001 is less than half of that, each time anew.",
)


@cache
def _ones() -> float:
    ones = torch.ones(10_000)
    return dot(ones, ones, torch.float16, torch.float16).item()


ONES = Prediction(
    name="sum_of_ones_fp16",
    chapter="05",
    question="10,000 ones, added one at a time in fp16?",
    key=_ones,
    tolerance=1e-4,
    mistakes=[
        (10_000, "that is a number of fp16, but counting in ones ends before."),
        (2_047, "one more: 2,048 is a number of fp16. The next one is 2,050."),
        (2_049, "fp16 has no such number: from 2,048 on it counts in twos."),
        (2_050, "2,048 + 1 is halfway between 2,048 and 2,050, and 2,048 is the even one."),
        (1_024, "from 1,024 on it still counts in ones; in twos from the next power of two on."),
        (4_096, "from 2,048 on neighbours are 2 apart, and half of that is lost."),
        (65_504, "that is the largest number; the sum stops growing long before."),
        (float("inf"), "the sum is far below 65,504, and stops growing before."),
    ],
    because="2,048 + 1 rounds back to 2,048, however often.",
)

register(AROUND_HALF, TF32, T4, SWALLOWED, ONES)
