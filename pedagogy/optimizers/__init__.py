"""Optimizers that keep less than Adam: each one idea, all of them `torch.optim.Optimizer`.

Read in this order: `adam`, `adafactor`, `sm3`, `adam8bit`.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from pedagogy.optimizers.adafactor import Adafactor
from pedagogy.optimizers.adam import Adam
from pedagogy.optimizers.adam8bit import Adam8bit
from pedagogy.optimizers.sm3 import SM3

__all__ = ["SM3", "Adafactor", "Adam", "Adam8bit", "state_bytes"]


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of all tensors in an optimizer's state, its step counters (of any kind) left out."""
    found: dict[int, Tensor] = {}
    for state in optimizer.state.values():
        for name, value in state.items():
            if name != "step":
                found |= {id(tensor): tensor for tensor in _tensors(value)}
    return sum(tensor.nbytes for tensor in found.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
