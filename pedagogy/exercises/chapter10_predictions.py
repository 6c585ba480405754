"""Chapter 10: what is asked before an optimizer's state is measured."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from pedagogy.costs.optimizers import PRESETS, gpt_shapes
from pedagogy.costs.optimizers import state_bytes as predicted_bytes
from pedagogy.exercises.chapter10 import factored_square
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.optimizers import SM3, Adafactor, Adam, Adam8bit, state_bytes
from pedagogy.optimizers.adafactor import step_size

ESTIMATE = Prediction(
    name="estimate_of_squares_c67",
    chapter="10",
    question="g = [[1, 2], [3, 4]], first step. What is Adafactor's estimate of v? (two rows)",
    key=lambda: factored_square([torch.tensor([[1.0, 2.0], [3.0, 4.0]])]).tolist(),
    tolerance=0.025,  # one decimal is enough
    mistakes=[
        ([[1, 4], [9, 16]], "those are the squares; their rows and columns alone are kept."),
        ([[12.5, 25], [62.5, 125]], "row mean times column mean, divided by the mean row mean."),
        ([[5 / 6, 5 / 3], [25 / 6, 25 / 3]], "divided by the mean of the row means, not the sum."),
    ],
    because="2.5 and 12.5 times 5 and 10, divided by 7.5: its row sums are those of g^2.",
)


def _relative(step: int) -> float:
    group = {"lr": None, "warmup_init": False, "scale_parameter": False}
    return step_size(torch.zeros(1), step, group)


RELATIVE = Prediction(
    name="relative_steps_c66",
    chapter="10",
    question="Adafactor's relative step, without the weight's size, at t = 1, 10^4 and 10^6? "
    "(three numbers)",
    key=lambda: [_relative(step) for step in (1, 10**4, 10**6)],
    tolerance=1e-5,
    mistakes=[
        ([1, 0.01, 0.001], "1 / sqrt(t) is 1 at first: it is limited to 1e-2."),
        ([1e-6, 0.01, 0.001], "that is with a warm-up."),
        ([0.01, 0.01, 0.01], "beyond 10^4 steps 1 / sqrt(t) is smaller than 1e-2."),
    ],
    because="min(1e-2, 1 / sqrt(t)): constant for 10^4 steps.",
)


def _second_step() -> float:
    weights = [nn.Parameter(torch.full((1,), size, dtype=torch.float64)) for size in (0.1, 0.5)]
    optimizer = Adafactor(weights, lr=1e-3, relative_step=False)
    sum(weights).backward()
    optimizer.step()
    return 0.5 - weights[1].item()


WRITTEN = Prediction(
    name="lr_written_back_c65",
    chapter="10",
    question="Adafactor, lr 1e-3 scaled by the weight's size; parameters of RMS 0.1 and 0.5. Once "
    "an implementation wrote the first one's step into the group as lr. How many times too small "
    "was the second's?",
    key=lambda: _second_step() / (0.1 * 1e-3 * 0.5),
    mistakes=[
        (5, "it was multiplied by the first one's size, too: 1e-3 x 0.1 x 0.5."),
        (2, "by the first one's size, 0.1; by its own, 0.5, it is multiplied in any case."),
    ],
    because="5e-5 in place of 5e-4, and it depended on the order of the parameters.",
)


@cache
def _state(kind: str, *shape: int) -> int:
    weight = nn.Parameter(torch.ones(shape))
    optimizers = {
        "Adam": lambda: Adam([weight]),
        "Adafactor": lambda: Adafactor([weight]),
        "SM3": lambda: SM3([weight], lr=0.1),
        "Adam in 8 bits": lambda: Adam8bit([weight]),
    }
    optimizer = optimizers[kind]()
    weight.grad = torch.ones(shape)
    optimizer.step()
    return state_bytes(optimizer)


KINDS = ("Adam", "Adafactor", "SM3", "Adam in 8 bits")
MATRIX = Prediction(
    name="state_of_a_matrix",
    chapter="10",
    question="A weight of 64 x 256 in fp32. Bytes of state? [Adam, Adafactor, SM3, Adam in 8 bits "
    "with blocks of 2,048]",
    key=lambda: [_state(kind, 64, 256) for kind in KINDS],
    tolerance=0.0,
    mistakes=[
        ([131072, 1280, 1280, 32768], "each of the 8 blocks has a largest value, 4 bytes, twice."),
        ([131072, 1280, 1280, 32800], "m and v have a largest value each, for every block."),
        ([65536, 1280, 1280, 16416], "Adam has two moments."),
        ([131072, 320, 320, 32832], "a number of fp32 has 4 bytes."),
    ],
    because="8 nm; 4 (n + m) twice; 2 nm and 2 x 4 bytes for each of 8 blocks.",
)

LOST = Prediction(
    name="lost_in_a_linear_code",
    chapter="10",
    question="store_in_blocks: a value in a block whose largest is x times as large becomes 0, if "
    "x is above what?",
    key=lambda: 127 / 0.5,
    tolerance=0.0,
    mistakes=[
        (127, "that is one code; half of one is still rounded to it."),
        (255, "the codes go from -127 to 127, and half of one is rounded to it."),
        (510, "one of the 8 bits is the sign."),
    ],
    because="v differs by many powers of ten, and 0 in a denominator makes a huge step: hence "
    "dynamic values.",
)


def _of_gpt2(kind: str) -> int:
    return predicted_bytes(kind, gpt_shapes(*PRESETS["GPT-2 small"]))


def _megabytes(kind: str) -> str:
    return f"{_of_gpt2(kind) / 1e6:.3g} MB"


GPT2 = Prediction(
    name="least_state_of_gpt2",
    chapter="10",
    question="GPT-2 small. Whose state is least: 'Adam8bit', 'Adafactor' or 'SM3 with momentum'?",
    key=lambda: min(("Adam8bit", "Adafactor", "SM3 with momentum"), key=_of_gpt2),
    mistakes=[
        ("Adam8bit", f"2 bytes for each parameter are {_megabytes('Adam8bit')}."),
        (
            "SM3 with momentum",
            f"momentum is a number for each parameter, {_megabytes('SM3 with momentum')} in all.",
        ),
    ],
    because=f"{_megabytes('Adafactor')}, as much as SM3 without momentum keeps. Adam's are "
    f"{_megabytes('Adam')}, in 8 bits {_megabytes('Adam8bit')}.",
)

register(ESTIMATE, RELATIVE, WRITTEN, MATRIX, LOST, GPT2)
