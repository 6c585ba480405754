"""Synchronous data parallelism as one would first write it.

What it is
    Every rank holds the whole model (a *replica*) and its own part of the batch. A step is: forward
    and backward on the own part; average the gradients over the ranks; step the optimizer. The mean
    over the batch is the mean of the ranks' means, if all parts have the same size (`uneven.py`
    where they have not). Equal gradients applied to equal weights leave equal weights: the replicas
    stay equal without ever being compared, provided that they *start* equal. That takes a broadcast
    (`broadcast_parameters`).

What it costs
    Time: each rank sends 2(N-1)/N times the gradients, after backward has ended, one message for
    each parameter. `buckets.py` and `data_parallel.py` do better. Memory: every rank holds
    everything. Data parallelism alone never makes a model fit: it multiplies the memory by N.

Average the gradients, not the weights
    Averaging the weights after each rank has stepped gives the same numbers for plain SGD, and
    others for every optimizer with a state: each rank's state then follows the rank's own noise.

A parameter without a gradient
    A parameter that took no part in a rank's forward has no gradient there, while other ranks may
    have one; a rank that skips it leaves the others waiting. So the ranks first tell each other
    which gradients exist: where some rank has one, the others contribute zero; where none has, it
    stays None on all, as in one process, and the optimizer skips it.

Source: Li et al. 2020, "PyTorch Distributed", section 2.2 and 3.2.3 (unused parameters).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.parameters import broadcast, fill_gradients
from pedagogy.ranks import Group, Pace


@torch.no_grad()
def average_gradients(group: Group, parameters: Iterable[Tensor]) -> None:
    """Every parameter's `.grad` is the mean over the ranks, in place; one all_reduce for each.

    **Shapes** the same parameters in the same order on all ranks; a tied one counts once.
    **Bytes** 2(N-1)/N of the gradients, and one byte for each parameter to agree on which exist.
    **Raises** ValueError for a sparse gradient.
    """
    for parameter in fill_gradients(group, parameters):
        group.all_reduce_(parameter.grad, "mean")


def broadcast_parameters(group: Group, module: nn.Module, source: int = 0) -> None:
    """All parameters and buffers of `module` have the values of rank `source`, in place.

    **Bytes** all parameters and buffers, from `source` to every other rank.
    **Raises** ValueError where there is no rank `source`, or the ranks' modules differ in the
    names, shapes or dtypes of what they hold.
    """
    if not 0 <= source < group.size:
        raise ValueError(f"source is {source}; the ranks of this group are 0 to {group.size - 1}")
    check_same_tensors(group, [*module.named_parameters(), *module.named_buffers()])
    broadcast(group, [*module.parameters(), *module.buffers()], source)


def check_same_tensors(group: Group, named: Sequence[tuple[str, Tensor]]) -> None:
    """Raise ValueError, on all ranks, where names, shapes or dtypes differ between the ranks."""
    lines = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in named]
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=7).digest()
    numel = sum(tensor.numel() for _, tensor in named)
    mine = torch.tensor([int.from_bytes(digest, "big"), len(lines), numel], device=group.device)
    everyone = torch.stack(group.all_gather(mine)).tolist()
    if any(other != everyone[0] for other in everyone):
        rows = "; ".join(
            f"rank {rank}: {count} tensors of {elements} elements"
            for rank, (_, count, elements) in enumerate(everyone)
        )
        raise ValueError(
            f"the ranks hold different models ({rows}); names, shapes and dtypes must be the same"
        )


class Step(NamedTuple):
    """One step of a training run: the workers' mean loss, and when it ended, in seconds."""

    loss: float
    seconds: float


def train_synchronously(
    group: Group,
    module: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batches: Callable[[int, int], Any],
    steps: int,
    learning_rate: float,
    slowdown: Sequence[float] = (),
    seconds_per_step: float = 0.0,
) -> list[Step]:
    """Train with SGD, all ranks as workers that wait for each other in every step.

    `batches(rank, step)` gives a rank's batch. A gradient takes `seconds_per_step` times the rank's
    `slowdown` (1 without one): every step lasts as long as the slowest rank's.
    **Raises** ValueError where `slowdown` does not name every rank.
    """
    if slowdown and len(slowdown) != group.size:
        raise ValueError(f"slowdown has {len(slowdown)} factors for {group.size} ranks")
    broadcast_parameters(group, module)
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
    pace, factor = Pace(seconds_per_step), slowdown[group.rank] if slowdown else 1.0
    history = []
    group.barrier()
    start = group.now()
    for step in range(steps):
        with group.span("compute"), pace.span(factor):
            value = loss(module, batches(group.rank, step))
            value.backward()
        average_gradients(group, module.parameters())
        optimizer.step()
        optimizer.zero_grad()
        mean = group.all_reduce_(value.detach().clone(), "mean")
        history.append(Step(mean.item(), group.now() - start))
    return history
