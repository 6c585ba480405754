"""The small layer that scores experts: one product, and a pure function that chooses.

Why it exists
-------------
Each gate of this room is a pure function of logits. Something has to hold the weights that give the
logits: one matrix of (num_experts, hidden), and for Shazeer's noise a second one.

Two details keep it stable. The product and the softmax are computed in float32 whatever the rest
of the model is in: two logits that nearly tie are equal in bfloat16, and then another rank, or the
same one when it recomputes, may choose another expert. And the first weights are small, of
standard deviation 0.1 / sqrt(hidden): a gate that starts almost indifferent tries every expert
before it prefers one. (Switch reduces the scale s of sqrt(s / n) tenfold, to about a third of the
usual spread; here it is a tenth.)

Sources: Fedus et al. 2021 (Switch), section 2.4; Shazeer et al. 2017, section 2.1 and appendix A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.moe.routing import Routing
from pedagogy.moe.shazeer import importance_loss, load_loss, top_k

Route = Callable[[Tensor], Routing]  # logits (tokens, num_experts) -> Routing


class Router(nn.Linear):
    """Logits in float32 or better, then `route`.

    In float32 also where the layer's weights and tokens have 16 bits: what they were rounded to is
    widened, and no second rounding makes ties.
    **Shapes** tokens (tokens, hidden) -> a Routing of them.
    **Raises** ValueError without experts, or if `route` is given tokens that are not a matrix.
    """

    def __init__(self, hidden: int, num_experts: int, route: Route) -> None:
        if num_experts < 1:
            raise ValueError(f"{num_experts} experts; at least 1 is needed")
        super().__init__(hidden, num_experts, bias=False)
        nn.init.normal_(self.weight, std=0.1 / hidden**0.5)
        self.route = route

    def logits(self, tokens: Tensor) -> Tensor:
        """(tokens, num_experts), in float32 or better, under autocast too."""
        return wide_product(tokens, self.weight)

    def forward(self, tokens: Tensor) -> Routing:
        """Which experts each token goes to."""
        return self.route(self.logits(tokens))


class NoisyTopKGate(nn.Module):
    """Shazeer's gate: W_g and W_noise, zero at first, so that experts begin equal but for noise.

    **Shapes** tokens (tokens, hidden) -> a Routing of them. `loss` is that of the last forward,
    importance + load, without a coefficient; zero in evaluation, where there is no noise.
    """

    def __init__(self, hidden: int, num_experts: int, k: int, capacity: int | None = None) -> None:
        super().__init__()
        if not 1 <= k < num_experts:
            raise ValueError(
                f"k is {k}; with {num_experts} experts it can be 1 to {num_experts - 1}"
            )
        self.k, self.capacity = k, capacity
        self.gate = nn.Parameter(torch.zeros(num_experts, hidden))
        self.noise = nn.Parameter(torch.zeros(num_experts, hidden))
        self.loss = torch.zeros(())

    def forward(self, tokens: Tensor) -> Routing:
        """Which experts each token goes to; with noise only while it trains."""
        logits = wide_product(tokens, self.gate)
        if not self.training:
            self.loss = logits.new_zeros(())
            return top_k(logits, self.k, self.capacity)
        std = functional.softplus(wide_product(tokens, self.noise))
        noisy = logits + std * torch.randn_like(logits)
        routing = top_k(noisy, self.k, self.capacity)
        self.loss = importance_loss(routing.asked) + load_loss(logits, noisy, std, self.k)
        return routing

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without the last loss, which belongs to a graph."""
        return self.__dict__ | {"loss": torch.zeros(())}


def wide_product(tokens: Tensor, weight: Tensor) -> Tensor:
    """tokens @ weight^T in float32, or float64 if the tokens are; autocast does not reach it."""
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    with torch.autocast(tokens.device.type, enabled=False):
        return functional.linear(tokens.to(dtype), weight.to(dtype))
