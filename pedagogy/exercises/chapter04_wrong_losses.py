"""Chapter 04: Switch's loss with one part exchanged, and what to say about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional


def _chosen(probabilities: Tensor, experts: Tensor) -> Tensor:
    """One-hot rows (tokens, E)."""
    return functional.one_hot(experts, probabilities.size(-1)).to(probabilities.dtype)


def _loss(probabilities: Tensor, experts: Tensor) -> Tensor:
    return _product_of(
        probabilities, _chosen(probabilities, experts).mean(0), probabilities.mean(0)
    )


def _times(probabilities: Tensor, experts: Tensor, factor: Callable[[int, int], float]) -> Tensor:
    """The right loss times a factor of (tokens, E)."""
    return _loss(probabilities, experts) * factor(*probabilities.shape)


def _wrong_by(factor: Callable[[int, int], float]) -> Callable:
    return partial(_times, factor=factor)


def _product_of(probabilities: Tensor, f: Tensor, p: Tensor) -> Tensor:
    return probabilities.size(-1) * (f * p).sum()


def _f_from_the_largest(probabilities, experts):
    return _loss(probabilities, probabilities.argmax(-1))


def _softmax_again(probabilities, experts):
    return _loss(probabilities.softmax(-1), experts)


def _part_of_those_who_chose(probabilities, experts):
    chosen = _chosen(probabilities, experts)
    return _product_of(probabilities, chosen.mean(0), (chosen * probabilities).mean(0))


def _product_before_the_mean(probabilities, experts):
    chosen = _chosen(probabilities, experts)
    return probabilities.size(-1) * (chosen * probabilities).sum(-1).mean()


def _mean_of_all_products(probabilities, experts):
    return probabilities.size(-1) * (_chosen(probabilities, experts) * probabilities).mean()


def _means_of_those_who_chose(probabilities, experts):
    """NaN for an expert that nobody chose."""
    columns = range(probabilities.size(-1))
    p = torch.stack([probabilities[experts == e, e].mean() for e in columns])
    return _product_of(probabilities, _chosen(probabilities, experts).mean(0), p)


def _chosen_probability_for_f(probabilities, experts):
    f = (_chosen(probabilities, experts) * probabilities).mean(0)
    return _product_of(probabilities, f, probabilities.mean(0))


def _means_over_experts(probabilities, experts):
    return _product_of(
        probabilities, _chosen(probabilities, experts).mean(1), probabilities.mean(1)
    )


def _not_summed(probabilities, experts):
    f = _chosen(probabilities, experts).mean(0)
    return probabilities.size(-1) * f * probabilities.mean(0)


def _probability_for_f(probabilities, experts):
    p = probabilities.mean(0)
    return _product_of(probabilities, p, p)


def _probability_for_f_detached(probabilities, experts):
    p = probabilities.mean(0)
    return _product_of(probabilities, p.detach(), p)


def _share_for_p(probabilities, experts):
    f = _chosen(probabilities, experts).mean(0)
    return _product_of(probabilities, f, f)


def _as_many_as_were_chosen(product: Callable) -> Callable:
    def wrong(probabilities, experts):
        return product(torch.bincount(experts) / len(experts), probabilities.mean(0))

    return wrong


def _experts_up_to_the_highest(probabilities, experts):
    """E is taken from `experts`, and P cut to it."""
    seen = int(experts.max()) + 1
    return seen * (torch.bincount(experts) / len(experts) @ probabilities.mean(0)[:seen])


def _sums_before_the_product(probabilities, experts):
    f = _chosen(probabilities, experts).mean(0)
    return probabilities.size(-1) * f.sum() * probabilities.mean(0).sum()


def _other_measure(measure: Callable[[Tensor], Tensor], of_f: bool) -> Callable:
    """Another measure of balance, of f or of P."""

    def wrong(probabilities, experts):
        counted = _chosen(probabilities, experts) if of_f else probabilities
        return measure(counted.mean(0))

    return wrong


def _entropy_of_tokens(probabilities, experts):
    return -(probabilities * probabilities.log()).sum(-1).mean()


_MEASURES = [
    lambda shares: shares.var() / shares.mean() ** 2,
    lambda shares: shares.var(unbiased=False) / shares.mean() ** 2,
    lambda shares: ((shares - 1 / len(shares)) ** 2).sum(),
    lambda shares: ((shares - 1 / len(shares)) ** 2).mean(),
    lambda shares: (shares * shares.log()).sum(),
    lambda shares: -(shares * shares.log()).sum(),
]
_PRODUCTS = [lambda f, p: f * p, lambda f, p: p * f, lambda f, p: f @ p, lambda f, p: p @ f]


_SHORT = (
    "bincount and one_hot end at the highest expert that was chosen. Told the number of experts, "
    "probabilities.size(-1), they count zeros too."
)
_CHOSEN_ONLY = (
    "P counts only the tokens that chose the expert. It is the mean of the whole column, over all "
    "tokens: also those who did not choose it push its probability."
)
_TOKEN_BY_TOKEN = (
    "This is made of the probabilities of the experts that were chosen alone. P_e is a mean over "
    "all tokens, also over those that did not choose e; only then it is multiplied by f_e."
)
_OTHER = "This is another measure of balance; asked for is E sum_e f_e P_e."
_SQUARED = (
    "f is a mean probability here, as P is. f is the share of tokens that really chose the expert, "
    "counted from `experts`."
)

WRONG_LOSSES = [
    (
        _wrong_by(lambda tokens, num_experts: 1 / num_experts),
        "E is missing (or a mean over the experts stands where the sum should be): balanced, the "
        "loss should be 1, whatever E.",
    ),
    (
        _wrong_by(lambda tokens, num_experts: num_experts**-2),
        "This is GShard's convention, 1/E^2 when balanced: the mean over the experts of f P. "
        "Switch's is E times the sum, 1 when balanced.",
    ),
    (
        _wrong_by(lambda tokens, num_experts: num_experts),
        "One factor of E too many: balanced, sum f P is 1/E, so that E times it is 1.",
    ),
    (
        _wrong_by(lambda tokens, num_experts: 0.01),
        "The coefficient 0.01 is in it: it belongs where the loss is added to the others.",
    ),
    (
        _wrong_by(lambda tokens, num_experts: tokens),
        "Too large by the number of tokens: f is a share, not a count, and P a mean, not a sum.",
    ),
    (
        _wrong_by(lambda tokens, num_experts: tokens**2),
        "Too large by the square of the number of tokens: f is a share and P a mean; both are "
        "sums here.",
    ),
    (
        _wrong_by(lambda tokens, num_experts: 1 / tokens),
        "Divided by the number of tokens once more: f and P are means over the tokens already.",
    ),
    (
        _wrong_by(lambda tokens, num_experts: tokens / num_experts),
        "Off by a factor of tokens / E: E is probabilities.size(-1), and f is counts / tokens, "
        "neither the counts themselves nor counts / E.",
    ),
    (
        _f_from_the_largest,
        "f is counted from the largest probabilities. A token may have been sent elsewhere (noise, "
        "chance, a second choice): count `experts`.",
    ),
    (_softmax_again, "`probabilities` are a softmax already: a second one makes them all alike."),
    (_part_of_those_who_chose, _CHOSEN_ONLY),
    (_product_before_the_mean, _TOKEN_BY_TOKEN),
    (_mean_of_all_products, _TOKEN_BY_TOKEN),
    (_means_of_those_who_chose, _TOKEN_BY_TOKEN),
    (
        _chosen_probability_for_f,
        "f adds up the probabilities of the tokens that chose the expert; it counts these tokens, "
        "each as one, and has no gradient.",
    ),
    (
        _means_over_experts,
        "Both means go over the experts; f and P are means over the tokens (dim 0), one number for "
        "each expert.",
    ),
    (_not_summed, "These are E f P of each expert; the loss is their sum."),
    (_probability_for_f, _SQUARED),
    (_probability_for_f_detached, _SQUARED),
    (
        _share_for_p,
        "P is a share of choices here, as f is: no gradient reaches the gate. P is the mean of "
        "the probabilities.",
    ),
    *((_as_many_as_were_chosen(product), _SHORT) for product in _PRODUCTS),
    (
        _experts_up_to_the_highest,
        "E counts all experts, also those that nobody chose: it is probabilities.size(-1), not "
        "experts.max() + 1.",
    ),
    (
        _sums_before_the_product,
        "f and P are each summed before they are multiplied, and these sums are always 1. First "
        "the product for each expert, then the sum.",
    ),
    (_entropy_of_tokens, _OTHER),
    *((_other_measure(measure, of_f), _OTHER) for measure in _MEASURES for of_f in (True, False)),
]
