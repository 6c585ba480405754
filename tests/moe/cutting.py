"""Mixtures for the checks: trained by one process, and by ranks that hold its experts in parts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from pedagogy.data_parallel import average_gradients
from pedagogy.moe import (
    ExpertParallelMoE,
    MoELayer,
    balance_loss,
    mixture,
    moe_layers,
    pooled_switch_loss,
    switch_gate,
    switch_loss,
)
from pedagogy.moe.router import Route
from pedagogy.parameters import broadcast
from pedagogy.ranks import Group, grid
from pedagogy.workloads import GPT
from tests.equality import History, adamw, gpt_batch, token_loss

HIDDEN = 6
SAME = {"rtol": 1e-10, "atol": 1e-12}
WEIGHT = 0.01  # of the balancing loss
unlimited = partial(switch_gate, capacity_factor=None)
limited = partial(switch_gate, capacity_factor=1.0)


def random(seed: int, *shape: int) -> Tensor:
    """Normal values in float64; the same for the same seed, whatever was drawn before."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def optimizer_of(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Its state shows in the second step; the large epsilon keeps rounding errors small."""
    return torch.optim.AdamW(parameters, lr=0.05, eps=1e-4)


def make_layer(num_experts: int = 4, route: Route | nn.Module = unlimited, seed: int = 0):
    """A mixture in float64 whose router already prefers."""
    torch.manual_seed(seed)
    layer = MoELayer(HIDDEN, num_experts, route).double()
    for parameter in layer.router.parameters():
        nn.init.normal_(parameter)
    return layer


def make_gpt(num_experts: int, seed: int = 0) -> GPT:
    """Tied embeddings, frozen positions, and in both mixtures a frozen matrix in expert 1."""
    torch.manual_seed(seed)
    dense = GPT(vocabulary=256, layers=2, hidden=10, heads=2, sequence=7)
    model = mixture(dense, num_experts, lambda: unlimited, every=1).double()
    model.position.weight.requires_grad_(False)
    for layer in moe_layers(model):
        nn.init.normal_(layer.router.weight)
        layer.experts[1].expand.weight.requires_grad_(False)
    return model


def spread(group: Group, model: GPT, layer=ExpertParallelMoE) -> tuple[list[Tensor], list[Tensor]]:
    """In place, the experts of its mixtures over the ranks: (their parameters, all others)."""
    for block in model.blocks:
        if isinstance(block.feed_forward, MoELayer):
            block.feed_forward = layer(group, block.feed_forward)
    experts = [p for mixed in moe_layers(model) for p in mixed.experts.parameters()]
    known = {id(p) for p in experts}
    return experts, [p for p in model.parameters() if id(p) not in known]


def train_parallel(group: Group, num_experts: int, dp: int = 1, steps: int = 3) -> History:
    """A GPT on this rank's part of the batch; the balancing loss is that of all tokens.

    Experts are spread over the axis ep of a grid of dp x ep; their replicas are averaged over dp.
    """
    axes = grid(group, dp=dp, ep=group.size // dp)
    model = make_gpt(num_experts, seed=group.rank)
    broadcast(group, list(model.parameters()))
    experts, shared = spread(axes["ep"], model)
    optimizer, history = adamw(model.parameters()), History()
    for step in range(steps):
        inputs, targets = (t.chunk(group.size)[group.rank] for t in gpt_batch(step))
        output = model(inputs)
        balance = balance_loss(model, partial(pooled_switch_loss, group))
        (token_loss(output, targets) + WEIGHT * group.size * balance).backward()
        average_gradients(group, shared)
        average_gradients(axes["dp"], experts)
        optimizer.step()
        history.note(output, model)
        optimizer.zero_grad()
    return history


def train_alone(num_experts: int, steps: int = 3) -> History:
    """The same GPT in one process."""
    model = make_gpt(num_experts)
    optimizer, history = adamw(model.parameters()), History()
    for step in range(steps):
        inputs, targets = gpt_batch(step)
        output = model(inputs)
        loss = token_loss(output, targets) + WEIGHT * balance_loss(model, switch_loss)
        loss.backward()
        optimizer.step()
        history.note(output, model)
        optimizer.zero_grad()
    return history


def restricted(whole: History, rank: int, size: int, num_experts: int, dp: int = 1) -> History:
    """What rank `rank` should have seen of one process's history: its tokens, its experts."""
    each = num_experts * dp // size
    first = rank % (size // dp) * each

    def part(values: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        mine = {}
        for name, value in values.items():
            head, found, tail = name.partition("experts.")
            if not found:
                mine[name] = value
                continue
            number, _, rest = tail.partition(".")
            if first <= int(number) < first + each:
                mine[f"{head}experts.{int(number) - first}.{rest}"] = value
        return mine

    return History(
        [output.chunk(size)[rank] for output in whole.outputs],
        [part(values) for values in whole.gradients],
        [part(values) for values in whole.weights],
    )
