"""Tapes that watch an iteration, for `profile`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from pedagogy.measure import MemoryMeter
from pedagogy.recompute.again import KEEP
from pedagogy.recompute.made import Held, Key, Made
from pedagogy.recompute.tape import Tape


class Fading(Tape):
    """Without autograd: after which operation is a storage gone?"""

    def __init__(self, place: list[str]) -> None:
        super().__init__(lambda made: KEEP, None)
        self.place = place
        self.gone: dict[Key, int] = {}
        self._there: dict[Key, Made] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one operation and see what is left."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.look(-1)
        self._there |= {made.key: made for made in self._living.values()}
        return result

    def look(self, after: int = 0) -> None:
        """What went since the last look."""
        for key, made in list(self._there.items()):
            if made.storage() is None:
                self.gone[key] = len(self.ops) + after
                del self._there[key]


class Watched(Tape):
    """With everything kept: live bytes and moments."""

    def __init__(self, meter: MemoryMeter, place: list[str]) -> None:
        super().__init__(lambda made: KEEP, None)
        self.meter, self.place = meter, place
        self.live: list[int] = []
        self.marks: list[tuple[float, int]] = []  # seconds, and how many readings there were

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one operation and read the meter."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        live = sum(self.meter.curve[-1][1].values())
        self.live += [live] * (len(self.ops) - len(self.live))
        return result

    def unpack(self, packed: Any) -> Tensor:
        """Note when it was asked for."""
        if not isinstance(packed, Held):
            self.mark()
        return super().unpack(packed)

    def mark(self) -> None:
        """A moment of backward: its beginning, an ask, its end."""
        moment = time.perf_counter()
        _ = self.meter.now  # a reading: what was freed since the last operation counts no more
        self.marks.append((moment, len(self.meter.curve)))


@contextmanager
def places_of(model: nn.Module) -> Iterator[list[str]]:
    """The names of the modules that run, outermost first, as they change."""
    names = {module: name for name, module in model.named_modules()}
    stack: list[str] = []

    def enter(module: nn.Module, inputs: Any) -> None:
        stack.append(names.get(module, ""))

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        stack.pop()

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave),
    ]
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()
