"""Chapter 03: two more predictions, one before the first cut and one before the ring."""

from __future__ import annotations

from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register


def _sum_with_a_bias_on_each(ranks: int = 4, bias: int = 10) -> int:
    weights = [1, 2, 3, 4]
    return sum(sum(weights[rank::ranks]) + bias for rank in range(ranks))


def _scores_of_a_block(sequence: int = 32_768, ranks: int = 8) -> float:
    return 2 * (sequence // ranks) ** 2 / 1e6


BIAS = Prediction(
    name="bias_on_four_ranks",
    chapter="03",
    question="Weights 1, 2, 3, 4 on four ranks, inputs of 1, bias 10: each rank multiplies, adds "
    "the bias, and the four results are summed. What comes out?",
    key=_sum_with_a_bias_on_each,
    mistakes=[
        (20, "that is what one process computes: 1 + 2 + 3 + 4 + 10. Here each rank adds a bias."),
        (10, "that is the sum of the products: each rank adds the bias to its own."),
        (40, "those are the four biases: the products are there too."),
    ],
    because="10 of products and four biases; one process has 20. The next cells put it right.",
)

SCORES = Prediction(
    name="ring_score_megabytes",
    chapter="03",
    question="One head, 32,768 positions, 16 bit: its scores take 2,147 MB. The sequence is cut "
    "over 8 ranks, and a rank meets one block of keys at a time. MB of scores on it?",
    key=_scores_of_a_block,
    unit="MB",
    mistakes=[
        (268.4, "that would be an eighth: its queries against all keys at once."),
        (2147.5, "that is the whole matrix: a rank has an eighth of the queries."),
        (32, "those are MiB, of 2**20 bytes; an MB has 10**6."),
        (67.1, "that is with 4 bytes for a number; 16 bit are 2."),
        (134.2, "a sixteenth: both the queries and the keys of a block are an eighth."),
    ],
    because="4,096 queries against 4,096 keys: 1/64 of the matrix at a time.",
)

register(BIAS, SCORES)
