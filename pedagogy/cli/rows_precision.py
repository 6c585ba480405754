"""Row of `pedagogy bench` for chapter 05: our `DynamicLossScaler` against torch's `GradScaler`.

Both scale the loss of the same GPT, with fp32 weights under autocast in bfloat16, unscale, look for
what is not finite, step SGD and update the scale. Only the scalers differ: torch's looks at and
unscales all gradients in one fused operation, ours takes them one by one.

bfloat16 needs no scale; it is here because a CPU has fast products for it. Each rank trains a model
of its own and sends nothing.
"""

from __future__ import annotations

from typing import Any

from pedagogy.cli.bench import Row, Step

GPT_SIZES = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 64}
BATCH = 8


def _our_step(group: Any) -> Step:
    from pedagogy.precision import DynamicLossScaler

    return _training_step(group, DynamicLossScaler())


def _torch_step(group: Any) -> Step:
    import torch

    return _training_step(group, torch.amp.GradScaler(group.device.type))


def _training_step(group: Any, scaler: Any) -> Step:
    """Forward under autocast, backward of the scaled loss, and the scaler's three parts."""
    import torch

    from pedagogy.workloads import GPT, text_batch

    torch.manual_seed(0)
    model = GPT(**GPT_SIZES).to(group.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = [one.to(group.device) for one in text_batch(BATCH, GPT_SIZES["sequence"], seed=0)]

    def step() -> None:
        with torch.autocast(group.device.type, dtype=torch.bfloat16):
            loss = model.loss(*batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


ROWS = [
    Row(
        name="loss_scaler_step",
        ours=_our_step,
        twin=_torch_step,
        world_size=1,
        says="a training step with DynamicLossScaler against torch.amp.GradScaler",
    ),
]
