"""Bars: a few numbers beside each other, with the number written at each bar.

Pairs (predicted and measured, ours and PyTorch's) are drawn one above the other: the first filled,
the second hatched, so that they differ without their colours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style

HATCHES = ("", "//", "..", "xx")


def draw_bars(
    ax: Axes,
    groups: Mapping[str, Mapping[str, float]],
    number: Callable[[float], str] = "{:.3g}".format,
    limit: float | None = None,
) -> None:
    """Draw one group of horizontal bars for each name, one bar in it for each series.

    groups: {"ring": {"predicted": 1.5, "measured": 1.5}, ...}, the same series in every group.
    limit: a dashed line at this value.

    Raises: ValueError if two groups do not hold the same series.
    """
    series = list(next(iter(groups.values())))
    for name, values in groups.items():
        if list(values) != series:
            raise ValueError(f"group {name!r} holds {list(values)}, the first one {series}")
    height = 0.8 / len(series)
    with style.styled():
        for i, one in enumerate(series):
            places = [row - 0.4 + height * (i + 0.5) for row in range(len(groups))]
            values = [group[one] for group in groups.values()]
            ax.barh(
                places,
                values,
                height=height * 0.92,
                color=style.SERIES[i],
                label=one,
                hatch=HATCHES[i % len(HATCHES)],
                edgecolor=style.PAPER,
                linewidth=0,
                gid=one,
            )
            for place, value in zip(places, values, strict=True):
                ax.annotate(
                    number(value),
                    (value, place),
                    xytext=(4, 0),
                    va="center",
                    textcoords="offset points",
                    fontsize=9,
                )
        if limit is not None:
            ax.axvline(limit, color=style.ACCENT, linestyle="--", linewidth=1.2, gid="limit")
        ax.set_yticks(range(len(groups)), list(groups))
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_ylim(len(groups) - 0.45, -0.55)
        ax.margins(x=0.12)
        ax.set_xlim(left=0)
        ax.grid(axis="x")


def bars_figure(
    groups: Mapping[str, Mapping[str, float]],
    finding: str,
    *,
    title: str = "",
    label: str = "",
    number: Callable[[float], str] = "{:.3g}".format,
    limit: float | None = None,
) -> Figure:
    """Return grouped horizontal bars; `label` says what is counted, and in which unit."""
    series: Sequence[str] = list(next(iter(groups.values())))
    room = len(groups) * (0.2 + 0.24 * len(series))
    figure = style.new_figure(style.WIDTH, room + 1.15)
    ax = style.add_axes(figure, 2.2, 0.55, 7.4, room)
    draw_bars(ax, groups, number, limit)
    with style.styled():
        ax.set_title(title, pad=22 if len(series) > 1 else 8)
        ax.set_xlabel(label)
        if len(series) > 1:
            ax.legend(loc="lower left", bbox_to_anchor=(-0.008, 1.0), ncol=4, borderaxespad=0.2)
    return style.finding(figure, finding)
