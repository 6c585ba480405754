"""Row of `pedagogy bench` for chapter 03: our `ParallelBlock` against DTensor.

Both cut the same layers the same way, query, key, value and expand by columns, the projections by
rows, and train them with SGD on the same input. `PrepareModuleInput` gives DTensor one f for query,
key and value: without it, it reduces the gradient of their input three times.
"""

from __future__ import annotations

from typing import Any

from pedagogy.cli.bench import Row, Step

LAYERS, HIDDEN, HEADS, SEQUENCE, BATCH = 4, 256, 4, 64, 8


def _layers() -> Any:
    import torch

    from pedagogy.workloads import Block

    torch.manual_seed(0)
    return torch.nn.Sequential(*(Block(HIDDEN, HEADS, SEQUENCE) for _ in range(LAYERS)))


def _our_step(group: Any) -> Step:
    import torch

    from pedagogy.tensor_parallel import ParallelBlock

    cut = (ParallelBlock(group, block) for block in _layers())
    return _training_step(group, torch.nn.Sequential(*cut))


def _dtensor_step(group: Any) -> Step:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = DeviceMesh.from_group(group.process_group, group.device.type)
    columns = ("attention.query", "attention.key", "attention.value", "feed_forward.expand")
    rows = ("attention.project", "feed_forward.project")
    layers = _layers()
    for block in layers:
        plan = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel() for name in rows}
        plan["attention"] = PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Replicate()
        )
        parallelize_module(block, mesh, plan)
        block.attention.heads //= group.size
    return _training_step(group, layers)


def _training_step(group: Any, layers: Any) -> Step:
    """Forward, backward and SGD of the layers, on an input that stays the same."""
    import torch

    layers = layers.to(group.device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    x = torch.randn(BATCH, SEQUENCE, HIDDEN, generator=torch.Generator().manual_seed(1))
    x = x.to(group.device)

    def step() -> None:
        layers(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


ROWS = [
    Row(
        name="tensor_parallel_step",
        ours=_our_step,
        twin=_dtensor_step,
        world_size=2,
        says="a training step of 4 layers in ParallelBlock against DTensor's parallelize_module",
    ),
]
