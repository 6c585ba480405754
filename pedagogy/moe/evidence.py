"""What a mixture leaves as evidence: is its router trained, who gets the tokens, and which?

The gradient of a choice
------------------------
Autograd says what the router's gradient is. `by_finite_differences` asks without autograd: move a
weight a little either way, run the layer again, and see how far the loss moves. A choice that does
not change moves nothing; what is left is what flows through the weights of the chosen experts.

Trainings
---------
`train_all` shares trainings out over ranks: they do not talk, each trains its own. `compare_all`
does the same with the seeds of `equal_compute`. Whether experts on ranks equal one process is
asked in `rank_evidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pedagogy.moe.layer import MoELayer, moe_layers
from pedagogy.moe.router import Route
from pedagogy.moe.routing import Routing
from pedagogy.moe.specialisation import (
    joint_counts,
    mutual_information,
    shuffled_information,
    token_classes,
)
from pedagogy.moe.switch import switch_gate
from pedagogy.moe.training import Training, dense_gpt, equal_compute, mixture_gpt, train
from pedagogy.ranks import Group, launch
from pedagogy.workloads import GPT, text_batch

Setting = tuple[int, float]  # number of experts, weight of the balancing loss


# --- the gradient of a choice -------------------------------------------------------------------


def by_finite_differences(
    loss: Callable[[], Tensor], parameter: Tensor, step: float = 1e-6
) -> Tensor:
    """The gradient of `loss()` by `parameter`, from two runs for each of its elements.

    **Shapes** that of `parameter`, which is as it was afterwards.
    """
    gradient = torch.zeros_like(parameter)
    with torch.no_grad():
        for index in range(parameter.numel()):
            flat, before = parameter.view(-1), parameter.view(-1)[index].item()
            flat[index] = before + step
            above = loss()
            flat[index] = before - step
            gradient.view(-1)[index] = (above - loss()) / (2 * step)
            flat[index] = before
    return gradient


def router_gradients(route: Route, num_experts: int = 3) -> tuple[Tensor, Tensor]:
    """A small layer's router gradient: by autograd, and by finite differences, in double precision.

    **Shapes** both (num_experts, 4).
    """
    torch.manual_seed(0)
    layer = MoELayer(4, num_experts, route).double()
    x = torch.randn(8, 4, dtype=torch.double)
    layer(x).square().sum().backward()
    weight = layer.router.weight
    return weight.grad, by_finite_differences(lambda: layer(x).square().sum(), weight)


# --- trainings ----------------------------------------------------------------------------------


def train_all(
    settings: Sequence[Setting], steps: int = 200, world_size: int = 2
) -> dict[Setting, Training]:
    """One `Training` of the small mixture for each setting, shared out over ranks that do not talk.

    **Raises** ValueError for fewer settings than ranks.
    """
    if len(settings) < world_size:
        raise ValueError(f"{len(settings)} settings for {world_size} ranks: at least one each")
    run = launch(_train_share, world_size, list(settings), steps, device="cpu")
    found = {setting: training for share in run for setting, training in share.items()}
    return {setting: found[setting] for setting in settings}


def _train_share(group: Group, settings: list[Setting], steps: int) -> dict[Setting, Training]:
    mine = settings[group.rank :: group.size]
    return {(e, weight): train(mixture_gpt(e), steps, weight) for e, weight in mine}


def compare_all(seeds: Sequence[int], steps: int) -> dict[str, Tensor]:
    """Losses by step of `equal_compute`, a rank for each seed: (seeds, steps), by model."""
    run = launch(_compare_share, len(seeds), list(seeds), steps, device="cpu")
    return {name: torch.stack([share[name][0] for share in run]) for name in run[0]}


def _compare_share(group: Group, seeds: list[int], steps: int) -> dict[str, list[Tensor]]:
    return equal_compute([seeds[group.rank]], steps)


def step_seconds(group: Group, steps: int = 20) -> dict[str, float]:
    """Seconds of a training step of the dense GPT and of that with 8 experts, on one thread."""
    torch.set_num_threads(1)
    found = {}
    for name, model in {"dense": dense_gpt(), "8 experts": mixture_gpt(8)}.items():
        train(model, 5)  # the first steps allocate
        start = group.now()
        train(model, steps)
        found[name] = (group.now() - start) / steps
    return found


def fullest(training: Training, last: int = 20) -> float:
    """The largest number of choices that an expert got in the last steps, over the mean."""
    counts = training.loads[-last:].sum(0)
    return (counts.max() * len(counts) / counts.sum()).item()


def fullest_of_a_step(training: Training, last: int = 20) -> float:
    """`fullest` of each of the last steps by itself, and their mean: even by turns is not even."""
    loads = training.loads[-last:]
    return (loads.amax(1) * loads.size(1) / loads.sum(1)).mean().item()


# --- real tokens in a trained model -------------------------------------------------------------


def routed_text(model: GPT, batch: int = 64, seed: int = 77) -> tuple[Tensor, Routing]:
    """Bytes of text (tokens,), and where the model's first mixture sent them."""
    ids, _ = text_batch(batch, model.sequence, seed=seed)
    with torch.no_grad():
        model(ids)
    return ids.flatten(), next(iter(moe_layers(model))).last


def dropped_shares(routing: Routing, factors: Iterable[float]) -> list[float]:
    """Which share of the tokens Switch's gate would drop with each capacity factor.

    The probabilities alone decide: their logarithms are logits that give them.
    """
    logits = routing.probabilities.log()
    return [switch_gate(logits, one).num_dropped / len(logits) for one in factors]


class Specialisation(NamedTuple):
    """`counts` (classes, experts), the bits that they tell, and those that each shuffle told."""

    counts: Tensor
    bits: float
    shuffled: list[float]


def specialisation(ids: Tensor, routing: Routing, shuffles: int = 100) -> Specialisation:
    """How much a token's expert tells of its class, beside the same after shuffles."""
    classes, num_experts = token_classes(ids), routing.num_experts
    counts = joint_counts(classes, routing.experts, num_experts)
    chance = shuffled_information(classes, routing.experts, num_experts, shuffles)
    return Specialisation(counts, mutual_information(counts), chance)
