"""Chapter 00a, the entry check: ten questions, each named after the chapter that answers it.

`predict("check_02a_bubble", 0.2)` says whether it is right; the name says where to start if not.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch

from pedagogy.costs import communication, compute, memory
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register

GB = 10**9


def _question(
    name: str,
    question: str,
    key: Callable[[], float],
    because: str,
    *mistakes: tuple[float, str],
    unit: str = "",
    tolerance: float = 0.01,
) -> Prediction:
    return Prediction(
        name=name,
        chapter="00a",
        question=question,
        key=key,
        unit=unit,
        because=because,
        mistakes=mistakes,
        tolerance=tolerance,
    )


def _zero_1_gb() -> float:
    held = memory.model_states(7_500_000_000)
    return (held["parameters"] + held["gradients"] + held["optimizer_state"] / 64) / GB


ENTRY_CHECK = (
    _question(
        "check_00a_states",
        "A model has 1.5 billion parameters and is trained with Adam in mixed precision. How many "
        "GB do parameters, gradients and optimizer state need together?",
        lambda: memory.model_state_bytes(1_500_000_000) / GB,
        "16 bytes a parameter.",
        (3, "that is the 16-bit weights alone."),
        (6, "that is the weights in fp32, or weights and gradients in 16 bit, alone."),
        (18, "2 + 2 + 4 + 4 leaves out the master weights, 4 bytes more."),
        (12, "8 bytes a parameter are Adam's moments alone."),
        unit="GB",
    ),
    _question(
        "check_00a_flops",
        "How many FLOPs does training take for each parameter and token, forward and backward?",
        lambda: compute.training_flops(1, 1),
        "2 in forward, 4 in backward.",
        (2, "that is forward alone."),
        (3, "a multiply and an add are two FLOPs."),
        (4, "that is backward alone."),
        (8, "that is with forward computed twice, as recomputation does."),
    ),
    _question(
        "check_00b_reduce_scatter",
        "Four ranks hold 1000 numbers each. After a reduce_scatter, how many does each rank get?",
        lambda: 1000 // 4,
        "Its own quarter of the sum.",
        (1000, "that is all_reduce: the whole sum on each rank."),
        (4000, "that is all_gather: everybody's numbers, and no sum."),
    ),
    _question(
        "check_01_ring",
        "Eight ranks all-reduce 1 GB of gradients around a ring. How many GB does each rank send?",
        lambda: communication.ring_all_reduce_bytes(GB, 8) / GB,
        "2 (N - 1) / N times the tensor: less than twice, for any N.",
        (7, "each rank passes on eighths, not whole tensors."),
        (1, "a reduce_scatter and then an all_gather: nearly 1 GB each."),
        (0.875, "that is one half of it, the reduce_scatter; the all_gather follows."),
        (14, "that is whole tensors in both halves; each rank passes on eighths."),
        (2, "nearly: in each half a rank keeps its own eighth."),
        unit="GB",
    ),
    _question(
        "check_01_memory",
        "A model of 1 billion parameters (Adam, mixed precision) is trained on 8 GPUs by data "
        "parallelism. How many GB of model states does each GPU hold?",
        lambda: memory.model_state_bytes(GB) / GB,
        "Each replica is a whole model: more GPUs take a larger batch, not a larger model.",
        (2, "that would be a sharded model: ZeRO, chapter 11."),
        (128, "that is all eight together."),
        unit="GB",
    ),
    _question(
        "check_02a_bubble",
        "A pipeline of 4 stages runs 12 micro-batches, then flushes. Which share of the time does "
        "a stage idle?",
        lambda: float(Fraction(4 - 1, 12 + 4 - 1)),
        "(p - 1) / (m + p - 1) of the total.",
        (20, "those are per cent; as a fraction it is 0.2."),
        (0.25, "that is idle to busy, (p - 1) / m; asked is the share of the total."),
        (0.75, "that is a pipeline without micro-batches: one of four stages works at a time."),
    ),
    _question(
        "check_03_columns",
        "A linear layer from 1024 to 4096 features, with bias, is split by columns over 4 ranks. "
        "How many parameters does a rank hold?",
        lambda: 1024 * (4096 // 4) + 4096 // 4,
        "A quarter of the outputs, each with its bias.",
        (1024 * 1024, "and the bias of its own outputs."),
        (1024 * 1024 + 4096, "a rank needs the bias of its own outputs only."),
        (1024 * 4096, "that is the whole weight, and no bias; a rank holds a quarter of both."),
        (1024 * 4096 + 1024, "the bias is cut, the weight is not: a rank holds a quarter of both."),
        (1024 * 4096 + 4096, "that is the whole layer, as in data parallelism."),
        tolerance=0.0,
    ),
    _question(
        "check_05_fp16",
        "In fp16, what is 2048 + 1?",
        lambda: (torch.tensor(2048.0).half() + torch.tensor(1.0).half()).item(),
        "Above 2048 fp16 counts in twos: a small update to a large weight is lost.",
        (2049, "fp16 has 11 significant bits, and 2049 needs 12."),
        (2050, "2049 lies halfway, and the even neighbour wins."),
        tolerance=0.0,
    ),
    _question(
        "check_08_recompute",
        "Every activation is dropped in forward and recomputed in backward. By which factor do "
        "the FLOPs of a step grow?",
        lambda: (compute.training_flops(1, 1) + 2) / compute.training_flops(1, 1),
        "One more forward: 8 instead of 6 for each parameter and token.",
        (2, "backward is two thirds of the work, and it is not done twice."),
        (1.5, "forward is a third of a step, not half."),
    ),
    _question(
        "check_11_zero",
        "7.5 billion parameters on 64 ranks, mixed precision, Adam; ZeRO shards the optimizer "
        "state only. How many GB of model states does a rank hold?",
        _zero_1_gb,
        "2 + 2 + 12/64 bytes a parameter.",
        (120, "that is without ZeRO."),
        (1.875, "that is with everything sharded, stage 3."),
        (1.9, "that is with everything sharded, stage 3."),
        (16.6, "that is with the gradients sharded too, stage 2."),
        unit="GB",
    ),
)

register(*ENTRY_CHECK)
