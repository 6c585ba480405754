"""What the tests of cut models share: problems that 1, 2, 3 and 4 ranks divide, and a worker.

`train` is a worker of `tests/equality.py`: it cuts the problem's GPT, trains it, and writes down
outputs, gradients and weights put together under the ordinary GPT's names, so that they compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from pedagogy.ranks import Group
from pedagogy.tensor_parallel import (
    ParallelBlock,
    ParallelGPT,
    RegatheringBlock,
    SequenceParallelBlock,
)
from pedagogy.workloads import GPT, text_batch
from tests.equality import BATCH, History, Problem, adamw, momentum, token_loss

BLOCKS = [ParallelBlock, SequenceParallelBlock, RegatheringBlock]
VOCABULARY = 257  # a prime: 2, 3 and 4 ranks pad it
FROZEN = (
    "position.weight",
    "blocks.0.attention.key.weight",
    "blocks.0.feed_forward.expand.bias",
    "blocks.1.attention.project.bias",
    "blocks.1.feed_forward_norm.weight",
)


def random(seed: int, *shape: int) -> Tensor:
    """Normal numbers, the same on all ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gpt(tied: bool, frozen: tuple[str, ...] = ()) -> nn.Module:
    """12 heads and 12 positions on 1, 2, 3 or 4 ranks; biases and norms away from 0 and 1."""
    model = GPT(VOCABULARY, layers=2, hidden=24, heads=12, sequence=12, tied=tied)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            parameter.requires_grad_(name not in frozen)
    return model


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Text in windows of 12 bytes."""
    return text_batch(BATCH, 12, step=step)


TIED = Problem("tied, some frozen", partial(gpt, True, FROZEN), momentum, batch, token_loss)
UNTIED = Problem("untied", partial(gpt, False), adamw, batch, token_loss)


def train(
    group: Group, problem: Problem, steps: int, block: type[ParallelBlock] = ParallelBlock
) -> History:
    """The problem's GPT is cut over the ranks and trained on the whole batch; shards are noted."""
    model = ParallelGPT(group, problem.model(group.rank), block)
    optimizer = problem.make_optimizer(model.parameters())
    history = History()
    for step in range(steps):
        inputs, targets = problem.batch(step)
        logits = model(inputs)
        model.loss_of(logits, targets).backward()
        model.finish_backward()
        optimizer.step()
        history.note(logits, model)
        optimizer.zero_grad()
    return history


def put_together(ranks: list[History], vocabulary: int) -> list[History]:
    """Each rank's history with full tensors: cut ones from all ranks, whole ones from its own."""
    found = []
    for rank, own in enumerate(ranks):
        full = History()
        for step in range(len(own.weights)):
            logits = torch.cat([h.outputs[step] for h in ranks], -1)[..., :vocabulary]
            full.outputs.append(logits.chunk(len(ranks))[rank])
            for kind in ("gradients", "weights"):
                shards = [getattr(h, kind)[step] for h in ranks]
                getattr(full, kind).append(full_tensors(shards, rank, vocabulary))
        found.append(full)
    return found


def full_tensors(
    shards: Sequence[dict[str, Tensor | None]], rank: int, vocabulary: int
) -> dict[str, Tensor | None]:
    """The tensors of an ordinary GPT, by its names."""
    found = {}
    for name, own in shards[rank].items():
        layer, dim = name.split(".")[-2:-1], cut_dimension(name)
        parts = [by_name[name] for by_name in shards]
        full = own if own is None or dim is None else torch.cat(parts, dim)
        if layer in (["token"], ["head"]):
            full = full[:vocabulary]
        found["position.weight" if name == "position" else name] = full
    return found


def cut_dimension(name: str) -> int | None:
    """Along which dimension the parameter of this name is cut; None where it is whole."""
    *_, layer, kind = ("", *name.split("."))
    if layer in ("query", "key", "value", "expand", "token", "head"):
        return 0
    return 1 if layer == "project" and kind == "weight" else None
