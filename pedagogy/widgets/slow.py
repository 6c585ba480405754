"""An explorer for pictures that take long: a Run button instead of a picture for each move.

A slider sends many values while it is dragged. Where each picture takes a second, or starts ranks,
the reader would wait for pictures of values that the slider has long left. So the controls only
note that they have moved, and *Run* draws the last values.
"""

from __future__ import annotations

from typing import Any

import ipywidgets

from pedagogy.widgets.explorer import Explorer


class SlowExplorer(Explorer):
    """An explorer whose picture takes long: it is drawn when *Run* is pressed.

    Moving a control says that the picture is older than the controls; `run` (or the button) draws
    the values that stand there then. `set` runs too.
    """

    def _more_rows(self) -> list[ipywidgets.Widget]:
        self._button = self._hold(ipywidgets.Button(description="Run", button_style="primary"))
        self._button.on_click(lambda _: self.run())
        self._note = self._hold(ipywidgets.Label(value="The picture shows these values."))
        return [self._hold(ipywidgets.HBox([self._button, self._note]))]

    def _changed(self, change: Any) -> None:
        if not self._quiet:
            self._note.value = "The controls have moved: press Run."

    def _draw(self) -> None:
        self._button.disabled = True
        try:
            super()._draw()
        finally:
            self._button.disabled = False
            self._note.value = "The picture shows these values."

    def run(self) -> None:
        """Draw the values that the controls hold now."""
        self._draw()
