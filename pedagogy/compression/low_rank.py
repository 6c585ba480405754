"""Low rank: one large matrix as the product of two thin ones.

Why it exists
-------------
A matrix of m by n has m n numbers; a product of (m, r) and (r, n) has r (m + n). The best such
product, in the sum of squared errors, keeps the r largest singular values: the error is the root of
the sum of the squares of the others.

What it saves
-------------
Only below the *break-even rank*: r (m + n) < m n. For a square matrix that is half its size, so
that keeping "80 % of the singular values" makes it 1.6 times as large. Below it, weights, FLOPs,
gradients and optimizer states shrink alike, in training too: the two thin matrices are ordinary
layers. Trained weights seldom have low rank by themselves; the network trains on afterwards.

Sources: Eckart and Young 1936; Denton et al. 2014, section 3.
"""

from __future__ import annotations

import torch
from torch import nn

from pedagogy.compression.checks import check_layer, check_weights


def low_rank(linear: nn.Linear, rank: int) -> nn.Sequential:
    """Two linear layers whose product is the best approximation of this rank; the bias stands once.

    **Shapes** (out, in) becomes (rank, in) without a bias, then (out, rank) with it.
    **Raises** ValueError for a layer that is not linear, a rank that is not from 1 to min(out, in),
    or a weight not finite.
    """
    check_layer(linear, nn.Linear)
    out, in_ = linear.weight.shape
    if not 1 <= rank <= min(out, in_):
        raise ValueError(f"rank {rank} of a matrix of {out} by {in_}: from 1 to {min(out, in_)}")
    check_weights(linear.weight)
    with torch.no_grad():
        u, s, v = torch.linalg.svd(linear.weight.double(), full_matrices=False)
        root = s[:rank].sqrt()  # shared out, so that both train at the same pace
        first = nn.Linear(in_, rank, bias=False).to(linear.weight)
        second = nn.Linear(rank, out, bias=linear.bias is not None).to(linear.weight)
        first.weight.copy_(root[:, None] * v[:rank])
        second.weight.copy_(u[:, :rank] * root)
        if linear.bias is not None:
            second.bias.copy_(linear.bias)
    return nn.Sequential(first, second)


def break_even_rank(m: int, n: int) -> int:
    """The largest rank at which r (m + n) is less than m n. **Raises** ValueError below 1 by 1."""
    if m < 1 or n < 1:
        raise ValueError(f"a matrix of {m} by {n}: both at least 1")
    return (m * n - 1) // (m + n)
