"""Controls from a shorthand, so that an explorer's signature reads like its picture.

    layers=(1, 96, 24)               a slider from 1 to 96 that starts at 24
    latency=(0.0, 50.0, 10.0, 0.5)   the same with floats and a step
    optimizer=["adam", "sgd"]        a choice; the first is the default
    bucket=choice([("1 MB", 10**6), ("25 MB", 25 * 10**6)], 25 * 10**6)
    recompute=False                  a check box

Any value widget of ipywidgets may stand there too. Only what 7.7 and 8 have in common is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets

LABEL, WIDTH = "9.5em", "32em"
BUTTONS = 4  # a choice of at most so many short options is a row of buttons


def _look() -> dict[str, Any]:
    return {
        "style": {"description_width": LABEL},
        "layout": ipywidgets.Layout(width=WIDTH, max_width="100%"),
    }


def choice(options: Sequence[Any], default: Any) -> ipywidgets.SelectionSlider:
    """Return a slider over given options, (text, value) pairs or plain values."""
    return ipywidgets.SelectionSlider(options=list(options), value=default, **_look())


def menu(options: Sequence[Any], default: Any) -> ipywidgets.Dropdown:
    """Return a menu of given options, (text, value) pairs or plain values."""
    return ipywidgets.Dropdown(options=list(options), value=default, **_look())


def _slider(name: str, low: Any, high: Any, default: Any, step: Any = None) -> ipywidgets.Widget:
    if not low <= default <= high:
        raise ValueError(f"control {name!r}: the default {default} is not within {low} to {high}")
    if any(isinstance(bound, float) for bound in (low, high, default, step)):
        step = step or (high - low) / 100
        return ipywidgets.FloatSlider(value=default, min=low, max=high, step=step, **_look())
    return ipywidgets.IntSlider(value=default, min=low, max=high, step=step or 1, **_look())


def _options(options: list[Any]) -> ipywidgets.Widget:
    texts = [str(option[0]) if isinstance(option, tuple) else str(option) for option in options]
    if len(options) <= BUTTONS and max(map(len, texts)) <= 10:
        look = _look()
        look["style"] = {"description_width": LABEL, "button_width": "5.2em"}
        return ipywidgets.ToggleButtons(options=options, **look)
    return ipywidgets.Dropdown(options=options, **_look())


def make_control(name: str, shorthand: Any) -> ipywidgets.Widget:
    """Return the widget for a shorthand, with the control's name as its description.

    Raises: ValueError for a shorthand that is none of the forms above.
    """
    if isinstance(shorthand, ipywidgets.Widget):
        widget = shorthand
    elif isinstance(shorthand, bool):
        widget = ipywidgets.Checkbox(value=shorthand, indent=True, **_look())
    elif isinstance(shorthand, tuple) and len(shorthand) in (3, 4):
        widget = _slider(name, *shorthand)
    elif isinstance(shorthand, list) and shorthand:
        widget = _options(shorthand)
    else:
        raise ValueError(
            f"control {name!r}: expected (min, max, default[, step]), a list of options, a bool "
            f"or an ipywidgets widget, got {shorthand!r}"
        )
    if not widget.description:
        widget.description = name.replace("_", " ")
    return widget
