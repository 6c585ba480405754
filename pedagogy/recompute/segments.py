"""Where to cut: segments of equal length, and the best that a number of slots allows.

Square root
-----------
n layers in k segments, each recomputed: k inputs are kept, and n / k activations while a segment
runs backward. k + n / k is least at k = sqrt(n), where it is 2 sqrt(n). One extra forward.

Fewer slots
-----------
With c slots for kept activations, of which the input takes one, layers are run again more than
once. If none is run more than r times, the longest chain that can be reversed has

    beta(c, r) = (c + r)! / (c! r!)

layers; and for l layers, with the smallest r for which l <= beta(c, r), the fewest forwards beyond
the first pass are  r l - C(c + r, c + 1). 10 slots and 6 repetitions reverse 8,008 layers.

Sources: Chen et al. 2016, section 4.3; Griewank and Walther 2000, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import comb

from torch import Tensor

from pedagogy.recompute.checkpoint import checkpoint

Layer = Callable[[Tensor], Tensor]


def checkpoint_sequential(layers: Sequence[Layer], segments: int, x: Tensor) -> Tensor:
    """All layers one after the other, in `segments` stretches that are recomputed.

    The last stretch is not: its backward comes at once. Stretches differ by one layer at most.
    **Memory** one input for each stretch, and what the longest saves.
    **Raises** ValueError unless 1 <= segments <= layers. Source: Chen et al. 2016, section 4.3.
    """
    layers = list(layers)
    if not 1 <= segments <= len(layers):
        raise ValueError(f"{segments} segments of {len(layers)} layers: 1 to {len(layers)}")
    ends = [len(layers) * (i + 1) // segments for i in range(segments)]
    for first, last in zip([0, *ends], ends[:-1], strict=False):
        x = checkpoint(_chain(layers[first:last]), x)
    return _chain(layers[ends[-2] if segments > 1 else 0 :])(x)


def _chain(layers: Sequence[Layer]) -> Layer:
    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run


def checkpoint_binomial(layers: Sequence[Layer], slots: int, x: Tensor) -> Tensor:
    """All layers, recomputed as often as `slots` kept activations demand, and no oftener.

    A first part is run and dropped, what it returns takes a slot, and the rest has one slot fewer;
    backward comes to the first part last, when all slots are free again. Layers run
    `optimal_forwards(len(layers), slots)` times beyond the first pass.
    **Raises** ValueError without layers or slots. Source: Griewank and Walther 2000, section 2.
    """
    layers = list(layers)
    optimal_forwards(len(layers), slots)  # checks
    while len(layers) > 1:
        cut = _best_cut(len(layers), slots)
        x = checkpoint(partial(checkpoint_binomial, layers[:cut], slots), x)
        layers, slots = layers[cut:], max(1, slots - 1)
    return layers[0](x)


def _best_cut(length: int, slots: int) -> int:
    """How long the first part is."""
    if slots == 1:
        return length - 1
    return min(
        range(1, length),
        key=lambda k: k + optimal_forwards(k, slots) + optimal_forwards(length - k, slots - 1),
    )


def longest_chain(slots: int, repetitions: int) -> int:
    """beta(c, r): how many layers c slots reverse if none is run more than r times again."""
    return comb(slots + repetitions, slots)


def optimal_forwards(layers: int, slots: int) -> int:
    """The fewest forwards of single layers beyond the first pass, the input occupying one slot.

    **Raises** ValueError without layers or slots. Source: Griewank and Walther 2000, section 2.
    """
    if layers < 1 or slots < 1:
        raise ValueError(f"{layers} layers, {slots} slots: both must be 1 or more")
    repetitions = 0
    while longest_chain(slots, repetitions) < layers:
        repetitions += 1
    return repetitions * layers - comb(slots + repetitions, slots + 1)
