"""Chapter 01: what is asked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from pedagogy.costs import communication, memory
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register

RING_BYTES = Prediction(
    name="ring_rank_bytes",
    chapter="01",
    question="4 ranks, 1,000,000 fp32 gradients, a ring: how many bytes does each rank send?",
    key=lambda: communication.ring_all_reduce_bytes(4_000_000, 4),
    unit="bytes",
    mistakes=[
        (4_000_000, "that is the tensor once; a ring sends (N-1)/N of it, twice."),
        (3_000_000, "that is the first half alone, the reduce-scatter."),
        (12_000_000, "that is what a server of 3 others would send: the tensor once to each."),
        (24_000_000, "that is what all four ranks send together."),
        (1_500_000, "that counts numbers; an fp32 number has 4 bytes."),
        (6, "bytes were asked for, not megabytes."),
        (8_000_000, "that is the bound, 2 tensors, which no number of ranks reaches."),
    ],
    because="2 (N-1)/N = 1.5 tensors of 4 MB.",
)

REPLICA_MEMORY = Prediction(
    name="replica_memory",
    chapter="01",
    question="1.5 billion parameters, mixed precision, Adam, 64 ranks: GB of states on each rank?",
    key=lambda: memory.model_state_bytes(1_500_000_000) / 1e9,
    unit="GB",
    mistakes=[
        (24 / 64, "nothing is divided: every rank holds the whole model."),
        (24 * 64, "that is all ranks together."),
        (3, "those are the weights alone, in 16 bit."),
        (6, "those are the weights alone, in fp32, or weights and gradients in 16 bit."),
        (24e9, "those are bytes; GB were asked for."),
    ],
    because="16 bytes a parameter, as on one rank; 64 ranks hold it 64 times.",
)

MEAN_OF_MEANS = Prediction(
    name="mean_of_means",
    chapter="01",
    question="Rank 0 has samples with gradients 1, 2, 3, rank 1 has 9: averaging gives?",
    key=lambda: ((1 + 2 + 3) / 3 + 9) / 2,
    mistakes=[
        (3.75, "that is the mean over the samples, which is what you wanted, not what you get."),
        (15, "that is the sum over the samples; both ranks take means."),
        (7.5, "each rank's loss is a mean already: rank 0 has 2, not 6."),
    ],
    because="(2 + 9)/2; one process has (1 + 2 + 3 + 9)/4 = 3.75, and nothing complains.",
)

SMALL_MESSAGES = Prediction(
    name="small_message_winner",
    chapter="01",
    question="64 ranks all_reduce 4 kB; alpha is 10 us, a link 10 GB/s. Ring or tree?",
    key=lambda: min(("ring", "tree"), key=_small_message_seconds),
    mistakes=[("ring", "its 126 steps cost 10 us each; 4 kB are nothing beside that.")],
    because="12 messages in turn instead of 126.",
)

EXPOSED = Prediction(
    name="exposed_milliseconds",
    chapter="01",
    question="4 layers, 30 ms of backward and 20 ms of all_reduce each, a bucket for each layer: "
    "how many ms after backward are the gradients averaged?",
    key=lambda: _exposed([30] * 4, 20),
    unit="ms",
    mistakes=[
        (80, "that is without overlap: four all_reduces after backward."),
        (140, "that counts from the start; backward takes 120 ms of it."),
        (0, "the last bucket's gradients exist when backward ends, and it still has to travel."),
    ],
    because="Each all_reduce hides behind the next layer's backward; the last one cannot.",
)


BATCH_NORM = Prediction(
    name="batch_norm_of_zero",
    chapter="01",
    question="One process normalises the batch 0, 2, 4, 6 by its mean and variance: 0 becomes?",
    key=lambda: (0 - 3) / ((9 + 1 + 1 + 9) / 4) ** 0.5,
    mistakes=[
        (-1, "that is what rank 0 makes of its own two samples, whose mean is 1."),
        (-3 / (20 / 3) ** 0.5, "BatchNorm divides by the biased variance, 5, not by 20/3."),
        (-0.6, "divide by the standard deviation, not by the variance."),
        (-3, "that is the distance from the mean; divide it by the standard deviation."),
    ],
    because="The mean is 3, the variance 5: -3 / sqrt(5).",
)


def _small_message_seconds(algorithm: str) -> float:
    return communication.all_reduce_seconds(4096, 64, 10e-6, 1e-10, algorithm)


def _exposed(backward: Sequence[float], all_reduce: float) -> float:
    """How long the last all_reduce outlasts backward, when each starts as soon as it can."""
    ready = free = 0.0
    for duration in backward:
        ready += duration
        free = max(ready, free) + all_reduce
    return free - ready


register(RING_BYTES, REPLICA_MEMORY, MEAN_OF_MEANS, SMALL_MESSAGES, EXPOSED, BATCH_NORM)
