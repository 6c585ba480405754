"""Row of `pedagogy bench` for chapter 06: `accumulate` on two ranks against DDP with `no_sync`.

A window of 4 micro-batches and one SGD step, of the same GPT on the same text. DDP sends in buckets
while the last backward still runs, and averages over the ranks; `accumulate` sums all gradients in
one all_reduce after it, and divides by the number of items, which it has counted over all ranks
before. All micro-batches have as many tokens, so that both make the same update.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from pedagogy.cli.bench import Row, Step

GPT_SIZES = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 64}
WINDOW, BATCH = 4, 2  # micro-batches a window; sequences in each, on each rank


def _our_step(group: Any) -> Step:
    from torch.nn import functional

    from pedagogy.accumulation import accumulate

    model, optimizer, microbatches = _setting(group)

    def loss_sum(model: Any, microbatch: Any) -> Any:
        inputs, targets = microbatch
        logits = model(inputs).flatten(0, 1)
        return functional.cross_entropy(logits, targets.flatten(), reduction="sum")

    def step() -> None:
        accumulate(model, microbatches, loss_sum, lambda one: one[1].numel(), group)
        optimizer.step()

    return step


def _ddp_step(group: Any) -> Step:
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    model, optimizer, microbatches = _setting(group)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)

    def step() -> None:
        for place, (inputs, targets) in enumerate(microbatches, start=1):
            silent = wrapped.no_sync() if place < WINDOW else nullcontext()
            with silent:
                logits = wrapped(inputs).flatten(0, 1)
                (functional.cross_entropy(logits, targets.flatten()) / WINDOW).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _setting(group: Any) -> tuple[Any, Any, list]:
    """The model, equal on all ranks; its optimizer; and this rank's micro-batches."""
    import torch

    from pedagogy.workloads import GPT, text_batch

    torch.manual_seed(0)
    model = GPT(**GPT_SIZES).to(group.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = text_batch(WINDOW * BATCH, GPT_SIZES["sequence"], seed=group.rank)
    pieces = (one.to(group.device).chunk(WINDOW) for one in (inputs, targets))
    return model, optimizer, list(zip(*pieces, strict=True))


ROWS = [
    Row(
        name="accumulation_window",
        ours=_our_step,
        twin=_ddp_step,
        world_size=2,
        says="a window of 4 micro-batches in accumulate against DDP with no_sync",
    ),
]
