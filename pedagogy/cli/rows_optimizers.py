"""Row of `pedagogy bench` for chapter 10: our `Adafactor` against torch.optim.Adafactor.

A training step of the same GPT with a learning rate of 0.02, scaled by each weight's size; torch's
with the paper's eps, which it must be given. Forward and backward are the same on both sides.
"""

from __future__ import annotations

from typing import Any

from pedagogy.cli.bench import Row, Step, training_step

GPT_SIZES = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 64}
BATCH = 2
LEARNING_RATE = 2e-2


def _our_step(group: Any) -> Step:
    from pedagogy.optimizers import Adafactor

    model = _model(group)
    return _training_step(
        model, Adafactor(model.parameters(), lr=LEARNING_RATE, relative_step=False)
    )


def _torchs_step(group: Any) -> Step:
    import torch

    model = _model(group)
    eps = (1e-30, 1e-3)
    return _training_step(
        model, torch.optim.Adafactor(model.parameters(), lr=LEARNING_RATE, eps=eps)
    )


def _model(group: Any) -> Any:
    import torch

    from pedagogy.workloads import GPT

    torch.manual_seed(0)
    model = GPT(**GPT_SIZES).to(group.device)
    for block in model.blocks:  # softmax cancels it: its gradient is rounding, and made a step
        block.attention.key.bias.requires_grad_(False)
    return model


def _training_step(model: Any, optimizer: Any) -> Step:
    """On the model's device."""
    from pedagogy.workloads import text_batch

    device = next(model.parameters()).device
    batch = [one.to(device) for one in text_batch(BATCH, GPT_SIZES["sequence"])]
    return training_step(model, optimizer, batch)


ROWS = [
    Row(
        name="adafactor_step",
        ours=_our_step,
        twin=_torchs_step,
        world_size=1,
        says="a training step with Adafactor against torch.optim.Adafactor",
    ),
]
