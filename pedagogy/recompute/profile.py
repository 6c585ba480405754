"""Measure first: two iterations that say what each saved tensor is, costs, and waits for.

Why it exists
-------------
Which tensors to drop cannot be read off a model's code: a GELU's input is as large as a matrix
product's and costs a tenth to make; a softmax's output is small in one model and half of all
memory in another. Training repeats itself, so two iterations are enough to know. The first warms
up; the second is watched while everything is kept.

What is written down
--------------------
    each operation        its seconds, what it read, the bytes of what it made
    each saved storage    when it was last used in forward, when backward asks for it
    live bytes            after each operation of forward, and between any two asks of backward

That is all that a plan needs: `predict` replays it with other decisions.

What it costs
-------------
Each operation passes through Python twice, which small operations feel. So the seconds of the
whole iteration are measured apart, and those of its parts scaled to them.

Source: Peng et al. 2020 (Capuchin), section 4.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pedagogy.measure import memory_meter, restore_rng_state, rng_state
from pedagogy.recompute.made import Key, Op
from pedagogy.recompute.watch import Fading, Watched, places_of


class Saved(NamedTuple):
    """A storage that waits for backward.

    `gone`: after which operation it would no longer be there, if autograd did not keep it; one
    more than there are if the caller holds it.
    `asks`: when backward asks for it, counted from 0.
    """

    nbytes: int
    gone: int
    asks: tuple[int, ...]


class Profile(NamedTuple):
    """What `profile` returns. Seconds and bytes; keys are (operation, output).

    `operations`: of forward, in order; `live[i]`: bytes after the i-th, when all is kept.
    `asked`: for what backward asks, in order. `backward[n]`: the seconds, and each reading of the
    live bytes, from the ask before the n-th (or from the beginning) to the n-th (or the end).
    """

    operations: tuple[Op, ...]
    live: tuple[int, ...]
    saved: dict[Key, Saved]
    asked: tuple[Key, ...]
    backward: tuple[tuple[float, tuple[int, ...]], ...]

    @property
    def forward_seconds(self) -> float:
        """Of all operations."""
        return sum(op.seconds for op in self.operations)

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_seconds + sum(seconds for seconds, _ in self.backward)

    @property
    def peak(self) -> int:
        """Live bytes at their most, all kept."""
        readings = [live for _, after in self.backward for live in after]
        return max([*readings, *self.live])

    def repeats(self, key: Key) -> bool:
        """Whether this storage can be made again."""
        return self.operations[key[0]].repeats(key[1])

    def name(self, key: Key) -> str:
        """Where in the model, and what made it."""
        op = self.operations[key[0]]
        return f"{op.place} {op.name}".strip()


def profile(
    model: nn.Module,
    batch: tuple[Tensor, ...],
    loss: Callable[..., Tensor] | None = None,
) -> Profile:
    """Watch an iteration of `loss(*batch)` (by default `model.loss`) and its backward.

    Afterwards parameters, gradients, buffers and random numbers are what they were.
    """
    loss = loss or model.loss
    with _left_alone(model), places_of(model) as place:
        fading = Fading(place)
        with torch.no_grad(), fading:
            held = loss(*batch)
        fading.look()
        del held
        forward_seconds, backward_seconds = _timed(loss, batch)
        model.zero_grad()
        with memory_meter(model) as meter:
            watched = Watched(meter, place)
            with watched, saved_tensors_hooks(watched.pack, watched.unpack):
                result = loss(*batch)
            watched.mark()
            result.backward()
            watched.mark()
    scale = forward_seconds / sum(op.seconds for op in watched.ops)
    for op in watched.ops:
        op.seconds *= scale
    return Profile(
        tuple(watched.ops),
        tuple(watched.live),
        _saved(watched, fading.gone),
        tuple(watched.asked),
        _backward(watched, backward_seconds),
    )


def _saved(watched: Watched, gone: dict[Key, int]) -> dict[Key, Saved]:
    asks: dict[Key, list[int]] = {}
    for number, key in enumerate(watched.asked):
        asks.setdefault(key, []).append(number)
    never = len(watched.ops) + 1
    return {
        key: Saved(nbytes, gone.get(key, never), tuple(asks[key]))
        for key, (_, nbytes) in watched.saved.items()
        if key in asks
    }


def _backward(watched: Watched, seconds: float) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Between each mark and the next: seconds, scaled, and the readings."""
    readings = [sum(kinds.values()) for _, kinds in watched.meter.curve]
    (start, _), (end, _) = watched.marks[0], watched.marks[-1]
    return tuple(
        ((later - sooner) * seconds / (end - start), tuple(readings[first:last]))
        for (sooner, first), (later, last) in pairwise(watched.marks)
    )


def _timed(loss: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> tuple[float, float]:
    """Seconds of forward and backward as they are without a tape."""
    clock = [time.perf_counter()]
    result = loss(*batch)
    clock.append(time.perf_counter())
    result.backward()
    clock.append(time.perf_counter())
    return clock[1] - clock[0], clock[2] - clock[1]


@contextmanager
def _left_alone(model: nn.Module) -> Iterator[None]:
    """Gradients, buffers and random numbers are afterwards what they were."""
    random = rng_state()
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    for p, _ in gradients:
        p.grad = None
    try:
        yield
    finally:
        restore_rng_state(random)
        for p, gradient in gradients:
            p.grad = gradient
        for buffer, value in buffers:
            buffer.copy_(value)
