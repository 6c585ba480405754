"""What a mixture of experts costs: parameters that grow, FLOPs that stay, and messages.

Why it exists
-------------
In a dense layer twice the parameters are twice the FLOPs of each token. With E experts, of which a
token uses k, the two part:

    parameters      E times the layer, and E h of the router; memory with them
    FLOPs           k times the layer for each token, and 2 E h of the router (training: 6 E h)
    communication   with experts on other ranks: each choice travels there and back, twice

"No extra compute" is true of the experts at k = 1, and of nothing else in the list.

Batches shrink
--------------
Of b tokens an expert sees k b / E: with 256 experts and k = 4 a batch of 1,024 becomes one of 16,
too few for a matrix product to be fast. With the experts spread over d ranks of b tokens each, an
expert sees d times as many again.

Two levels of gates
-------------------
h E multiplications a token become h (G + k E/G) with G groups, fewest at G = sqrt(k E). Two levels
of messages, and what any exchange of tokens costs, are counted in `moe_messages`.

A router of one expert has nothing to choose: `num_experts=1` is the dense layer, without a router.

Sources: Shazeer et al. 2017, section 3.1 and appendix B; Fedus et al. 2021 (Switch), table 9;
Raffel et al. 2020 (T5) for its layers.
"""

from __future__ import annotations

from pedagogy.costs.memory import gpt_parameters
from pedagogy.costs.moe_messages import (
    Link,
    Traffic,
    exchange_seconds,
    expert_parallel_bytes,
    flat_bytes,
    flat_messages,
    two_level_bytes,
    two_level_messages,
    two_levels_pay_below,
)
from pedagogy.costs.multiples import nearest_multiples

__all__ = [
    "Link",
    "Traffic",
    "exchange_seconds",
    "expert_batch",
    "expert_parallel_bytes",
    "expert_parameters",
    "flat_bytes",
    "flat_messages",
    "flops_per_token",
    "gate_multiplications",
    "moe_parameters",
    "t5_parameters",
    "two_level_bytes",
    "two_level_messages",
    "two_levels_pay_below",
]


def expert_parameters(hidden: int, ffn: int, matrices: int = 2) -> int:
    """Weights of one expert, without biases: `matrices` of (hidden, ffn); gated ones have 3.

    **Raises** ValueError for a size below 1.
    """
    _check(hidden=hidden, ffn=ffn, matrices=matrices)
    return matrices * hidden * ffn


def moe_parameters(
    layers: int,
    hidden: int,
    num_experts: int,
    vocabulary: int = 256,
    sequence: int = 64,
    every: int = 2,
) -> int:
    """Parameters of `mixture(GPT(...), num_experts, ...)`, tied, with a `Router`.

    A mixture has E (8 h^2 + 5 h) + E h where a dense layer has 8 h^2 + 5 h.
    **Raises** ValueError for a size below 1, or `every` above the layers.
    """
    _check(hidden=hidden, num_experts=num_experts, vocabulary=vocabulary, sequence=sequence)
    mixtures = _mixtures(layers, num_experts, every)
    more = (num_experts - 1) * (8 * hidden**2 + 5 * hidden) + num_experts * hidden
    return gpt_parameters(layers, hidden, vocabulary, sequence) + mixtures * more


def flops_per_token(
    layers: int,
    hidden: int,
    sequence: int,
    vocabulary: int = 256,
    num_experts: int = 1,
    k: int = 1,
    every: int = 2,
) -> int:
    """FLOPs of forward and backward for one token of our GPT, where no choice is dropped.

    3 (L (24 h^2 + 4 s h) + 2 h V), and 3 (16 h^2 (k - 1) + 2 E h) for each mixture: k experts
    instead of one, and the router. Without experts (1) it is `gpt_training_flops` of one token.
    **Raises** ValueError for a size below 1, k above the experts, or `every` above the layers.
    """
    _check(hidden=hidden, sequence=sequence, vocabulary=vocabulary)
    _check_k(k, num_experts)
    layer = 24 * hidden**2 + 4 * sequence * hidden
    more = 16 * hidden**2 * (k - 1) + 2 * hidden * num_experts
    mixtures = _mixtures(layers, num_experts, every)
    return 3 * (layers * layer + mixtures * more + 2 * hidden * vocabulary)


def t5_parameters(
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    head_dim: int,
    num_experts: int = 1,
    every: int = 2,
    matrices: int = 3,
    vocabulary: int = 32_128,
) -> int:
    """Parameters of T5 1.1 (no biases, output not tied), or with experts of a Switch Transformer.

    `layers` in the encoder and as many in the decoder, with one and two attentions of 4 matrices
    (hidden, heads * head_dim); norms of `hidden` before each part and after each stack; 32 relative
    positions for each head and stack; two tables of the vocabulary.
    **Raises** ValueError for a size below 1, or `every` above the layers.
    **Source** Raffel et al. 2020, section 2.1; Fedus et al. 2021, table 9.
    """
    _check(heads=heads, head_dim=head_dim, vocabulary=vocabulary)
    one = expert_parameters(hidden, ffn, matrices)
    attention = 4 * hidden * heads * head_dim
    encoder_and_decoder = layers * (3 * attention + 2 * one + 5 * hidden)
    more = (num_experts - 1) * one + num_experts * hidden
    ends = 2 * vocabulary * hidden + 2 * hidden + 2 * 32 * heads
    return encoder_and_decoder + 2 * _mixtures(layers, num_experts, every) * more + ends


def gate_multiplications(hidden: int, num_experts: int, num_groups: int = 1, k: int = 1) -> int:
    """Multiplications of a token's gate: h E, or with groups h (G + k E/G).

    The gates of the k chosen groups compute. 1 group is one level.
    **Raises** ValueError where the groups do not divide the experts, or k is above the groups.
    **Source** Shazeer et al. 2017, appendix B.
    """
    _check(hidden=hidden, num_experts=num_experts, num_groups=num_groups)
    if num_groups == 1:
        _check_k(k, num_experts)
        return hidden * num_experts
    if num_experts % num_groups:
        near = nearest_multiples(num_experts, num_groups)
        raise ValueError(f"{num_experts} experts in {num_groups} groups: {near} experts would do")
    _check_k(k, num_groups)
    return hidden * (num_groups + k * num_experts // num_groups)


def expert_batch(tokens: int, k: int, num_experts: int, ranks: int = 1) -> float:
    """Tokens that an expert sees on average: k b / n; k b d / n with d ranks of b tokens each.

    **Raises** ValueError for a number below 1, or k above the experts.
    **Source** Shazeer et al. 2017, section 3.1.
    """
    _check(tokens=tokens, ranks=ranks)
    _check_k(k, num_experts)
    return k * tokens * ranks / num_experts


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} is {number}: must be 1 or more")


def _check_k(k: int, num_experts: int) -> None:
    if not 1 <= k <= num_experts:
        raise ValueError(f"k = {k} of {num_experts}: must be 1 to {num_experts}")


def _mixtures(layers: int, num_experts: int, every: int) -> int:
    """How many of the layers are mixtures: none with a single expert."""
    _check(layers=layers, num_experts=num_experts, every=every)
    if num_experts == 1:
        return 0
    if every > layers:
        raise ValueError(f"every = {every} with {layers} layers: must be 1 to {layers}")
    return layers // every
