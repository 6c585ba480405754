"""Memory over training steps, with the phases named: what rises in forward and falls in backward.

The x axis counts the meter's readings, one for each operation that makes or frees a tensor. Time
would show the same heights; readings give each operation the same width, on each machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.memory import draw_memory_curve
from pedagogy.plots.strips import Curve

Ends = Sequence[tuple[str, int]]  # the name of a phase, and the reading with which it ends


def draw_phases(ax: Axes, ends: Ends) -> None:
    """Draw a line where each phase ends, and write its name above the middle of it.

    Raises: ValueError if a phase ends before the one before it.
    """
    start = 0
    with style.styled():
        for name, end in ends:
            if end < start:
                raise ValueError(f"{name} ends with reading {end}, before {start} where it starts")
            ax.axvline(end, color=style.MUTED, linewidth=0.8, gid="phase end", zorder=3)
            ax.annotate(
                name,
                ((start + end) / 2, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                color=style.MUTED,
            )
            start = end


def step_memory_figure(
    curve: Curve,
    ends: Ends,
    finding: str,
    *,
    title: str = "",
    number: Callable[[float], str] = style.bytes_text,
) -> Figure:
    """Return the stacked bytes by kind over the readings of a meter, with the phases marked.

    ends: [("forward", 49), ("backward", 174), ...], each number `len(meter.curve)` at that moment.
    """
    readings = [(index, held) for index, (_, held) in enumerate(curve)]
    figure = style.new_figure(style.WIDTH, 3.9)
    ax = style.add_axes(figure, 0.85, 0.55, 7.3, 2.7)
    draw_memory_curve(ax, readings, number)
    draw_phases(ax, ends)
    with style.styled():
        ax.set_title(title, pad=20)
        ax.set_xlabel("readings of the meter: operations that make or free a tensor")
        handles, texts = ax.get_legend_handles_labels()
        ax.legend(handles[::-1], texts[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return style.finding(figure, finding)
