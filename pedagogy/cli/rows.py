"""Rows of `pedagogy bench` for chapter 01: our ring against gloo's, our `DataParallel` against DDP.

The ring rows allocate nothing: gloo works in place, the ring leaves its input alone and fills a
result that exists. A fresh result of 64 MB costs as much again, on either side: the kernel hands
out zeroed pages one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pedagogy.cli.bench import Row, Step

GPT_SIZES = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 64}
BATCH = 8  # on each rank


def _ring(group: Any, num_bytes: int) -> Step:
    import torch

    from pedagogy.collectives import ring_all_reduce

    x = torch.zeros(num_bytes // 4, device=group.device)
    return partial(ring_all_reduce, group, x, out=torch.empty_like(x))


def _gloo(group: Any, num_bytes: int) -> Step:
    import torch
    import torch.distributed as dist

    return partial(dist.all_reduce, torch.zeros(num_bytes // 4, device=group.device))


def _our_step(group: Any) -> Step:
    from pedagogy.data_parallel import DataParallel

    return _training_step(group, lambda model: DataParallel(group, model))


def _ddp_step(group: Any) -> Step:
    from torch.nn.parallel import DistributedDataParallel

    return _training_step(
        group, lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True)
    )


def _training_step(group: Any, wrap: Callable) -> Step:
    """Forward, backward with averaging, SGD, for the GPT and a batch that stays the same."""
    import torch
    from torch.nn import functional

    from pedagogy.workloads import GPT, text_batch

    torch.manual_seed(0)
    model = GPT(**GPT_SIZES).to(group.device)
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = text_batch(BATCH, GPT_SIZES["sequence"], seed=group.rank)
    inputs, targets = inputs.to(group.device), targets.to(group.device)

    def step() -> None:
        logits = wrapped(inputs)
        functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


ROWS = [
    *(
        Row(
            name=f"ring_all_reduce_{megabytes}MB",
            ours=partial(_ring, num_bytes=megabytes * 10**6),
            twin=partial(_gloo, num_bytes=megabytes * 10**6),
            world_size=4,
            says="a ring of send and recv against gloo's all_reduce",
        )
        for megabytes in (1, 16, 64)
    ),
    Row(
        name="data_parallel_step",
        ours=_our_step,
        twin=_ddp_step,
        world_size=2,
        says="one training step of a GPT in DataParallel against torch's DDP",
    ),
]
