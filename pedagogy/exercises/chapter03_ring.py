"""Chapter 03, the last exercise: attention over a sequence that no rank holds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

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


# --- mistakes: the same ring with one part exchanged ----------------------------------------------


def _scores(rank, source, q, k, causal):
    """Scores with their mask, or None if all keys are later."""
    if causal and source > rank:
        return None
    scores = q @ k.T / math.sqrt(q.size(-1))
    if causal and source == rank:
        scores = scores.masked_fill(torch.ones(scores.shape).triu(1) > 0, -math.inf)
    return scores


def _merged(met: list[tuple[Tensor, Tensor]]) -> Tensor:
    scores, values = zip(*met, strict=True)
    return torch.cat(scores, -1).softmax(-1) @ torch.cat(values)


def _ring(
    group, q, k, v, causal, score=_scores, merge=_merged, way=1, last=1, own=False, leave=False
):
    """Ring attention that keeps what it met and merges it at the end."""
    rank, size = group.rank, group.size
    block, met = torch.stack([k, v]), []
    for step in range(size):
        scores = score(rank, (rank - step) % size, q, block[0], causal)
        if scores is not None:
            met.append((scores, block[1]))
        elif leave:
            break
        if step < size - last:
            following = torch.empty_like(block)
            sent = torch.stack([k, v]) if own else block
            ends = (rank + way) % size, (rank - way) % size
            group.exchange([(sent, ends[0])], [(following, ends[1])])
            block = following
    return merge(met)


def _finished(met):
    return [scores.softmax(-1) @ v for scores, v in met]


def _mean_of_blocks(group, *arguments):
    return _ring(group, *arguments, merge=lambda met: sum(_finished(met)) / len(met))


def _sum_of_blocks(group, *arguments):
    return _ring(group, *arguments, merge=lambda met: sum(_finished(met)))


def _not_rescaled(group, *arguments):
    def merge(met):
        weights = [(scores - scores.amax(-1, keepdim=True)).exp() for scores, _ in met]
        total = sum(one.sum(-1, keepdim=True) for one in weights)
        return sum(one @ v for one, (_, v) in zip(weights, met, strict=True)) / total

    return _ring(group, *arguments, merge=merge)


def _own_keys_alone(group, q, k, v, causal):
    return _merged([(_scores(group.rank, group.rank, q, k, causal), v)])


def _own_block_again(group, *arguments):
    return _ring(group, *arguments, own=True)


def _not_causal(group, q, k, v, causal):
    return _ring(group, q, k, v, False)


def _every_block_a_triangle(group, *arguments):
    def score(rank, source, q, k, causal):
        return _scores(rank, rank, q, k, causal)

    return _ring(group, *arguments, score=score)


def _whole_blocks_alone(group, *arguments):
    def score(rank, source, q, k, causal):
        return None if causal and source > rank else _scores(rank, source, q, k, False)

    return _ring(group, *arguments, score=score)


def _other_way_round(group, *arguments):
    return _ring(group, *arguments, way=-1)


def _not_divided_by_the_root(group, q, *others):
    return _ring(group, q * math.sqrt(q.size(-1)), *others)


def _leaves_the_ring(group, *arguments):
    return _ring(group, *arguments, leave=True)


def _once_too_often(group, *arguments):
    return _ring(group, *arguments, last=0)


def _gathered(group, q, k, v, causal):
    keys, values = torch.cat(group.all_gather(k)), torch.cat(group.all_gather(v))
    scores = q @ keys.T / math.sqrt(q.size(-1))
    if causal:
        mine = torch.arange(len(q))[:, None] + group.rank * len(q)
        scores = scores.masked_fill(torch.arange(len(keys)) > mine, -math.inf)
    return scores.softmax(-1) @ values


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
    mistakes=[
        (
            _own_keys_alone,
            "Each query meets its own rank's keys alone: send keys and values on until all have "
            "come by.",
        ),
        (
            _mean_of_blocks,
            "This is the mean of the blocks' attentions. A block with small scores deserves less: "
            "add up unnormalised sums, each brought to one maximum, and divide once at the end.",
        ),
        (
            _sum_of_blocks,
            "Each block's softmax adds up to 1, so together they add up to the number of blocks: "
            "keep unnormalised sums, and divide once at the end.",
        ),
        (
            _not_rescaled,
            "The blocks' sums are added without being brought to one maximum: where the maximum "
            "grows, what was summed before is multiplied by exp(old - new).",
        ),
        (_own_block_again, "Every rank sends its own keys each time: send on what has arrived."),
        (
            _not_causal,
            "Without a mask it is right, but a causal query sees no key that comes after it.",
        ),
        (
            _every_block_a_triangle,
            "The triangular mask is for the rank's own block: all keys of an earlier one are seen, "
            "none of a later one.",
        ),
        (
            _whole_blocks_alone,
            "Later ranks' blocks are left out, but in its own block a query still sees later keys.",
        ),
        (
            _other_way_round,
            "Without a mask it is right, so all blocks come by; but with one, the wrong ones are "
            "masked. A block that came from the left in step s is that of rank - s.",
        ),
        (_not_divided_by_the_root, "The scores are not divided by sqrt(d)."),
        (
            _leaves_the_ring,
            "A rank leaves the loop at a block that is masked, and no longer passes on what the "
            "others wait for: skip the computation, not the exchange.",
        ),
        (_once_too_often, "After the last block everything is passed on once more, for nobody."),
        (
            _gathered,
            "Keys and values of the whole sequence are gathered on every rank: what was to be "
            "avoided. Only one block besides the rank's own should be there at a time.",
        ),
    ],
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
