"""Backward at a known speed, layer by layer, so that overlap can be seen on shared cores.

Ranks that share cores compute one after the other, and a timeline then shows who got a core. Here
each layer's backward first sleeps for its unit (`pedagogy.ranks.Pace`) and then computes: its
gradients exist at the end of its slot, as on a machine of its own. The numbers stay real.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pedagogy.ranks import Group, Pace


def pace_backward(group: Group, layers: Sequence[nn.Module], pace: Pace) -> None:
    """The backward of each layer lasts one unit, and is logged as a span "B" with its number."""
    for number, layer in enumerate(layers):
        layer.register_forward_hook(_slowed(group, pace, f"B{number}"))


def _slowed(group: Group, pace: Pace, name: str):
    def unit(_: Tensor) -> None:
        with group.span("B", name), pace.span():
            pass

    def on_forward(_layer: nn.Module, _inputs: tuple, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(unit)

    return on_forward
