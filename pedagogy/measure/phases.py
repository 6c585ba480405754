"""Seconds of forward, backward and update, each by itself.

Why it exists
-------------
"The step is slow" has three different causes. Forward and backward grow with the tokens in the
batch, the update grows with the parameters only; what helps one does not help the other.

How it works
------------
Each phase is timed by itself, several times, after one step that is not counted (the first step
makes the optimizer's state and warms caches). The fastest time of each phase is returned: whatever
else the machine does can only add to it. A CPU works with one thread meanwhile: with several, each
operation would wait for the busiest core. On a GPU the clock is read after the device has finished
(`torch.cuda.synchronize`), for a launch returns before the work is done.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

PHASES = ("forward", "backward", "update")


def phase_seconds(
    model: nn.Module, optimizer: Any, batch: tuple[Tensor, Tensor], repeats: int = 5
) -> dict[str, float]:
    """The fastest seconds of each phase of a training step; the model is trained on the way.

    **Raises** ValueError if `repeats` is not positive.
    """
    if repeats < 1:
        raise ValueError(f"{repeats} repeats: at least 1 is needed")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runs = [_one_step(model, optimizer, batch) for _ in range(repeats + 1)][1:]
    finally:
        torch.set_num_threads(threads)
    return {phase: min(times) for phase, times in zip(PHASES, zip(*runs, strict=True), strict=True)}


def _one_step(model: nn.Module, optimizer: Any, batch: tuple[Tensor, Tensor]) -> list[float]:
    clock = [_now()]
    loss = model.loss(*batch)
    clock.append(_now())
    loss.backward()
    clock.append(_now())
    optimizer.step()
    optimizer.zero_grad()
    clock.append(_now())
    return [end - start for start, end in pairwise(clock)]


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
