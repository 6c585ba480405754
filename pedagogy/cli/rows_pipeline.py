"""Rows of `pedagogy bench` for chapter 02: `run_schedule` against torch.distributed.pipelining.

One training step of a GPT on two ranks, forward, backward and SGD, under the same schedule, with
the same stages, micro-batches and loss. What both do for the same gradient differs in one thing:
our messages carry a header, torch's stages have agreed on all shapes in their first step.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

from pedagogy.cli.bench import Row, Step

GPT_SIZES = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 64, "tied": False}
BATCH, NUM_MICROBATCHES = 16, 8
CUTS = {1: [0, 3, 6], 2: [0, 2, 3, 4, 6]}  # by chunks: where the 6 layers are cut


def _schedule(name: str) -> Any:
    from pedagogy.pipeline import gpipe, interleaved, one_f_one_b

    made = {
        "gpipe": partial(gpipe, 2, NUM_MICROBATCHES),
        "1f1b": partial(one_f_one_b, 2, NUM_MICROBATCHES),
        "interleaved": partial(interleaved, 2, NUM_MICROBATCHES, 2),
    }
    return made[name]()


def _stages(group: Any, name: str) -> dict:
    """The rank's stages by number; stage s lies on rank s % 2."""
    import torch

    from pedagogy.pipeline import gpt_layers, split_layers
    from pedagogy.workloads import GPT

    torch.manual_seed(0)
    cuts = CUTS[2 if name == "interleaved" else 1]
    stages = split_layers(gpt_layers(GPT(**GPT_SIZES)), list(pairwise(cuts)))
    return {s: one.to(group.device) for s, one in enumerate(stages) if s % 2 == group.rank}


def _batch(group: Any) -> Any:
    from pedagogy.workloads import text_batch

    return [part.to(group.device) for part in text_batch(BATCH, GPT_SIZES["sequence"])]


def _loss(logits: Any, targets: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _optimizer(stages: dict) -> Any:
    import torch

    return torch.optim.SGD([p for stage in stages.values() for p in stage.parameters()], lr=0.1)


def _ours(group: Any, name: str) -> Step:
    from pedagogy.pipeline import run_schedule, split_batch

    schedule, stages = _schedule(name), _stages(group, name)
    optimizer, (x, y) = _optimizer(stages), _batch(group)

    def step() -> None:
        inputs, targets = split_batch(x, NUM_MICROBATCHES), split_batch(y, NUM_MICROBATCHES)
        run_schedule(group, schedule, stages, inputs, targets, _loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _theirs(group: Any, name: str) -> Step:
    from torch.distributed import pipelining

    stages = _stages(group, name)
    number = 2 * len(stages)
    wrapped = [
        pipelining.PipelineStage(stage, s, number, group.device, group=group.process_group)
        for s, stage in stages.items()
    ]
    optimizer, (x, y) = _optimizer(stages), _batch(group)
    if name == "interleaved":
        make, taken = pipelining.ScheduleInterleaved1F1B, wrapped
    else:
        make = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[name]
        (taken,) = wrapped
    runner = make(taken, NUM_MICROBATCHES, loss_fn=_loss)

    def step() -> None:
        if group.rank == 0:
            runner.step(x)
        else:
            runner.step(target=y, losses=[])
        optimizer.step()
        optimizer.zero_grad()

    return step


ROWS = [
    Row(
        name=f"pipeline_{name}_step",
        ours=partial(_ours, name=name),
        twin=partial(_theirs, name=name),
        world_size=2,
        says=f"a training step of a GPT on two ranks, {name}, against torch's {twin}",
    )
    for name, twin in [
        ("gpipe", "ScheduleGPipe"),
        ("1f1b", "Schedule1F1B"),
        ("interleaved", "ScheduleInterleaved1F1B"),
    ]
]
