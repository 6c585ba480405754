"""Chapter 04: a count of tokens that has a gradient, because there is noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.chapter04_wrong_loads import WRONG_VALUES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def smooth_load(logits: Tensor, noisy: Tensor, std: Tensor, k: int) -> Tensor:
    """(E,): how many tokens each expert is expected to get, if its noise alone were drawn again.

    `logits`, `noisy` (the logits with their noise) and `std` are (tokens, E). The chance of expert
    i is Phi((logits_i - kth_excluding(noisy, k, i)) / std_i).
    """
    chances = []
    for i in range(logits.size(-1)):
        others = torch.cat([noisy[:, :i], noisy[:, i + 1 :]], dim=1)
        to_beat = others.topk(k).values[:, -1]  # of each token: the k-th largest of the others
        chances.append(torch.special.ndtr((logits[:, i] - to_beat) / std[:, i]))
    return torch.stack(chances).sum(1)


# --- the cases ------------------------------------------------------------------------------------


def _without_gradient(wrong: Callable, logits: Tensor, *others: object) -> Tensor:
    return wrong(logits.detach(), *others)


_SAMPLED = (
    "it gives something else at each call: a mean of sampled counts comes near the load, but has "
    "no gradient. Compute the chances, by Phi"
)


def _load_and_gradient(
    function: Callable, logits: Tensor, noisy: Tensor, std: Tensor, k: int
) -> dict | None:
    logits.requires_grad_()
    load = function(logits, noisy, std, k)
    if load is None:
        return None
    if isinstance(load, Tensor) and not load.requires_grad:
        again = function(logits, noisy, std, k)
        if not torch.equal(load.nan_to_num(), again.nan_to_num()):
            raise Refused(_SAMPLED)
    if isinstance(load, Tensor) and load.requires_grad:
        factors = torch.arange(1.0, load.numel() + 1).view(load.shape)
        (load * factors).sum().backward()
    return {"the load": load, "the gradient of logits": logits.grad}


def _case(tokens: int, num_experts: int, k: int) -> tuple[Tensor, Tensor, Tensor, int]:
    draw = torch.Generator().manual_seed(num_experts)
    logits = torch.randn(tokens, num_experts, generator=draw)
    std = 0.3 + torch.rand(tokens, num_experts, generator=draw)
    return logits, logits + std * torch.randn(logits.shape, generator=draw), std, k


LOAD = Exercise(
    name="smooth_load",
    title="A count with a gradient",
    chapter="04",
    reference=smooth_load,
    cases=[_case(6, 4, 2), _case(3, 5, 1), _case(4, 3, 2)],
    labels=[
        "6 tokens, 4 experts, k = 2",
        "3 tokens, 5 experts, k = 1",
        "4 tokens, 3 experts, k = 2: all but one",
    ],
    observe=_load_and_gradient,
    mistakes=[
        *WRONG_VALUES,
        (
            partial(_without_gradient, smooth_load),
            "The loads are right, but no gradient reaches the logits: use tensors from end to end "
            "(no item(), no math.erf).",
        ),
        *((partial(_without_gradient, wrong), why) for wrong, why in WRONG_VALUES),
    ],
    hints=[
        "For expert i: others = torch.cat([noisy[:, :i], noisy[:, i + 1:]], dim=1), and of these "
        "the k-th largest of each token, others.topk(k).values[:, -1].",
        "The chance that its noise lifts it above that: torch.special.ndtr((logits[:, i] - "
        "to_beat) / std[:, i]). Sum it over the tokens, and stack the experts.",
    ],
)

register(LOAD)
