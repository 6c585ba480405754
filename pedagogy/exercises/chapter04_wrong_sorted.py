"""Chapter 04: wrong ways to dispatch by sorting the choices, and what to say about each.

`_sorted` is right as it stands; a mistake replaces the token of a row, its weight, or the way back.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor


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


def _own(weighted: Tensor, order: Tensor, token: Tensor, x: Tensor) -> Tensor:
    """Each output goes to its own token, whatever row of x went in."""
    return torch.zeros_like(x).index_add(0, order // (len(order) // len(x)), weighted)


_UNSORTED = "The outputs come back sorted by expert: each must go to its own token."

WRONG_SORTED = [
    (
        partial(_sorted, finish=_added_by_index),
        "`result[token] += ...` with the same token twice keeps one of its contributions. "
        "index_add adds all of them.",
    ),
    (
        partial(_sorted, token_of=lambda order, x, k: order % len(x), finish=_own),
        "x.repeat(k, 1) lists all tokens k times over, so the experts get rows of other tokens: "
        "row r of experts_of.flatten() belongs to token r // k, as in x.repeat_interleave(k, 0).",
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
