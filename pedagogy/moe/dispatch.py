"""Send tokens to experts and bring their outputs back: by sorting, not by a matrix of zeros.

How it works
------------
The choices that were kept are sorted by expert (and within it by place), so that each expert's
tokens lie one behind the other. Experts run on their slice. The outputs are multiplied by their
weights and added to their tokens. A token without a kept choice stays zero: the layer adds nothing
to its residual.

GShard and Switch write dispatch and combine as products with a one-hot tensor of (tokens, experts,
capacity), which a TPU likes; the sums are the same, nearly all of the products are by zero.

Sources: Lepikhin et al. 2020 (GShard), algorithm 2; Fedus et al. 2021 (Switch), figure 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pedagogy.moe.routing import Routing


class Dispatched(NamedTuple):
    """Tokens in the order of their experts: `rows` (kept, hidden), `counts` by expert.

    `tokens` says which token each row is, `weights` with what weight it counts.
    """

    rows: Tensor
    counts: list[int]
    tokens: Tensor
    weights: Tensor


def dispatch(x: Tensor, routing: Routing) -> Dispatched:
    """The kept choices, sorted by expert, then by place. **Shapes** x (tokens, hidden)."""
    token, choice = routing.kept.nonzero(as_tuple=True)
    experts, places = routing.experts[token, choice], routing.places[token, choice]
    order = (experts * (int(places.max()) + 1 if len(places) else 1) + places).argsort()
    token, choice = token[order], choice[order]
    counts = torch.bincount(experts, minlength=routing.num_experts).tolist()
    return Dispatched(x[token], counts, token, routing.weights[token, choice])


def combine(outputs: Tensor, sent: Dispatched, num_tokens: int) -> Tensor:
    """Each token's weighted sum of its experts' outputs; zeros for a token that was dropped."""
    weighted = outputs * sent.weights.unsqueeze(-1).to(outputs.dtype)
    result = outputs.new_zeros(num_tokens, outputs.size(-1))
    return result.index_add(0, sent.tokens, weighted)


def run_experts(
    rows: Tensor, counts: Sequence[int], experts: Sequence[Callable[[Tensor], Tensor]]
) -> Tensor:
    """Each expert's output for its slice of `rows`; an expert without tokens runs on none.

    Running on zero rows gives its parameters a gradient of zeros, so that no rank misses one.
    **Raises** ValueError where the router knows more or fewer experts than there are.
    """
    if len(counts) != len(experts):
        raise ValueError(
            f"the router chooses among {len(counts)} experts; there are {len(experts)}"
        )
    parts = rows.split(list(counts))
    return torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
