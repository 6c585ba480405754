"""Noisy top-k: the sparse gate of the first large mixtures of experts, and its two losses.

How it works
------------
    H(x)_i = (x W_g)_i + noise * softplus((x W_noise)_i)      noise is standard normal
    G(x)   = softmax(keep the k largest of H(x), the others at minus infinity)

The choice itself has no gradient. It flows through the *weights* G(x), which is why k >= 2 was
thought necessary: with k = 1, a softmax over one number is 1 whatever the gate computes.

Two losses
----------
Without a push, experts that are chosen early learn more and are chosen more: the gate collapses.

    importance   CV^2 of the sum of gate weights of each expert: equal *weights*
    load         CV^2 of the expected number of tokens of each expert: equal *counts*

CV is the standard deviation over the mean. A count has no gradient; the load is smooth, because it
is a probability over the noise: the chance that the expert is among the k largest if its noise were
drawn again,  P(x, i) = Phi(((x W_g)_i - kth_excluding(H(x), k, i)) / softplus((x W_noise)_i)).

Source: Shazeer et al. 2017, section 2.1, section 4 and appendix A.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pedagogy.moe.routing import Routing, keep_within, places_of, widened


def noisy_top_k_gate(
    logits: Tensor,
    k: int,
    noise_std: Tensor | None = None,
    capacity: int | None = None,
    generator: torch.Generator | None = None,
) -> Routing:
    """Each token goes to the k experts of the largest logits, with noise if `noise_std` is given.

    **Shapes** logits, noise_std (tokens, num_experts). `.gates` sums to 1 in each row (without
    drops). Ties go to the lower expert. The softmax is computed in float32 or better.
    **Raises** ValueError for k outside 1 .. num_experts.
    Source: Shazeer et al. 2017, equations 3 to 5.
    """
    noisy = logits if noise_std is None else logits + noise_std * _normal(logits, generator)
    return top_k(noisy, k, capacity)


def top_k(logits: Tensor, k: int, capacity: int | None = None) -> Routing:
    """The k largest logits of each token, weighted by a softmax over those k."""
    num_experts = logits.size(-1)
    if not 1 <= k <= num_experts:
        raise ValueError(f"k is {k}; with {num_experts} experts it can be 1 to {num_experts}")
    wide = widened(logits)
    experts = wide.argsort(dim=-1, descending=True, stable=True)[:, :k]
    weights = wide.gather(-1, experts).softmax(-1)
    places = places_of(experts, num_experts)
    return Routing(experts, weights, places, keep_within(places, capacity), wide.softmax(-1))


def importance_loss(gates: Tensor) -> Tensor:
    """CV^2 of the experts' summed weights, without its coefficient: 0 when all are equal.

    `gates` are those of all choices (`Routing.asked`): after drops a full expert looks no fuller
    than its buffer. **Shapes** (tokens, num_experts) -> ().
    Source: Shazeer et al. 2017, equations 6 and 7.
    """
    return squared_cv(gates.sum(0))


def load_loss(logits: Tensor, noisy_logits: Tensor, noise_std: Tensor, k: int) -> Tensor:
    """CV^2 of the experts' expected loads, without its coefficient.

    **Shapes** all (tokens, num_experts) -> (). **Raises** as `expected_load`.
    Source: Shazeer et al. 2017, equation 11.
    """
    return squared_cv(expected_load(logits, noisy_logits, noise_std, k))


def expected_load(logits: Tensor, noisy_logits: Tensor, noise_std: Tensor, k: int) -> Tensor:
    """The smooth count of each expert's tokens: (num_experts,), with a gradient.

    **Raises** ValueError where k is not below the number of experts (then every expert is chosen).
    Source: Shazeer et al. 2017, equations 8 to 10.
    """
    num_experts = logits.size(-1)
    if not 1 <= k < num_experts:
        raise ValueError(
            f"k is {k}; the load of {num_experts} experts needs 1 to {num_experts - 1}"
        )
    largest = noisy_logits.topk(k + 1, dim=-1).values  # (tokens, k + 1)
    inside, outside = largest[:, k - 1 : k], largest[:, k : k + 1]
    # the k-th largest of the *other* experts: the (k+1)-th of all for one that is among the k
    threshold = torch.where(noisy_logits >= inside, outside, inside)
    standard = (logits - threshold) / noise_std
    return (0.5 * (1 + torch.erf(standard / 2**0.5))).sum(0)


def squared_cv(values: Tensor) -> Tensor:
    """(standard deviation / mean)^2 of a vector, the standard deviation over all of it."""
    return values.var(unbiased=False) / values.mean().square().clamp(min=1e-20)


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.empty_like(like).normal_(generator=generator)
