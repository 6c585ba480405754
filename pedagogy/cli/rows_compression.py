"""Row of `pedagogy bench` for chapter 09: a ConvNet without half of its channels, and the full one.

The one row that does not compare two programs but two networks: the same training step on the same
batch, by PyTorch's own layers, so that the ratio says what pruned channels save in time. Between
the first layer and the last one FLOPs fall to a quarter, but BatchNorm and ReLU only to a half, and
the calls stay as many.
"""

from __future__ import annotations

from typing import Any

from pedagogy.cli.bench import Row, Step, training_step

CHANNELS, BATCH, PRUNED = 64, 64, "50 %"


def _pruned_step(group: Any) -> Step:
    from pedagogy.compression.evidence import without_channels

    return _training_step(group, without_channels(_full(), PRUNED))


def _full_step(group: Any) -> Step:
    return _training_step(group, _full())


def _full() -> Any:
    import torch

    from pedagogy.workloads import ConvNet

    torch.manual_seed(0)
    return ConvNet(CHANNELS)


def _training_step(group: Any, model: Any) -> Step:
    """By SGD, on the group's device."""
    import torch

    from pedagogy.workloads import digits_batch

    model = model.to(group.device)
    batch = [one.to(group.device) for one in digits_batch(BATCH)]
    return training_step(model, torch.optim.SGD(model.parameters(), lr=0.1), batch)


ROWS = [
    Row(
        name="channel_pruned_step",
        ours=_pruned_step,
        twin=_full_step,
        world_size=1,
        says="a training step of a ConvNet without half of its channels against the full one",
    ),
]
