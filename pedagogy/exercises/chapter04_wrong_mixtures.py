"""Chapter 04: dispatch and combine with one part exchanged, and what to say about it.

`_mixture` loops over the experts; most mistakes are one other argument. An answer that sorts the
choices goes wrong in ways of its own: there, `_sorted` stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor


def _weight_outputs(expert: Callable, rows: Tensor, weights: Tensor) -> Tensor:
    return expert(rows) * weights[:, None]


def _own_weight(weights: Tensor, token: Tensor, choice: Tensor) -> Tensor:
    return weights[token, choice]


def _add(result: Tensor, token: Tensor, weighted: Tensor) -> Tensor:
    return result.index_add(0, token, weighted)


def _assign(result: Tensor, token: Tensor, weighted: Tensor) -> Tensor:
    result = result.clone()
    result[token] = weighted
    return result


def _mixture(x, weights, experts_of, experts, run=_weight_outputs, put=_add, counted=_own_weight):
    result = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        token, choice = (experts_of == e).nonzero(as_tuple=True)
        result = put(result, token, run(expert, x[token], counted(weights, token, choice)))
    return result


def _reweighted(new: Callable[[Tensor], Tensor]) -> Callable:
    """The right mixture, with other weights."""
    return lambda x, weights, *others: _mixture(x, new(weights), *others)


def _choices_alone(which: slice) -> Callable:
    return lambda x, weights, experts_of, experts: _mixture(
        x, weights[:, which], experts_of[:, which], experts
    )


def _all_on_all(x, weights, experts_of, experts):
    gates = torch.zeros(len(x), len(experts)).scatter(1, experts_of, weights)
    return sum(gates[:, e, None] * expert(x) for e, expert in enumerate(experts))


def _all_on_masked(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        mask = (experts_of == e).any(1)[:, None]
        weight = (weights * (experts_of == e)).sum(1)[:, None]
        result = result + expert(x * mask) * mask * weight
    return result


def _all_for_each_choice(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for choice in range(experts_of.size(1)):
        for e, expert in enumerate(experts):
            mask = (experts_of[:, choice] == e)[:, None]
            result = result + expert(x) * mask * weights[:, choice, None]
    return result


def _all_on_all_unweighted(x, weights, experts_of, experts):
    return _all_on_all(x, torch.ones_like(weights), experts_of, experts)


def _no_gradient(x, weights, experts_of, experts):
    with torch.no_grad():
        return _mixture(x, weights, experts_of, experts)


def _last_choice_stays(x, weights, experts_of, experts):
    """A loop over the choices, and in it over the experts, each of which assigns."""
    for choice in range(experts_of.size(1)):
        result = _mixture(x, weights[:, [choice]], experts_of[:, [choice]], experts)
    return result


def _sorted(
    x,
    weights,
    experts_of,
    experts,
    token_of=lambda order, x, k: order // k,
    weight_of=lambda weights, order: weights.flatten()[order],
    finish=lambda weighted, order, token, x: torch.zeros_like(x).index_add(0, token, weighted),
):
    k, order = experts_of.size(1), experts_of.flatten().argsort(stable=True)
    counts = torch.bincount(experts_of.flatten(), minlength=len(experts)).tolist()
    token = token_of(order, x, k)
    parts = x[token].split(counts)
    outputs = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    return finish(outputs * weight_of(weights, order)[:, None], order, token, x)


def _summed(weighted: Tensor, order: Tensor, token: Tensor, x: Tensor) -> Tensor:
    """As if row r belonged to token r // k."""
    return weighted.view(len(x), -1, x.size(1)).sum(1)


def _added_by_index(weighted: Tensor, order: Tensor, token: Tensor, x: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    result[token] += weighted
    return result


def _ones(weights: Tensor, order: Tensor) -> Tensor:
    return torch.ones(len(order))


_DENSE = (
    "The numbers are right, but every expert ran on every token, and most of its work was thrown "
    "away: as many FLOPs as a dense layer of all experts. Give each expert its own rows: x[token]."
)
_LAST = (
    "With k = 2 one contribution of each token overwrites the other: assigning keeps the last. Add "
    "them (index_add)."
)
_FLAT = (
    "Weights of shape (rows,) do not multiply rows of (rows, hidden): make them a column, "
    "weights[token, choice][:, None]."
)
_OF_ALL_CHOICES = (
    "An output is multiplied by all of its token's weights together, their sum or mean: its own is "
    "weights[token, choice]."
)
_UNSORTED = "The outputs come back sorted by expert: each must go to its own token."

MISTAKES = [
    (_all_on_all, _DENSE),
    (_all_on_masked, _DENSE),
    (_all_for_each_choice, _DENSE),
    (
        _all_on_all_unweighted,
        "Every expert ran on every token, and the outputs are not multiplied by their weights: "
        "give each expert x[token], and multiply by weights[token, choice].",
    ),
    (
        _reweighted(torch.ones_like),
        "The outputs are not multiplied by their weights: the router would get no gradient at all.",
    ),
    (
        _reweighted(lambda weights: torch.full_like(weights, 1 / weights.size(1))),
        "This is the mean of the k outputs. Each counts with its own weight, and through it flows "
        "the router's gradient.",
    ),
    (
        _reweighted(lambda weights: weights / weights.size(1)),
        "The weighted outputs are divided by k: the weights alone say how much each counts.",
    ),
    (
        partial(_mixture, run=lambda expert, rows, weights: expert(rows * weights[:, None])),
        "The weights multiply what goes into the experts. An expert is not linear: multiply what "
        "comes out.",
    ),
    (partial(_mixture, run=lambda expert, rows, weights: expert(rows) * weights), _FLAT),
    (partial(_mixture, run=lambda expert, rows, weights: weights * expert(rows)), _FLAT),
    (
        partial(_mixture, counted=lambda weights, token, choice: weights[token, 0]),
        "Every output is multiplied by the weight of its token's *first* choice: the weight of a "
        "choice is weights[token, choice].",
    ),
    (
        partial(_mixture, counted=lambda weights, token, choice: weights[token].sum(1)),
        _OF_ALL_CHOICES,
    ),
    (
        partial(_mixture, counted=lambda weights, token, choice: weights[token].mean(1)),
        _OF_ALL_CHOICES,
    ),
    (
        _reweighted(lambda weights: weights.detach()),
        "The output is right, but the weights get no gradient: the router learns through them "
        "alone, since a choice has no gradient.",
    ),
    (
        _reweighted(lambda weights: weights / weights.sum(1, keepdim=True)),
        "The weights are scaled to sum to 1. Use them as they are: with k = 1 this makes every "
        "weight 1, and the router learns nothing.",
    ),
    (
        _reweighted(lambda weights: weights.softmax(1)),
        "The weights go through a softmax once more. They come from one: use them as they are.",
    ),
    (partial(_mixture, put=_assign), _LAST),
    (_last_choice_stays, _LAST),
    (
        partial(_sorted, finish=_added_by_index),
        "`result[token] += ...` with the same token twice keeps one of its contributions. "
        "index_add adds all of them.",
    ),
    (
        _choices_alone(slice(1)),
        "Only the first choice of each token is there: with k = 2 there is a second.",
    ),
    (
        lambda x, *others: x + _mixture(x, *others),
        "x itself is added. The residual belongs to the block around the layer, not to the layer.",
    ),
    (
        _no_gradient,
        "The output is right, but it has no gradient: experts and router are trained together, "
        "through this function (no no_grad(), no detach()).",
    ),
    (partial(_sorted, finish=_summed), _UNSORTED),
    (partial(_sorted, finish=lambda weighted, order, token, x: weighted), _UNSORTED),
    (
        partial(_sorted, weight_of=_ones, finish=lambda weighted, order, token, x: weighted),
        "These are the experts' outputs, sorted by expert: multiply each by its weight, and add it "
        "to its own token.",
    ),
    (
        partial(
            _sorted,
            finish=lambda weighted, order, token, x: _summed(weighted[order], order, token, x),
        ),
        "`outputs[order]` sorts a second time. The way back is the inverse: order.argsort(), or "
        "index_add with the token of each row.",
    ),
    (
        partial(_sorted, token_of=lambda order, x, k: order % len(x)),
        "Row r of experts_of.flatten() is the choice of token r // k, not r % tokens.",
    ),
    (
        partial(_sorted, token_of=lambda order, x, k: order),
        "experts_of.flatten() has k rows for each token: row r is a choice of token r // k, not a "
        "token.",
    ),
    (
        partial(_sorted, weight_of=lambda weights, order: weights.flatten()),
        "The outputs are sorted by expert, and the weights are not: weights.flatten()[order].",
    ),
]
