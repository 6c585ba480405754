"""The time axis of a timeline: lines through all its axes, and numbers below the lowest.

Drawn here as two artists, because matplotlib's own ticks, each an object with a line, a grid line
and a text, took half the time of a picture that has a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_lines


def tick_times(ax: Axes) -> list[float]:
    """Return the times that get a line: those where matplotlib would put its ticks."""
    low, high = ax.get_xlim()
    return [float(time) for time in ax.xaxis.get_majorticklocs() if low <= time <= high]


def draw_grid(axes: Sequence[Axes]) -> None:
    """Draw a line through all axes at each tick, and switch their own ticks off."""
    lines = [[(time, 0), (time, 1)] for time in tick_times(axes[-1])]
    for ax in axes:
        look = {"color": style.GRID, "linewidth": 0.8, "zorder": 0.5}
        add_lines(ax, "grid", lines, transform=ax.get_xaxis_transform(), **look)
        ax.set_axis_off()


def name_times(ax: Axes, time_label: str | None) -> None:
    """Write numbers below the axes, and what they count.

    time_label: None for seconds, or milliseconds where the whole lasts under a second.
    """
    low, high = ax.get_xlim()
    factor, text = (1e3, "time (ms)") if high < 1.0 else (1.0, "time (s)")
    if time_label is not None:
        factor, text = 1.0, time_label
    inch = 1 / (ax.get_position().height * ax.get_figure().get_size_inches()[1])
    times, across = tick_times(ax), ax.get_xaxis_transform()
    numbers = [f"{time * factor:g}" for time in times]
    add_labels(
        ax, "times", numbers, [(t, -0.14 * inch) for t in times], style.MUTED, transform=across
    )
    below = [((low + high) / 2, -0.34 * inch)]
    add_labels(ax, "time label", [text], below, style.MUTED, 9.5, transform=across)
    marks = [[(time, 0), (time, -0.045 * inch)] for time in times]
    look = {"color": style.MUTED, "linewidth": 0.8, "transform": across, "clip_on": False}
    add_lines(ax, "ticks", marks, **look)
    add_lines(ax, "axis", [[(low, 0), (high, 0)]], **look)
