"""Chapter 03: two blocks of attention are put together, without the scores of either."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def online_softmax_merge(
    m1: Tensor, l1: Tensor, o1: Tensor, m2: Tensor, l2: Tensor, o2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """m, l and o of all keys, from those of two blocks of keys.

    For each query, over the keys of a block: m = max of the scores, l = sum of exp(score - m), and
    o = sum of exp(score - m) v, which is not divided by l yet. m, l (queries,); o (queries, d).
    """
    m = torch.maximum(m1, m2)
    first, second = (m1 - m).exp(), (m2 - m).exp()
    return m, l1 * first + l2 * second, o1 * first[:, None] + o2 * second[:, None]


# --- mistakes -------------------------------------------------------------------------------------


def _not_rescaled(m1, l1, o1, m2, l2, o2):
    return torch.maximum(m1, m2), l1 + l2, o1 + o2


def _output_not_rescaled(m1, l1, o1, m2, l2, o2):
    new, total, _ = online_softmax_merge(m1, l1, o1, m2, l2, o2)
    return new, total, o1 + o2


def _old_alone(m1, l1, o1, m2, l2, o2):
    new = torch.maximum(m1, m2)
    old = (m1 - new).exp()
    return new, l1 * old + l2, o1 * old[:, None] + o2


def _new_alone(m1, l1, o1, m2, l2, o2):
    new = torch.maximum(m1, m2)
    added = (m2 - new).exp()
    return new, l1 + l2 * added, o1 + o2 * added[:, None]


def _upside_down(m1, l1, o1, m2, l2, o2):
    new = torch.maximum(m1, m2)
    old, added = (new - m1).exp(), (new - m2).exp()
    return new, l1 * old + l2 * added, o1 * old[:, None] + o2 * added[:, None]


def _to_the_maximum_zero(m1, l1, o1, m2, l2, o2):
    old, added = m1.exp(), m2.exp()
    output = o1 * old[:, None] + o2 * added[:, None]
    return torch.maximum(m1, m2), l1 * old + l2 * added, output


def _one_maximum(m1, l1, o1, m2, l2, o2):
    m = torch.cat([m1, m2]).max()
    old, added = (m1 - m).exp(), (m2 - m).exp()
    return m, l1 * old + l2 * added, o1 * old[:, None] + o2 * added[:, None]


def _one_maximum_for_each(m1, *others):
    m, total, output = _one_maximum(m1, *others)
    return torch.full_like(m1, m), total, output


def _normalised(m1, l1, o1, m2, l2, o2):
    new, total, output = online_softmax_merge(m1, l1, o1, m2, l2, o2)
    return new, total, output / total[:, None]


def _sum_of_normalised(m1, l1, o1, m2, l2, o2):
    new, total, _ = online_softmax_merge(m1, l1, o1, m2, l2, o2)
    return new, total, o1 / l1[:, None] + o2 / l2[:, None]


def _mean_of_normalised(m1, l1, o1, m2, l2, o2):
    new, total, output = _sum_of_normalised(m1, l1, o1, m2, l2, o2)
    return new, total, output / 2


# --- the cases ------------------------------------------------------------------------------------

QUERIES, WIDTH = 3, 2


def block_of(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m, l and o of a block: scores (queries, keys), values (keys, width)."""
    highest = scores.amax(-1)
    weights = (scores - highest[:, None]).exp()
    return highest, weights.sum(-1), weights @ values


def _blocks(keys: int, others: int, shift: float) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(keys)
    scores = torch.randn(QUERIES, keys + others, generator=draw)
    scores[:, keys:] += shift
    values = torch.randn(keys + others, WIDTH, generator=draw)
    first = block_of(scores[:, :keys], values[:keys])
    return (*first, *block_of(scores[:, keys:], values[keys:]))


def _nothing_yet() -> tuple[Tensor, ...]:
    lowest = torch.full((QUERIES,), -math.inf)
    empty = (lowest, torch.zeros(QUERIES), torch.zeros(QUERIES, WIDTH))
    return (*empty, *_blocks(4, 1, 0.0)[:3])


_FOR_EACH = (
    "One maximum stands for all queries: each has its own, torch.maximum(m1, m2) element by "
    "element."
)

MERGE = Exercise(
    name="online_softmax_merge",
    title="A softmax in two pieces",
    chapter="03",
    reference=online_softmax_merge,
    cases=[_blocks(3, 5, 0.0), _blocks(2, 2, 3.0), _blocks(5, 2, -3.0), _nothing_yet()],
    labels=[
        "blocks of 3 and 5 keys",
        "larger scores in the second block",
        "smaller scores in the second block",
        "no key met before the second block",
    ],
    mistakes=[
        (
            _not_rescaled,
            "The two sums were made with different maxima: l1 is in units of exp(m1), l2 in units "
            "of exp(m2). Bring both to the new maximum before they are added.",
        ),
        (
            _output_not_rescaled,
            "l is right, but o is a sum of the same exponentials and wants the same factors.",
        ),
        (
            _old_alone,
            "Only the old block is rescaled: right where the second block has the larger maximum, "
            "and wrong where it has the smaller one.",
        ),
        (
            _new_alone,
            "Only the second block is rescaled: what was summed before wants exp(m1 - m), which is "
            "1 only where the maximum stays.",
        ),
        (
            _upside_down,
            "The factor is upside down: exp(score - m) becomes exp(score - new) by a factor of "
            "exp(m - new), which is at most 1.",
        ),
        (
            _to_the_maximum_zero,
            "exp(m1) brings a sum to a maximum of 0, where large scores run out of range. Bring it "
            "to the new one: the factor is exp(m1 - m).",
        ),
        (_one_maximum, _FOR_EACH),
        (_one_maximum_for_each, _FOR_EACH),
        (
            _normalised,
            "o is divided by l already. The next block could not be added to it: divide once, when "
            "all blocks are in.",
        ),
        (
            _sum_of_normalised,
            "These are sums of finished softmaxes: each block's weights add up to 1, and together "
            "to 2. Add the sums o1 and o2 (rescaled), not o1/l1 and o2/l2.",
        ),
        (
            _mean_of_normalised,
            "The mean of two finished softmaxes gives both blocks the same weight, however large "
            "their scores. Add the rescaled sums instead.",
        ),
    ],
    hints=[
        "The new maximum is torch.maximum(m1, m2), element by element.",
        "exp(score - new) = exp(score - m) exp(m - new): one factor for each query and block, for "
        "l and for o.",
    ],
)

register(MERGE)
