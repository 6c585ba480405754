"""How often each whole number occurred, as upright bars beside each other.

A histogram with bins of its own choice hides the zero and the gaps of a count. Here every number
from 0 to the largest has its place, and the panels of a figure have the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.bars import HATCHES

Counts = Mapping[str, Mapping[int, int]]  # name of the series -> number -> how often it occurred


def draw_counts(ax: Axes, counts: Counts, largest: int) -> None:
    """Draw the series above each other over the numbers from 0 to `largest`."""
    numbers = range(largest + 1)
    below = [0] * len(numbers)
    with style.styled():
        for i, (name, found) in enumerate(counts.items()):
            heights = [found.get(number, 0) for number in numbers]
            ax.bar(
                numbers,
                heights,
                bottom=below,
                width=0.8,
                color=style.SERIES[i],
                hatch=HATCHES[i],
                edgecolor=style.PAPER,
                linewidth=0,
                label=name,
                gid=name,
            )
            below = [low + high for low, high in zip(below, heights, strict=True)]
        ax.set_xlim(-0.6, largest + 0.6)
        ax.grid(axis="y")


def counts_figure(
    panels: Mapping[str, Counts], finding: str, *, x_label: str = "", y_label: str = "count"
) -> Figure:
    """Return one panel of counts below the other, over the same numbers and heights.

    Raises: ValueError if nothing was counted.
    """
    found = [number for panel in panels.values() for one in panel.values() for number in one]
    if not found:
        raise ValueError(f"{len(panels)} panels hold 0 numbers; at least one is needed")
    height = 1.25
    figure = style.new_figure(style.WIDTH, 0.75 + len(panels) * (height + 0.4))
    first: Axes | None = None
    for i, (title, counts) in enumerate(panels.items()):
        bottom = 0.6 + (len(panels) - 1 - i) * (height + 0.4)
        shared = {"sharex": first, "sharey": first} if first else {}
        ax = style.add_axes(figure, 0.75, bottom, style.WIDTH - 0.95, height, **shared)
        draw_counts(ax, counts, max(found))
        with style.styled():
            ax.set_title(title)
            ax.set_ylabel(y_label)
            if first is None:
                ax.legend(loc="upper right")
            ax.tick_params(labelbottom=i == len(panels) - 1)
        first = first or ax
    with style.styled():
        ax.set_xlabel(x_label)
    tallest = max(
        sum(one.get(number, 0) for one in panel.values())
        for panel in panels.values()
        for number in found
    )
    first.set_ylim(0, tallest * 1.08)
    return style.finding(figure, finding)
