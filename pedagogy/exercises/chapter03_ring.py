"""Chapter 03, the last exercise: attention over a sequence that no rank holds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pedagogy.exercises.chapter03_wrong_rings import MISTAKES
from pedagogy.exercises.engine import Exercise, bytes_sent_at_most, messages_only
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group


def ring_attention_forward(group: Group, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(d)) v of this rank's queries, over the keys of all ranks.

    Rank i holds the i-th piece of the sequence: q, k, v are (positions, d). With `causal`, a query
    sees the keys up to its own position.
    """
    rank, size = group.rank, group.size
    right, left = (rank + 1) % size, (rank - 1) % size
    m = torch.full((len(q),), -math.inf)
    total, output = torch.zeros(len(q)), torch.zeros_like(q)
    block = torch.stack([k, v])
    for step in range(size):
        source = (rank - step) % size  # whose keys these are
        if not causal or source <= rank:
            scores = q @ block[0].T / math.sqrt(q.size(-1))
            if causal and source == rank:
                future = torch.ones(scores.shape, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(future, -math.inf)
            new = torch.maximum(m, scores.amax(-1))
            weights, old = (scores - new[:, None]).exp(), (m - new).exp()
            total = total * old + weights.sum(-1)
            output = output * old[:, None] + weights @ block[1]
            m = new
        if step < size - 1:
            following = torch.empty_like(block)
            group.exchange([(block, right)], [(following, left)])
            block = following
    return output / total[:, None]


# --- the cases ------------------------------------------------------------------------------------

RANKS, POSITIONS, WIDTH = 3, 4, 2


def whole_sequence() -> list[Tensor]:
    """q, k and v of the whole sequence, the same at each call."""
    draw = torch.Generator().manual_seed(3)
    return [2 * torch.randn(RANKS * POSITIONS, WIDTH, generator=draw) for _ in range(3)]


def _case(causal: bool) -> Callable[[int], tuple]:
    def arguments(rank: int) -> tuple:
        return (*(x.chunk(RANKS)[rank].clone() for x in whole_sequence()), causal)

    return arguments


RING_ATTENTION = Exercise(
    name="ring_attention_forward",
    title="Attention around a ring",
    chapter="03",
    reference=ring_attention_forward,
    cases=[_case(False), _case(True)],
    labels=["causal=False", "causal=True"],
    ranks=RANKS,
    targets=[messages_only, bytes_sent_at_most(2 * (RANKS - 1) * 2 * POSITIONS * WIDTH * 4)],
    mistakes=MISTAKES,
    hints=[
        "First without `causal`. block = torch.stack([k, v]); in each of group.size steps use the "
        "block, then group.exchange([(block, right)], [(following, left)]).",
        "Keep m, l and o for each query, as in online_softmax_merge; start with m = -inf, l = 0, "
        "o = 0, and return o / l.",
        "In step s the block is that of rank (group.rank - s) % group.size. If it is later than "
        "group.rank, compute nothing, and pass it on all the same; if it is your own, mask what "
        "torch.ones(...).triu(1) marks.",
        "The last block need not be passed on: exchange only while step < group.size - 1.",
    ],
)

register(RING_ATTENTION)
