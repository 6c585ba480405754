"""How many FLOPs training needs, and how long they take.

Why it exists
-------------
A matrix product of a weight with a token costs one multiply and one add for each parameter: 2
FLOPs. Backward does it twice, once for the gradient of the input and once for that of the weight:
4 more. So training costs about 6 FLOPs for each parameter and token, whatever the architecture.

What the estimate leaves out
----------------------------
Attention multiplies activations with activations: no parameter, but 4 s^2 h FLOPs a layer and
sequence in forward. And an embedding has parameters that multiply nothing. `gpt_training_flops` is
exact for our GPT, and equals PyTorch's own counter; the two shares shrink as the model grows.

Units: FLOPs are operations, and `flops_per_second` a rate. With full recomputation forward runs
twice and 6 becomes 8. A mixture of experts parts parameters from FLOPs: `moe_parameters` and
`flops_per_token` are written in `pedagogy.costs.moe` and can be called from here too.
"""

from __future__ import annotations

from pedagogy.costs.moe import flops_per_token, moe_parameters

__all__ = [
    "flops_per_token",
    "gpt_training_flops",
    "moe_parameters",
    "training_flops",
    "training_seconds",
]


def training_flops(num_parameters: int, num_tokens: int) -> int:
    """FLOPs of forward and backward, estimated: 6 x parameters x tokens."""
    return 6 * num_parameters * num_tokens


def gpt_training_flops(
    layers: int, hidden: int, sequence: int, batch: int, vocabulary: int = 256
) -> int:
    """FLOPs of one forward and backward of `pedagogy.workloads.GPT`: all matrix products, exactly.

    Forward: L (24 b s h^2 + 4 b s^2 h) + 2 b s h V; backward twice that. The causal half is not
    saved: the masked products are computed.
    **Source** a layer: Narayanan et al. 2021 (PTD-P), appendix.
    """
    tokens = batch * sequence
    layer = 24 * tokens * hidden**2 + 4 * tokens * sequence * hidden
    return 3 * (layers * layer + 2 * tokens * hidden * vocabulary)


def training_seconds(
    num_parameters: int,
    num_tokens: int,
    num_devices: int,
    flops_per_second: float,
    flops_per_parameter_and_token: int = 6,
) -> float:
    """Seconds of training on devices that each *reach* `flops_per_second` (not their peak).

    With recomputation pass 8: this is then equation 4 of Narayanan et al. 2021 (PTD-P), 8TP/(nX).
    **Raises** ValueError if there is no device or no speed.
    """
    if num_devices < 1 or flops_per_second <= 0:
        raise ValueError(
            f"{num_devices} devices at {flops_per_second} FLOP/s: both must be positive"
        )
    flops = flops_per_parameter_and_token * num_parameters * num_tokens
    return flops / (num_devices * flops_per_second)
