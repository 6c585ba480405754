"""Where the gradients of a real training fall: counted by power of two, by layer and kind.

Why powers of two
-----------------
A format's range is a range of exponents. A loss scale of 2^k adds k to the exponent of every
gradient and changes nothing else, so a histogram over exponents, counted once, answers for every
scale: it is moved by k. Values between 2^e and 2^(e+1) are counted at e.

What becomes of them in fp16, after the move:

    e < -25          zero: halfway to the smallest number, or less
    -25 .. -15       subnormal, fewer digits the smaller
    -14 .. 15        normal
    above            infinite     (and the last 16 of 65,536 at e = 15, which are counted as normal)

Two kinds
---------
Gradients of *weights* are sums over all tokens; those of *activations* belong to one token each and
are smaller by that. The second are on the way to the first: what is zero there is missing here.

Source: Micikevicius et al. 2018, figures 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.precision.formats import FORMATS, Format

LOWEST, HIGHEST = -64, 32  # exponents counted apart; what lies beyond is counted with these
KINDS = ("weight", "activation")


class Histogram(NamedTuple):
    """`counts` of values by exponent, LOWEST .. HIGHEST, and the number of `zeros`."""

    counts: Tensor
    zeros: int

    @property
    def num_values(self) -> int:
        """All values, zeros included."""
        return int(self.counts.sum()) + self.zeros

    def shares(self, log2_scale: int = 0, to: Format = FORMATS["fp16"]) -> dict[str, float]:
        """As `range_shares`, after a multiplication by 2^log2_scale.

        **Raises** ValueError for a histogram without values.
        """
        if not self.num_values:
            raise ValueError("a histogram without values has no shares")
        exponent = torch.arange(LOWEST, HIGHEST + 1) + log2_scale
        lowest = 1 - to.bias  # of the normal numbers
        ends = {
            "underflow": exponent < lowest - to.mantissa_bits - 1,
            "subnormal": (exponent >= lowest - to.mantissa_bits - 1) & (exponent < lowest),
            "normal": (exponent >= lowest) & (exponent <= to.bias),
            "overflow": exponent > to.bias,
        }
        counted = {kind: int(self.counts[end].sum()) for kind, end in ends.items()}
        return {kind: n / self.num_values for kind, n in {"zero": self.zeros, **counted}.items()}

    def __add__(self, other: Histogram) -> Histogram:
        """Both together."""
        return Histogram(self.counts + other.counts, self.zeros + other.zeros)


class GradientRecord(NamedTuple):
    """The gradients of one layer in one step; `kind` is one of `KINDS`."""

    step: int
    layer: str
    kind: str
    histogram: Histogram


def histogram_of(tensor: Tensor) -> Histogram:
    """Counts of the values by exponent, any shape. **Raises** ValueError for NaN or infinity."""
    values = tensor.detach().double().flatten()
    if not values.isfinite().all():
        raise ValueError("NaN or infinite values have no exponent to be counted at")
    nonzero = values[values != 0]
    exponent = (torch.frexp(nonzero).exponent - 1).clamp(LOWEST, HIGHEST) - LOWEST
    counts = torch.bincount(exponent.long(), minlength=HIGHEST - LOWEST + 1)
    return Histogram(counts, len(values) - len(nonzero))


def record_gradients(
    model: nn.Module,
    batch: Callable[[int], tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    steps: int,
    at: Sequence[int] = (0,),
) -> list[GradientRecord]:
    """Train `model.loss` for `steps`; in the steps `at`, the gradients of every layer.

    A layer is a module without children that has an output with a gradient, or weights.
    **Raises** ValueError for a step that is not among the steps.
    """
    if not all(0 <= step < steps for step in at):
        raise ValueError(f"steps {list(at)} of {steps}: must be 0 to {steps - 1}")
    records: list[GradientRecord] = []
    for step in range(steps):
        wanted = step in at
        with _watched(model, step, records if wanted else []):
            optimizer.zero_grad()
            model.loss(*batch(step)).backward()
        optimizer.step()
    return records


@contextmanager
def _watched(model: nn.Module, step: int, records: list[GradientRecord]) -> Iterator[None]:
    """Gradients of outputs are recorded as they arrive, those of weights at the end."""
    layers = {name: m for name, m in model.named_modules() if name and not list(m.children())}

    def watch(name: str) -> Callable:
        def note(gradient: Tensor) -> None:
            records.append(GradientRecord(step, name, "activation", histogram_of(gradient)))

        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(note)

        return hook

    handles = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for name, layer in layers.items():
        for parameter in layer.parameters():
            if parameter.grad is not None:
                found = histogram_of(parameter.grad)
                records.append(GradientRecord(step, name, "weight", found))
