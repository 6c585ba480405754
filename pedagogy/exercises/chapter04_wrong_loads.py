"""Chapter 04: Shazeer's load with one part exchanged, and what to say about it.

A load is four choices: what is to be beaten, the distance to it, its chance, and the sum. A mistake
makes one of them otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor


def _others(noisy: Tensor) -> list[Tensor]:
    """(tokens, E - 1) of each expert: without it."""
    return [torch.cat([noisy[:, :i], noisy[:, i + 1 :]], 1) for i in range(noisy.size(-1))]


def _excluding(noisy: Tensor, k: int, largest: bool = True) -> Tensor:
    """(tokens, E): the k-th of the others, from the largest (or from the smallest) on."""
    ranked = [one.sort(dim=1, descending=largest).values for one in _others(noisy)]
    return torch.stack([one[:, k - 1] for one in ranked], 1)


def _load(
    logits: Tensor,
    noisy: Tensor,
    std: Tensor,
    k: int,
    threshold: Callable = _excluding,
    chance: Callable[[Tensor], Tensor] = torch.special.ndtr,
    total: Callable[[Tensor], Tensor] = lambda chances: chances.sum(0),
) -> Tensor:
    return total(chance((logits - threshold(noisy, k)) / std))


def _squared_cv(chances: Tensor, unbiased: bool) -> Tensor:
    load = chances.sum(0)
    return load.var(unbiased=unbiased) / load.mean() ** 2


def _clean_threshold(logits, noisy, std, k):
    return _load(logits, logits, std, k)


def _clean_threshold_detached(logits, noisy, std, k):
    return _load(logits, logits.detach(), std, k)


def _noisy_above(logits, noisy, std, k):
    return _load(noisy, noisy, std, k)


def _clean_and_noisy_swapped(logits, noisy, std, k):
    return _load(noisy, logits, std, k)


def _no_std(logits, noisy, std, k):
    return _load(logits, noisy, torch.ones_like(std), k)


def _times_std(logits, noisy, std, k):
    return _load(logits, noisy, 1 / std, k)


def _variance(logits, noisy, std, k):
    return _load(logits, noisy, std**2, k)


def _chosen(noisy: Tensor, k: int) -> Tensor:
    return torch.zeros_like(noisy).scatter(1, noisy.topk(k).indices, 1.0)


def _counted(logits, noisy, std, k):
    return _chosen(noisy, k).sum(0)


def _counted_in_integers(logits, noisy, std, k):
    return _chosen(noisy, k).sum(0).long()


def _of_all(noisy: Tensor, k: int) -> Tensor:
    return noisy.topk(k).values[:, -1:]


def _others_with_a_zero(noisy: Tensor, k: int) -> Tensor:
    """The expert's own logit is set to 0 instead of left out."""
    own = torch.eye(noisy.size(-1), dtype=torch.bool)
    masked = noisy[:, None].masked_fill(own, 0.0)  # (tokens, expert left out, E)
    return masked.topk(k).values[..., -1]


def _turned_round(noisy: Tensor, k: int) -> Tensor:
    inside, outside = noisy.topk(k + 1).values[:, k - 1 :].split(1, dim=1)
    return torch.where(noisy >= inside, inside, outside)


def _one_too_far(noisy: Tensor, k: int) -> Tensor:
    """As `_excluding` with k + 1, by topk: its error is another where there are k others."""
    return torch.stack([one.topk(k + 1).values[:, -1] for one in _others(noisy)], 1)


def _other_std(new: Callable[[Tensor], Tensor]) -> Callable:
    return lambda logits, noisy, std, k: _load(logits, noisy, new(std).expand_as(std), k)


def _softmax_k_times(logits, noisy, std, k):
    return k * logits.softmax(-1).sum(0)


def _weights(logits, noisy, std, k):
    chosen = noisy.topk(k)
    return torch.zeros_like(noisy).scatter(1, chosen.indices, chosen.values.softmax(-1)).sum(0)


def _probabilities(logits, noisy, std, k):
    return (_chosen(noisy, k) * logits.softmax(-1)).sum(0)


_ALL = (
    "The k-th largest of all is compared with itself where the expert is among the k: its chance "
    "is then about one half. Leave the expert out first, and take the k-th of the others."
)
_HARD = (
    "This is the count itself, which changes in jumps: no gradient. The load is the sum of chances."
)
_IMPORTANCE = (
    "This adds up gate weights: the importance of an expert. Its load is a number of tokens, each "
    "counted with the chance that it chooses the expert."
)
_CLEAN = (
    "The k-th largest is that of the clean logits. The others keep the noise that they drew: take "
    "it from `noisy`."
)
_ONE_FOR_ALL = "`std` differs by token and expert: each distance is divided by its own."
_TOO_FAR = (
    "The (k+1)-th largest of the others is one too far: an expert is among the k if it beats the "
    "k-th of them (in Python, index k - 1)."
)
_CV = "This is CV squared, the loss that is made of the loads. The loads alone are asked for, (E,)."

WRONG_VALUES = [
    (partial(_load, threshold=_of_all), _ALL),
    (
        partial(_load, threshold=lambda noisy, k: noisy.topk(k + 1).values[:, -1:]),
        "The (k+1)-th of all is right for the k that were chosen: without them, one fewer is above "
        "it. For the others, the k-th of all is already that of the others.",
    ),
    (
        partial(_load, threshold=lambda noisy, k: _excluding(noisy, 1)),
        "Every expert is compared with the largest of the others. To be among k it must beat the "
        "k-th of them.",
    ),
    (partial(_load, threshold=lambda noisy, k: _excluding(noisy, k + 1)), _TOO_FAR),
    (partial(_load, threshold=_one_too_far), _TOO_FAR),
    (
        partial(_load, threshold=_turned_round),
        "Turned round: a chosen expert has to beat the (k+1)-th of all, since itself it is among "
        "the k above; each of the others, the k-th.",
    ),
    (
        partial(_load, threshold=partial(_excluding, largest=False)),
        "The k-th *smallest* of the others: kthvalue and sort begin with the smallest, topk with "
        "the largest.",
    ),
    (
        lambda logits, noisy, std, k: _load(noisy, noisy, std, k, _of_all),
        "The noisy logits are on both sides, and the k-th largest is that of all. On the left "
        "stands the clean logit, on the right the k-th of the *other* noisy ones.",
    ),
    (
        lambda logits, noisy, std, k: _load(logits, logits, std, k, _of_all),
        "The clean logits are on both sides, and the k-th largest is that of all. On the right "
        "stands the k-th of the *other* experts' noisy logits.",
    ),
    (
        partial(_load, threshold=_others_with_a_zero),
        "The expert's own logit is set to 0, and 0 can be among the largest: leave it out, or put "
        "-inf in its place.",
    ),
    (_clean_threshold, _CLEAN),
    (_clean_threshold_detached, _CLEAN),
    (
        _noisy_above,
        "The noisy logit is on the left: its noise is what is drawn again, so the chance is asked "
        "from the clean one.",
    ),
    (
        _clean_and_noisy_swapped,
        "`logits` and `noisy` have changed places: the expert's own logit is the clean one, the "
        "others keep the noise that they drew.",
    ),
    (_no_std, "The distance is not divided by `std`: Phi counts in standard deviations."),
    (_times_std, "The distance is multiplied by `std`; Phi wants it in standard deviations."),
    (_other_std(lambda std: std.mean()), _ONE_FOR_ALL),
    (_other_std(lambda std: std.mean(0)), _ONE_FOR_ALL),
    (_other_std(lambda std: std.mean(1, keepdim=True)), _ONE_FOR_ALL),
    (
        _other_std(lambda std: std * 2**0.5),
        "`std` is multiplied by the root of 2, as if the noise of both sides were drawn again. "
        "Only this expert's is; what it has to beat stays.",
    ),
    (_variance, "The distance is divided by the square of `std`; Phi counts in `std`."),
    (
        partial(_load, chance=torch.sigmoid),
        "A sigmoid stands where Phi should: the noise is normal (torch.special.ndtr).",
    ),
    (
        partial(_load, chance=torch.erf),
        "erf goes from -1 to 1; a chance from 0 to 1: Phi(z) = (1 + erf(z / sqrt(2))) / 2.",
    ),
    (
        partial(_load, chance=lambda z: (1 + torch.erf(z)) / 2),
        "The root of 2 is missing: Phi(z) = (1 + erf(z / sqrt(2))) / 2.",
    ),
    (
        partial(_load, chance=lambda z: torch.special.ndtr(-z)),
        "The sign is turned: this is the chance that the expert is *not* among the k.",
    ),
    (
        partial(_load, chance=lambda z: (-z * z / 2).exp() / math.sqrt(2 * math.pi)),
        "This is the density of the normal distribution; Phi is the area below z.",
    ),
    (
        partial(_load, total=lambda chances: chances.sum(1)),
        "Summed over the experts, one number for each token (about k): sum over the tokens, dim 0.",
    ),
    (
        partial(_load, total=lambda chances: chances.mean(0)),
        "The mean over the tokens is a share. A load is a number of tokens: the sum.",
    ),
    (
        partial(_load, total=lambda chances: chances),
        "These are the chances of each token; an expert's load is their sum over the tokens.",
    ),
    (partial(_load, total=partial(_squared_cv, unbiased=False)), _CV),
    (partial(_load, total=partial(_squared_cv, unbiased=True)), _CV),
    (_weights, _IMPORTANCE),
    (_probabilities, _IMPORTANCE),
    (
        _softmax_k_times,
        "k times the softmax adds up to the right total, but it is not the chance of being among "
        "the k: that asks what is to be beaten, and how large the noise is.",
    ),
    (_counted, _HARD),
    (_counted_in_integers, _HARD),
]
