"""A small mixture trained on text: what its gate does over time, and what it buys.

Three questions, one loop
-------------------------
*Does the gate collapse?* Nothing asks it to use all experts. Left alone, one or two of them have
most of the tokens at any time (the lead may change hands), and some have none. `loads` says how
many choices fell on each expert in each step.

*Does it pay?* At k = 1 a mixture costs the FLOPs of the dense model, and a router's. So the two are
compared after equal numbers of steps. They are not compared at equal bytes: the mixture has far
more parameters. Nor at equal seconds: eight small products take longer than one large one.

*What did the experts divide among themselves?* See `specialisation`.

Size
----
Two blocks of 32 hidden, the second one's feed-forward layer a mixture: small enough that hundreds
of steps take seconds. So small a model first learns which byte follows which, where more parameters
hardly help; experts begin to pay when there is more to remember.

Sources: Shazeer et al. 2017, section 4; Fedus et al. 2021 (Switch), sections 2.2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pedagogy.moe.layer import balance_loss, mixture, moe_layers
from pedagogy.moe.router import Route
from pedagogy.moe.switch import switch_gate, switch_loss
from pedagogy.workloads import GPT, text_batch

SIZES = {"layers": 2, "hidden": 32, "heads": 2, "sequence": 32}
BATCH = 16  # sequences: 512 tokens a step

unlimited_switch = partial(switch_gate, capacity_factor=None)


class Training(NamedTuple):
    """What `train` saw: the loss of each step without the balancing loss, in nats.

    **Shapes** `losses` (steps,); `loads` (steps, experts), the choices of the first mixture's
    experts, dropped ones included; (steps, 0) without a mixture.
    """

    model: GPT
    losses: Tensor
    loads: Tensor


def dense_gpt(seed: int = 0) -> GPT:
    """The small GPT of this chapter, all of its layers dense."""
    torch.manual_seed(seed)
    return GPT(**SIZES)


def mixture_gpt(num_experts: int, route: Route = unlimited_switch, seed: int = 0) -> GPT:
    """The same with `num_experts` in place of its second block's feed-forward layer."""
    return mixture(dense_gpt(seed), num_experts, lambda: route)


def train(
    model: GPT,
    steps: int,
    loss_weight: float = 0.0,
    learning_rate: float = 0.01,
    warmup: int = 1,
    seed: int = 0,
) -> Training:
    """Adam on `steps` batches of the text, minimising loss + loss_weight * `switch_loss`.

    The losses that are returned are without the second term.
    The learning rate rises to its value over `warmup` steps.
    **Raises** ValueError without steps. The model is trained in place.
    """
    if steps < 1 or warmup < 1:
        raise ValueError(f"{steps} steps, {warmup} of warm-up: both must be 1 or more")
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
    losses, loads = [], []
    for step in range(steps):
        inputs, targets = text_batch(BATCH, model.sequence, seed=seed, step=step)
        loss = model.loss(inputs, targets)
        losses.append(loss.detach())
        layers = list(moe_layers(model))
        loads.append(layers[0].last.counts if layers else torch.zeros(0, dtype=torch.long))
        if layers and loss_weight:
            loss = loss + loss_weight * balance_loss(model, switch_loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rising.step()
    return Training(model, torch.stack(losses), torch.stack(loads))


def load_shares(training: Training, last: int = 20) -> Tensor:
    """Each expert's share of the choices in the last steps: (experts,), sums to 1."""
    counts = training.loads[-last:].sum(0)
    return counts / counts.sum()


def equal_compute(seeds: Iterable[int], steps: int) -> dict[str, list[Tensor]]:
    """Losses by step, one tensor a seed, of the dense GPT and of Switch with 8 experts.

    The same batches, learning rate and number of steps; FLOPs per token are equal but for the
    router's.
    """
    how = {"learning_rate": 4e-3, "warmup": 30}
    runs: dict[str, list[Tensor]] = {"dense": [], "8 experts": []}
    for seed in seeds:
        runs["dense"].append(train(dense_gpt(seed), steps, seed=seed, **how).losses)
        mixed = train(mixture_gpt(8, seed=seed), steps, 0.01, seed=seed, **how)
        runs["8 experts"].append(mixed.losses)
    return runs
