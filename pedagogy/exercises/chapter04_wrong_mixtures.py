"""Chapter 04: dispatch and combine with one part exchanged, and what to say about it.

`_mixture` loops over the experts; most mistakes are one other argument. An answer that sorts the
choices goes wrong in ways of its own, which stand in `chapter04_wrong_sorted`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pedagogy.exercises.chapter04_wrong_sorted import WRONG_SORTED


def _weight_outputs(expert: Callable, rows: Tensor, weights: Tensor) -> Tensor:
    return expert(rows) * weights[:, None]


def _detached(expert: Callable, rows: Tensor, weights: Tensor) -> Tensor:
    return expert(rows).detach() * weights[:, None]


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


def _column_of_the_expert(skip: bool) -> Callable:
    """weights[token, e]: there are k columns, and an IndexError for the first e that has none."""

    def wrong(x, weights, experts_of, experts):
        result = torch.zeros_like(x)
        for e, expert in enumerate(experts):
            token = (experts_of == e).any(1).nonzero()[:, 0]
            if len(token) or not skip:
                result = _add(result, token, expert(x[token]) * weights[token, e][:, None])
        return result

    return wrong


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
_BY_CHOICE = (
    "weights has a column for each choice, not for each expert: weights[token, choice], where "
    "token, choice = (experts_of == e).nonzero(as_tuple=True)."
)

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
    (
        partial(_mixture, run=_detached),
        "The experts' outputs are detached: no gradient goes back through them, to x or to the "
        "experts' weights. Only `experts_of` has none.",
    ),
    (_column_of_the_expert(False), _BY_CHOICE),
    (_column_of_the_expert(True), _BY_CHOICE),
    *WRONG_SORTED,
]
