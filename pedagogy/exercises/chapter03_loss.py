"""Chapter 03: cross-entropy where every rank has the logits of some tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pedagogy.exercises.engine import Exercise, bytes_sent_at_most
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group


def vocab_cross_entropy(group: Group, logits_shard: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy over all positions, on every rank.

    `logits_shard` (positions, V / N) holds the logits of tokens rank * V/N, ..., on this rank;
    `labels` (positions,) is the same on all ranks.
    """
    rows = logits_shard.size(-1)
    highest = group.all_reduce(logits_shard.amax(-1), "max")
    total = group.all_reduce((logits_shard - highest[:, None]).exp().sum(-1))
    place = labels - group.rank * rows
    here = (place >= 0) & (place < rows)
    own = logits_shard.gather(-1, place.clamp(0, rows - 1)[:, None])[:, 0]
    of_label = group.all_reduce(own * here)  # one rank has it, the others add 0
    return (total.log() + highest - of_label).mean()


# --- mistakes -------------------------------------------------------------------------------------


def _of_label(group, logits_shard, labels):
    rows = logits_shard.size(-1)
    place = labels - group.rank * rows
    here = (place >= 0) & (place < rows)
    return logits_shard.gather(-1, place.clamp(0, rows - 1)[:, None])[:, 0] * here


def _no_maximum(group, logits_shard, labels):
    total = group.all_reduce(logits_shard.exp().sum(-1))
    return (total.log() - group.all_reduce(_of_label(group, logits_shard, labels))).mean()


def _own_maximum(group, logits_shard, labels):
    highest = logits_shard.amax(-1)
    total = group.all_reduce((logits_shard - highest[:, None]).exp().sum(-1))
    of_label = group.all_reduce(_of_label(group, logits_shard, labels))
    return (total.log() + highest - of_label).mean()


def _losses(group, logits_shard, of_label):
    highest = group.all_reduce(logits_shard.amax(-1), "max")
    total = group.all_reduce((logits_shard - highest[:, None]).exp().sum(-1))
    return total.log() + highest - of_label


def _loss(group, logits_shard, of_label):
    return _losses(group, logits_shard, of_label).mean()


def _each_position(group, logits_shard, labels):
    return _losses(group, logits_shard, group.all_reduce(_of_label(group, logits_shard, labels)))


def _sum_over_positions(group, logits_shard, labels):
    return _each_position(group, logits_shard, labels).sum()


def _one_maximum(group, logits_shard, labels):
    highest = group.all_reduce(logits_shard.amax(), "max")
    total = group.all_reduce((logits_shard - highest).exp().sum(-1))
    of_label = group.all_reduce(_of_label(group, logits_shard, labels))
    return (total.log() + highest - of_label).mean()


def _maximum_left_out(group, logits_shard, labels):
    highest = group.all_reduce(logits_shard.amax(-1), "max")
    total = group.all_reduce((logits_shard - highest[:, None]).exp().sum(-1))
    return (total.log() - group.all_reduce(_of_label(group, logits_shard, labels))).mean()


def _summed_maxima(group, logits_shard, labels):
    highest = group.all_reduce(logits_shard.amax(-1))
    total = group.all_reduce((logits_shard - highest[:, None]).exp().sum(-1))
    of_label = group.all_reduce(_of_label(group, logits_shard, labels))
    return (total.log() + highest - of_label).mean()


def _modulo(group, logits_shard, labels):
    places = (labels % logits_shard.size(-1))[:, None]
    return _loss(group, logits_shard, group.all_reduce(logits_shard.gather(-1, places)[:, 0]))


def _not_zeroed(group, logits_shard, labels):
    rows = logits_shard.size(-1)
    places = (labels - group.rank * rows).clamp(0, rows - 1)[:, None]
    return _loss(group, logits_shard, group.all_reduce(logits_shard.gather(-1, places)[:, 0]))


def _label_of_this_rank_alone(group, logits_shard, labels):
    return _loss(group, logits_shard, _of_label(group, logits_shard, labels))


def _divided(group, logits_shard, labels):
    return vocab_cross_entropy(group, logits_shard, labels) / group.size


def _softmax_of_a_shard(group, logits_shard, labels):
    total = logits_shard.logsumexp(-1)
    return (total - group.all_reduce(_of_label(group, logits_shard, labels))).mean()


def _logarithms_summed(group, logits_shard, labels):
    total = group.all_reduce(logits_shard.logsumexp(-1))
    return (total - group.all_reduce(_of_label(group, logits_shard, labels))).mean()


def _all_logits(group, logits_shard, labels):
    logits = torch.cat(group.all_gather(logits_shard), -1)
    return torch.nn.functional.cross_entropy(logits, labels)


# --- the cases ------------------------------------------------------------------------------------

RANKS, VOCABULARY = 2, 16
LOGITS = ((5, 1.0, 0.0), (4, 100.0, 0.0), (3, 1.0, 200.0))  # positions, scale, peak
# three numbers a position
ENOUGH = sum(4 * 3 * n * 2 * (RANKS - 1) // RANKS for n, _, _ in LOGITS)


def whole_logits(positions: int, scale: float, peak: float) -> tuple[Tensor, Tensor]:
    """Logits of all tokens, and labels of which each rank has some; the same at each call.

    `peak` is added to one logit of the last position.
    """
    draw = torch.Generator().manual_seed(positions)
    logits = scale * torch.randn(positions, VOCABULARY, generator=draw)
    logits[-1, 0] += peak
    return logits, torch.arange(positions) * 7 % VOCABULARY


def _case(positions: int, scale: float, peak: float) -> Callable[[int], tuple]:
    def arguments(rank: int) -> tuple:
        logits, labels = whole_logits(positions, scale, peak)
        return logits.chunk(RANKS, -1)[rank].clone(), labels

    return arguments


LOSS = Exercise(
    name="vocab_cross_entropy",
    title="A loss without the logits of the others",
    chapter="03",
    reference=vocab_cross_entropy,
    cases=[_case(*one) for one in LOGITS],
    labels=[
        "5 positions",
        "4 positions with logits in the hundreds",
        "3 positions, and one logit of 200 in one of them",
    ],
    ranks=RANKS,
    targets=[bytes_sent_at_most(ENOUGH)],
    mistakes=[
        (
            _no_maximum,
            "The exponential of a logit over 88 is infinite in fp32: subtract the largest logit of "
            "the position first, and add it back behind the logarithm.",
        ),
        (
            _own_maximum,
            "Each rank subtracts the maximum of its own logits, so the sums that are added up are "
            "scaled differently. Subtract the maximum over all ranks: all_reduce(..., 'max').",
        ),
        (
            _one_maximum,
            "One maximum for all positions: a position far below it has only zeros; take "
            "`amax(-1)`.",
        ),
        (
            _maximum_left_out,
            "The maximum is subtracted before the exponentials and not added back behind the "
            "logarithm.",
        ),
        (
            _summed_maxima,
            "The maxima are added up; all_reduce(..., 'max') takes the largest. A wrong one still "
            "cancels, until the exponentials run out of range.",
        ),
        (
            _modulo,
            "Every rank adds the logit at label % rows, though only one of them has the label. "
            "Shift the label by rank * rows, and add 0 where it lies outside.",
        ),
        (
            _not_zeroed,
            "A label that lies on another rank is looked up at the clamped place, and what stands "
            "there is added: multiply it by 0.",
        ),
        (
            _label_of_this_rank_alone,
            "Only the rank that has the label subtracts its logit: sum it over the ranks.",
        ),
        (
            _divided,
            "The loss is divided by the ranks. They share the vocabulary, not the positions: each "
            "position is counted once already.",
        ),
        (
            _softmax_of_a_shard,
            "The sum of exponentials is over this rank's tokens alone: it wants those of the "
            "others too.",
        ),
        (
            _logarithms_summed,
            "The ranks' logarithms are added up, which multiplies their sums of exponentials: add "
            "the sums, and take the logarithm then.",
        ),
        (_each_position, "These are the losses of the positions: their mean is asked for."),
        (_sum_over_positions, "The positions' losses are added up: their mean is asked for."),
        (
            _all_logits,
            "All logits travel. Three numbers for each position are enough.",
        ),
    ],
    hints=[
        "loss = log(sum exp(z - max)) + max - z[label]: which three numbers of a position lie on "
        "several ranks?",
        "group.all_reduce(x, 'max') for the maximum; the sum of exp(z - max) and the label's logit "
        "are plain sums.",
        "place = labels - group.rank * rows; here = (place >= 0) & (place < rows). Look up at "
        "place.clamp(0, rows - 1), multiply by here, and sum over the ranks.",
    ],
)

register(LOSS)
