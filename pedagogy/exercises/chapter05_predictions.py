"""Chapter 05: what is asked of loss scales, clipping and memory."""

from __future__ import annotations

import torch

from pedagogy.costs.memory import model_state_bytes
from pedagogy.exercises.chapter05_scale import dynamic_scale
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.precision import FORMATS

BYTES = Prediction(
    name="bytes_with_master_weights",
    chapter="05",
    question="Adam, fp16 weights and gradients, fp32 master weights. Bytes per parameter, states "
    "included?",
    key=lambda: model_state_bytes(1, "mixed", "adam"),
    tolerance=0.0,
    unit="bytes",
    mistakes=[
        (8, "that is everything in 16 bits; master weights and Adam's two states are fp32."),
        (12, "master weights, 4 bytes, or Adam's second state, 4 bytes, are missing."),
        (14, "weights or gradients, 2 bytes each, are missing."),
        (10, "Adam's two states are fp32, 4 bytes each, and so are the master weights."),
        (4, "those are weights and gradients; master weights and Adam's two states come on top."),
        (20, "gradients in fp32 as well; here they are in fp16, and cast at the update alone."),
        (18, "gradients have 2 bytes here; they are cast to fp32 at the update alone."),
    ],
    because="2 + 2 + 4 + 4 + 4, as many as in fp32. What is saved are activations, and time.",
)

SMALLEST, LARGEST = 2.0**-34, 2.0**-9


def _window() -> list[int]:
    fp16 = FORMATS["fp16"]
    fits = [
        k
        for k in range(64)
        if SMALLEST * 2.0**k >= fp16.smallest_normal and LARGEST * 2.0**k <= fp16.max
    ]
    return [min(fits), max(fits)]


_SUBNORMAL = (
    "the smallest gradients are no longer 0 there, but subnormal, with few digits. Normal numbers "
    "begin at 2^-14."
)

WINDOW = Prediction(
    name="loss_scale_window",
    chapter="05",
    question="All gradients lie between 2^-34 and 2^-9 in size, ends included. With which loss "
    "scales 2^k are all of them normal numbers of fp16? [smallest k, largest k]",
    key=_window,
    tolerance=0.0,
    mistakes=[
        ([20, 25], "2^-9 x 2^25 is 65,536, and the largest number is 65,504: infinity."),
        ([10, 24], _SUBNORMAL),
        ([9, 24], _SUBNORMAL),
        ([10, 25], f"{_SUBNORMAL[:-1]}; and 2^16 is infinity."),
        ([19, 24], "2^-34 x 2^19 is 2^-15, which is subnormal: normal numbers begin at 2^-14."),
        ([20, 23], "one more: 2^-9 x 2^24 is 32,768, which is still a number of fp16."),
        ([24, 20], "the two are in the wrong order."),
        ([-24, -20], "the scale makes gradients larger: k is positive, and the order turns."),
    ],
    because="2^-34 has to reach 2^-14, and 2^-9 must not reach 2^16.",
)

TRACE = Prediction(
    name="scale_trace_c30",
    chapter="05",
    question="A scale of 8 that doubles after 2 good steps in a row and halves after a bad one. "
    "Steps: good, bad, good, good, good. The scale after each? [five numbers]",
    key=lambda: dynamic_scale([False, True, False, False, False], 8.0, 2.0, 0.5, 2)[0],
    tolerance=0.0,
    mistakes=[
        ([8, 8, 4, 4, 8], "those are the scales with which the steps were made."),
        (
            [8, 4, 8, 8, 16],
            "the bad step sets the count of good ones back to 0: two in a row are there after the "
            "fourth step.",
        ),
        ([8, 4, 4, 4, 8], "two good steps in a row are complete after the fourth step."),
        (
            [8, 4, 4, 8, 16],
            "after it has doubled, the count begins at 0: one good step is not two.",
        ),
        ([8, 4, 4, 4, 4], "two good steps in a row are there after the fourth: it doubles."),
        ([8, 4, 8, 16, 32], "it takes two good steps in a row to double, each time."),
        ([8, 4, 4, 16, 16], "twice 4 is 8."),
    ],
    because="Halved in the second, doubled in the fourth; after that, the fifth is one good step.",
)


def _clipped_too_early() -> float:
    gradient = torch.tensor([1.0, 2.0, 2.0]) * 1024  # of a weight of norm 3, scaled
    gradient *= (1.0 / gradient.norm()).clamp(max=1.0)
    return (gradient / 1024).norm().item()


CLIPPED = Prediction(
    name="clipped_norm_c31",
    chapter="05",
    question="True norm 3, loss scale 1024. The gradient is clipped at norm 1 first, and unscaled "
    "then. Its norm when the optimizer sees it?",
    key=_clipped_too_early,
    tolerance=3e-5,
    mistakes=[
        (1, "that is the right order, first unscaled; here 1 is divided by 1024 afterwards."),
        (3 / 1024, "it is clipped: the scaled norm, 3,072, becomes 1, which is then divided."),
        (3, "it is clipped, and the other way round: 3,072 becomes 1, which is then divided."),
        (1024, "unscaling divides by 1024."),
        (1 / 3072, "clipping makes the norm 1, and unscaling divides by 1024."),
        (1 / 3, "the true norm, 3, is not clipped here: it is the scaled one that becomes 1."),
        (0, "small, but it does not underflow: in fp32 it is divided by 1024."),
    ],
    because="1 / 1024: every update is shrunk by the scale, and nothing looks wrong.",
)

register(BYTES, WINDOW, TRACE, CLIPPED)
