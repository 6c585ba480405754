"""Chapter 01: one message for many tensors, and what is predicted on Horovod and on stragglers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pedagogy.costs.communication import ring_all_reduce_bytes
from pedagogy.data_parallel.stragglers import simulate_asynchronous, simulate_synchronous
from pedagogy.exercises.attempt import Outcome
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group

# --- one message for many tensors --------------------------------------------------------------


def fused_average(group: Group, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The mean of each tensor over the ranks, from one all_reduce for all of them."""
    buffer = torch.cat([tensor.reshape(-1) for tensor in tensors])
    mean = group.all_reduce(buffer / group.size)
    averaged, start = [], 0
    for tensor in tensors:
        averaged.append(mean[start : start + tensor.numel()].reshape(tensor.shape))
        start += tensor.numel()
    return averaged


def _one_by_one(group, tensors):
    return [group.all_reduce(tensor / group.size) for tensor in tensors]


def _fused_sum(group, tensors):
    return [group.size * mean for mean in fused_average(group, tensors)]


def _flat_pieces(group, tensors):
    return [mean.reshape(-1) for mean in fused_average(group, tensors)]


def _always_from_the_start(group, tensors):
    mean = group.all_reduce(torch.cat([t.reshape(-1) for t in tensors]) / group.size)
    return [mean[: tensor.numel()].reshape(tensor.shape) for tensor in tensors]


def _tensors_of(*shapes: tuple[int, ...]) -> Callable[[int], tuple]:
    def arguments(rank: int) -> tuple:
        draw = torch.Generator().manual_seed(rank)
        return ([torch.randn(shape, generator=draw) for shape in shapes],)

    return arguments


FUSED_CASES = [_tensors_of((2, 3), (4,), (), (3, 1, 2)), _tensors_of((5,))]


def _one_message_each(function: Callable, outcome: Outcome) -> str | None:
    calls = len(outcome.trace.of("all_reduce", rank=0))
    if calls <= len(FUSED_CASES):
        return None
    return f"{calls} all_reduces were made in {len(FUSED_CASES)} cases: one for each is enough"


FUSED = Exercise(
    name="fused_average",
    title="A fusion buffer",
    chapter="01",
    reference=fused_average,
    cases=FUSED_CASES,
    labels=["four tensors of other shapes", "one tensor"],
    ranks=3,
    targets=[_one_message_each],
    mistakes=[
        (
            _one_by_one,
            "This sends each tensor by itself, and each message costs its latency. Copy them "
            "behind each other first (torch.cat of the flat tensors).",
        ),
        (_fused_sum, "This is the sum over the ranks: divide by group.size."),
        (
            _flat_pieces,
            "The numbers are right and lie flat: give each piece its tensor's shape again.",
        ),
        (
            _always_from_the_start,
            "Every piece is cut from the start of the buffer: the second begins where the first "
            "ends.",
        ),
    ],
    hints=[
        "tensor.reshape(-1) is flat, torch.cat puts flat tensors behind each other.",
        "After the all_reduce walk through the tensors with a running start; each takes numel() "
        "values, which .reshape(tensor.shape) folds back.",
    ],
)

# --- predictions ---------------------------------------------------------------------------------

EQUAL_WORKERS = Prediction(
    name="staleness_of_equal_workers",
    chapter="01",
    question="5 equally fast workers, no bound: how stale is an update, once all have started?",
    key=lambda: simulate_asynchronous((1.0,) * 5, None, 20.0).staleness[-1],
    mistakes=[
        (5, "a worker reads right after its own update, which it therefore does not miss."),
        (2, "each of the 4 others applies one while this worker computes, not every second."),
        (0, "while a worker computes, each of the others applies a gradient."),
        (1, "that would be one other worker."),
    ],
    because="While one worker computes, the 4 others apply one gradient each.",
)

STRAGGLING_STEP = Prediction(
    name="straggling_step",
    chapter="01",
    question="8 workers; 7 need 20 ms for a gradient, one 60 ms: ms of a synchronous step?",
    key=lambda: simulate_synchronous((20.0,) * 7 + (60.0,), 100.0).updates[0].time,
    unit="ms",
    mistakes=[
        (25, "that is the mean; the barrier waits for the slowest."),
        (20, "that is the step without the straggler; nobody may start without its gradient."),
        (200, "the workers compute at the same time: times do not add up."),
    ],
    because="The slowest decides: one slow worker of eight makes all of them three times as slow.",
)

HALF_WIRE = Prediction(
    name="fp16_wire_bytes",
    chapter="01",
    question="25 million fp32 gradients, 4 ranks, a ring, fp16 on the wire: MB sent by each rank?",
    key=lambda: ring_all_reduce_bytes(2 * 25_000_000, 4) / 1e6,
    unit="MB",
    mistakes=[
        (150, "that is fp32, 4 bytes each; on the wire there are 2."),
        (50, "that is the tensor once, in fp16; a ring sends 2(N-1)/N of it."),
        (100, "that is the tensor once, in fp32."),
        (37.5, "that is the reduce-scatter alone; the all-gather sends as much again."),
        (300, "that is what all four ranks send together."),
    ],
    because="2(N-1)/N = 1.5 times 25 million times 2 bytes.",
)

register(FUSED, EQUAL_WORKERS, STRAGGLING_STEP, HALF_WIRE)
