"""Chapter 03: attention around a ring with one part exchanged, and what to say about it.

`_ring` keeps the scores of every block that came by and puts them together at the end. That wants
more memory than the exercise allows itself, and a mistake is then one other argument.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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


def _not_divided_by_the_sum(group, *arguments):
    def merge(met):
        scores, values = torch.cat([one for one, _ in met], -1), torch.cat([v for _, v in met])
        return (scores - scores.amax(-1, keepdim=True)).exp() @ values

    return _ring(group, *arguments, merge=merge)


def _online(met):
    """Block by block, as the exercise does: a query without a key in its first block gets NaN."""
    m = torch.full((len(met[0][0]),), -math.inf)
    total, output = 0.0, 0.0
    for scores, v in met:
        new = torch.maximum(m, scores.amax(-1))
        weights, old = (scores - new[:, None]).exp(), (m - new).exp()
        total, output = total * old + weights.sum(-1), output * old[:, None] + weights @ v
        m = new
    return output / total[:, None]


def _blind_to_itself(group, *arguments, merge=_online):
    def score(rank, source, q, k, causal):
        scores = _scores(rank, source, q, k, causal)
        if causal and source == rank:
            scores.diagonal().fill_(-math.inf)
        return scores

    return _ring(group, *arguments, score=score, merge=merge)


def _blind_to_itself_at_once(group, *arguments):
    return _blind_to_itself(group, *arguments, merge=_merged)


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


_DIAGONAL = (
    "A query sees its own key too: `triu(1)` marks what comes after the diagonal, `triu(0)` the "
    "diagonal as well, and the first query is left without any key."
)

MISTAKES = [
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
    (
        _not_divided_by_the_sum,
        "o is returned as it is, a sum of unnormalised weights times values: divide it by l at the "
        "end.",
    ),
    (_blind_to_itself, _DIAGONAL),
    (_blind_to_itself_at_once, _DIAGONAL),
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
]
