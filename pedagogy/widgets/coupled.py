"""An explorer whose controls depend on each other: each offers only what the others allow.

A schedule that needs a multiple of p micro-batches must not answer a slider with an error. So the
bounds of a control are a function of the other values, and a value outside moves to the nearest
that is allowed, before the picture is drawn. Where a reader would wonder, the sentence under the
picture says so, once: "microbatches went from 6 to 8: ...".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.widgets.explorer import Explorer


class Bounds(NamedTuple):
    """What an integer control offers: low, low + step, ..., at most high; or nothing to move."""

    low: int
    high: int
    step: int = 1
    disabled: bool = False
    why: str = ""  # a value that moved is told with this reason

    def nearest(self, value: int) -> int:
        """Return the allowed value nearest to `value`."""
        highest = self.low + (self.high - self.low) // self.step * self.step
        place = round((value - self.low) / self.step)
        return min(max(self.low + place * self.step, self.low), highest)


class CoupledExplorer(Explorer):
    """An explorer with `bounds`: name of a control -> function from all values to its Bounds.

    They are applied in their order: bounds may depend on controls that stand before.
    """

    def __init__(
        self,
        render: Callable[..., Any],
        *,
        bounds: Mapping[str, Callable[..., Bounds]],
        **more: Any,
    ) -> None:
        self._bounds = bounds
        self._moved: dict[str, str] = {}
        super().__init__(render, **more)

    def set(self, **values: Any) -> CoupledExplorer:
        """Move several controls, those that depend on others last, and draw once."""
        free = self.controls.keys() - self._bounds.keys() - {self._play}
        self._quiet = True
        for name in values.keys() & free:
            self.controls[name].value = values.pop(name)
        for name, bounds in self._bounds.items():
            self._apply(name, bounds(**self.values), values.pop(name, None))
        super().set(**values)
        return self

    def _limit_steps(self) -> None:
        for name, bounds in self._bounds.items():
            self._apply(name, bounds(**self.values))
        super()._limit_steps()

    def _picture(self) -> Figure:
        figure, moved = super()._picture(), self._moved.values()
        self._moved = {}
        return style.finding(figure, " ".join([figure.get_label(), *moved])) if moved else figure

    def _apply(self, name: str, bounds: Bounds, value: int | None = None) -> None:
        low, high, step, disabled, why = bounds
        widget = self.controls[name]
        asked = widget.value if value is None else value
        value = bounds.nearest(asked)
        if why and value != asked:
            self._moved[name] = f"{widget.description} went from {asked} to {value}: {why}."
        if (widget.min, widget.max, widget.step) != (low, high, step):
            widget.min = min(widget.min, low)
            widget.max, widget.step = high, step
            widget.min = low
        widget.value, widget.disabled = value, disabled
