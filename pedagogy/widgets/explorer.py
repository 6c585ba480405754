"""An explorer: controls around a pure function from values to a picture.

The problem
-----------
`interact` and `Output` look like the obvious way. They swallow errors, break a strict comparison
of notebooks, collapse to nothing between two pictures (the page jumps), and leave a static reader
with the words "interactive(children=...".

How it works
------------
- `render(**values) -> Figure` is pure: the same values give the same picture. Its figure's label is
  one sentence that states what is seen; it stands under the picture and is its alt text.
- An `Explorer` is a plain object that *holds* widgets: core controls, and one `HTML` view that
  shows the picture as a data URI. Its mime bundle offers the live view, a PNG of the default
  picture (shown by static viewers, and before the first run), and a fixed text.
- A render that raises shows its error in the view; the controls stay alive.
- The view has a fixed height, so that the page stays where it is.
- `play="step"` gives a control that counts steps a player; `last` says which step is the last one
  for the other values.
- `SlowExplorer` (in `slow.py`) draws only when *Run* is pressed, and then the last values.
- `set`, `values`, `figure`, `readout`, `error` drive it in plain Python; `close` releases every
  widget.

What it costs: one picture per change, under a tenth of a second.
"""

from __future__ import annotations

import base64
import html
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ipywidgets
from matplotlib.figure import Figure

from pedagogy.widgets.controls import make_control
from pedagogy.widgets.picture import (
    READOUT_PIXELS,
    error_html,
    no_collection,
    picture_html,
    size_pixels,
    static_png,
)

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PLAY_MILLISECONDS = 900


class Try(NamedTuple):
    """A setting worth trying: what its button says, what will be seen, and the values."""

    label: str
    outcome: str
    values: dict[str, Any]


class Explorer:
    """Controls, a picture, and a sentence about it.

    render: a pure function; it is called with every control's value by name.
    try_this: settings that get a button each. A value that they do not name is left as it is.
    play: the name of an integer control that gets a player.
    last: last(**other values) -> the last step, for `play`.
    controls: see `pedagogy.widgets.controls`.
    """

    def __init__(
        self,
        render: Callable[..., Figure],
        *,
        try_this: Sequence[Try] = (),
        play: str | None = None,
        last: Callable[..., int] | None = None,
        **controls: Any,
    ) -> None:
        self.render = render
        self.try_this = tuple(try_this)
        self.controls = {name: make_control(name, form) for name, form in controls.items()}
        self.figure: Figure | None = None
        self.error: Exception | None = None
        self._last, self._play = last, play
        self._held: list[Any] = []  # widgets besides the controls
        self._quiet = False
        self.view = self._hold(ipywidgets.HTML())
        self._widget = self._arrange()
        self._draw()
        for widget in self.controls.values():
            widget.observe(self._changed, names="value")

    # What a reader of the object asks for

    @property
    def values(self) -> dict[str, Any]:
        """The value of every control, by name."""
        return {name: widget.value for name, widget in self.controls.items()}

    @property
    def readout(self) -> str:
        """The sentence under the picture (or what went wrong)."""
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        return self.figure.get_label() if self.figure else ""

    def set(self, **values: Any) -> Explorer:
        """Move several controls and draw once.

        Raises: ValueError for a name that is no control.
        """
        unknown = sorted(set(values) - set(self.controls))
        if unknown:
            raise ValueError(f"no control named {unknown}; there are {sorted(self.controls)}")
        self._quiet = True
        try:
            for name in sorted(
                values, key=lambda name: name == self._play
            ):  # its limit comes first
                self.controls[name].value = values[name]
                self._limit_steps()
        finally:
            self._quiet = False
        self._draw()
        return self

    def close(self) -> None:
        """Release every widget, with its layout and its style."""
        for widget in [*self.controls.values(), *self._held]:
            for part in (getattr(widget, "layout", None), getattr(widget, "style", None)):
                if isinstance(part, ipywidgets.Widget):
                    part.close()
            if isinstance(widget, ipywidgets.Widget):
                widget.unobserve_all()
                widget.close()
            else:
                widget.unlink()
        self.figure = None

    # What happens when a control moves

    def _changed(self, change: Any) -> None:
        if not self._quiet:
            self._draw()

    def _limit_steps(self) -> None:
        if self._play and self._last:
            others = {name: value for name, value in self.values.items() if name != self._play}
            last = self._last(**others)
            for widget in (self.controls[self._play], self._player):
                widget.max = last

    def _draw(self) -> None:
        self._quiet = True
        try:
            with no_collection():
                self._limit_steps()
                self.figure, self.error = self._picture(), None
                self.view.value = picture_html(self.figure)
            self._fix_height()
        except Exception as error:
            self.figure, self.error = None, error
            self.view.value = error_html(error)
        finally:
            self._quiet = False

    # How it is put together

    def _hold(self, widget: Any) -> Any:
        self._held.append(widget)
        return widget

    def _arrange(self) -> ipywidgets.Widget:
        rows = [self._row(name, widget) for name, widget in self.controls.items()]
        layout = ipywidgets.Layout(display="flex", flex_flow="row wrap")
        grid = self._hold(ipywidgets.Box(rows, layout=layout))
        children = [grid, *self._try_rows(), *self._more_rows(), self.view]
        return self._hold(ipywidgets.VBox(children))

    def _row(self, name: str, widget: ipywidgets.Widget) -> ipywidgets.Widget:
        if name != self._play:
            return widget
        self._player = self._hold(
            ipywidgets.Play(
                value=widget.value, min=widget.min, max=widget.max, interval=PLAY_MILLISECONDS
            )
        )
        self._hold(ipywidgets.link((self._player, "value"), (widget, "value")))
        return self._hold(ipywidgets.HBox([widget, self._player]))

    def _try_rows(self) -> list[ipywidgets.Widget]:
        rows = []
        for trial in self.try_this:
            button = self._hold(ipywidgets.Button(description=trial.label, tooltip=trial.outcome))
            button.layout.width = "15em"
            button.on_click(lambda _, values=trial.values: self.set(**values))
            text = self._hold(ipywidgets.HTML(value=html.escape(trial.outcome)))
            rows.append(self._hold(ipywidgets.HBox([button, text])))
        return rows

    def _more_rows(self) -> list[ipywidgets.Widget]:
        return []

    def _picture(self) -> Figure:
        return self.render(**self.values)

    def _fix_height(self) -> None:
        """Give the view the size of the first picture, for good."""
        if self.figure is not None and self.view.layout.height is None:
            width, height = size_pixels(self.figure)
            self.view.layout.height = f"{height + READOUT_PIXELS}px"
            self.view.layout.width = f"{width}px"
            self.view.layout.max_width = "100%"

    # How it is shown

    def __repr__(self) -> str:
        name = getattr(self.render, "__name__", "render").removeprefix("render_").replace("_", " ")
        return f"Explorer: {name} (run the cell to move its {len(self.controls)} controls)"

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        """Return the live view, the picture as it stands as PNG, and a fixed text."""
        live = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        if "google.colab" in sys.modules:
            return {WIDGET_VIEW: live}, {}
        data = {WIDGET_VIEW: live, "text/plain": repr(self)}
        if self.figure is None:
            return data, {}
        tries = [f"Try {trial.label}: {trial.outcome}" for trial in self.try_this]
        data["image/png"] = base64.b64encode(
            static_png(self.figure, [self.readout, *tries])
        ).decode()
        return data, {"image/png": {"alt": self.readout}}
