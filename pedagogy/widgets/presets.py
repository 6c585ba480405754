"""An explorer with presets: a menu that moves several controls to a published setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pedagogy.widgets.controls import menu
from pedagogy.widgets.explorer import Explorer

OWN = "own"


class PresetExplorer(Explorer):
    """An explorer whose control `preset` names values of others; moved by hand, it says "own".

    presets: name -> values of some controls; the first one is the default.
    """

    def __init__(
        self,
        render: Callable[..., Any],
        *,
        presets: Mapping[str, Mapping[str, Any]],
        **more: Any,
    ) -> None:
        self._presets = presets
        super().__init__(render, preset=menu([*presets, OWN], next(iter(presets))), **more)

    def set(self, **values: Any) -> PresetExplorer:
        """Move several controls, those of a preset first, and draw once."""
        super().set(**{**self._presets.get(values.get("preset"), {}), **values})
        return self

    def _changed(self, change: Any) -> None:
        if not self._quiet and change.owner is self.controls["preset"]:
            self.set(preset=change.new)
        else:
            super()._changed(change)

    def _draw(self) -> None:
        self._quiet = True
        self.controls["preset"].value = self._name_of_values()
        super()._draw()

    def _name_of_values(self) -> str:
        now = self.values
        for name, values in self._presets.items():
            if all(now[one] == value for one, value in values.items()):
                return name
        return OWN
