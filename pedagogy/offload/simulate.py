"""When the copies and the layers run: a timeline from two lists of seconds.

Why it exists
-------------
"Is the link fast enough?" has an answer before anything is built. A layer can start when the layer
before it has ended and its own weights have arrived; a copy can start when the copy before it has
ended and there is room. Room is what the depth of the prefetch means: with depth k the device
holds the layer that runs and the k that come next.

    copy j starts     when copy j-1 has ended, and layer j-1-k has
    layer j starts    when layer j-1 has ended, and copy j has

Depth 0 puts everything in one line: each copy waits for the layer before it, each layer for its
copy. With depth 1 they overlap, and the slower of the two sets the pace. A greater depth helps
only where layers are unequal: it lets a cheap layer's copy use the time of an expensive one.

What it costs
-------------
The sum of compute is spent in any case. What is spent besides is the *stall*.

Sources: Ren et al. 2021 (ZeRO-Offload) and Rajbhandari et al. 2021 (ZeRO-Infinity), section 6, for
the overlap; the recursion is that of a pipeline of two stages with k places between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pedagogy.ranks.trace import Event


class Offload(NamedTuple):
    """What `simulate_offload` returns. Seconds; `events`: compute on lane 0, copies on lane 1."""

    makespan: float
    stall: float
    events: tuple[Event, ...]

    @property
    def stall_fraction(self) -> float:
        """The share of the whole in which the device waits."""
        return self.stall / self.makespan if self.makespan else 0.0


def simulate_offload(
    compute_seconds: Sequence[float], transfer_seconds: Sequence[float], prefetch: int
) -> Offload:
    """The timeline of layers whose weights are copied to the device, `prefetch` layers ahead.

    Lists by layer, in the order of use; a transfer of 0 is a layer that is there already.
    **Raises** ValueError for lists of unequal length, a negative number, or a negative prefetch.
    """
    compute, transfer = list(compute_seconds), list(transfer_seconds)
    if len(compute) != len(transfer):
        raise ValueError(f"{len(compute)} layers compute and {len(transfer)} are copied")
    if prefetch < 0 or min([*compute, *transfer], default=0) < 0:
        raise ValueError(f"prefetch {prefetch} and all seconds must be 0 or more")
    copied, ended = 0.0, [0.0] * (prefetch + 1)  # ended[j]: when layer j - 1 - prefetch has
    events = []
    for layer, (seconds, copy_seconds) in enumerate(zip(compute, transfer, strict=True)):
        copy_start = max(copied, ended[layer])
        copied = copy_start + copy_seconds
        start = max(ended[-1], copied)
        ended.append(start + seconds)
        if copy_seconds:
            events.append(Event(1, "to_device", str(layer), copy_start, copied))
        events.append(Event(0, "F", str(layer), start, ended[-1]))
    return Offload(ended[-1], ended[-1] - sum(compute), tuple(events))


def transfers(num_layers: int, prefetch: int) -> list[bool]:
    """Which uses of a step need a copy: layers forward, then backward in reverse.

    The device holds the layers of the `prefetch` + 1 next uses, so what ends forward begins
    backward without a copy. **Raises** ValueError for no layer, or a negative prefetch.
    """
    if num_layers < 1 or prefetch < 0:
        raise ValueError(f"{num_layers} layers, prefetch {prefetch}: at least 1 and 0")
    uses = uses_of_a_step(num_layers)
    held: set[int] = set()
    needed = [False] * len(uses)
    for use in range(len(uses)):
        coming = uses[use : use + prefetch + 1]
        held &= set(coming)
        for ahead, layer in enumerate(coming):
            if layer not in held:
                needed[use + ahead] = True
                held.add(layer)
    return needed


def uses_of_a_step(num_layers: int) -> list[int]:
    """The layer of each use: 0, 1, ..., n-1, n-1, ..., 1, 0."""
    layers = list(range(num_layers))
    return layers + layers[::-1]
