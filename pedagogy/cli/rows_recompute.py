"""Row of `pedagogy bench` for chapter 08: `checkpoint` against torch.utils.checkpoint.

One training step of the same GPT on the same text, each block checkpointed on its own; torch's in
the form that also works by saved-tensor hooks (`use_reentrant=False`). Both keep the state of the
random generators and stop at the last tensor that is asked for; ours puts the buffers back too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pedagogy.cli.bench import Row, Step

GPT_SIZES = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 128}
BATCH = 4


def _our_step(group: Any) -> Step:
    from pedagogy.recompute import checkpoint

    return _training_step(group, checkpoint)


def _torchs_step(group: Any) -> Step:
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    return _training_step(group, partial(checkpoint, use_reentrant=False))


def _training_step(group: Any, through: Callable) -> Step:
    """Forward with checkpointed blocks, backward, SGD, for a batch that stays the same."""
    from functools import partial

    import torch

    from pedagogy.recompute.evidence import checkpoint_each, gpt_loss
    from pedagogy.workloads import GPT, text_batch

    torch.manual_seed(0)
    model = GPT(**GPT_SIZES).to(group.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = tuple(one.to(group.device) for one in text_batch(BATCH, GPT_SIZES["sequence"]))
    blocks = partial(checkpoint_each, through=through)

    def step() -> None:
        gpt_loss(model, batch, blocks).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


ROWS = [
    Row(
        name="checkpoint_step",
        ours=_our_step,
        twin=_torchs_step,
        world_size=1,
        says="a step of a GPT with every block in checkpoint against torch.utils.checkpoint",
    ),
]
