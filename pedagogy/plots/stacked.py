"""Stacked bars by term: one bar for each technique, so that the term that a technique takes shows.

Terms keep their order, colour and hatch in every bar. A bar that is longer than the axis runs out
of the picture; its total is written all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels, width_points
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.legend import draw_legend, legend_inches
from pedagogy.plots.memory import byte_axis

Bars = Mapping[str, Mapping[str, float]]
LOOKS = (
    ("#9CCBEB", ""),
    ("#0072B2", "//"),
    ("#F6D27A", ""),
    ("#00765A", "\\\\"),
    ("#8FDCC0", ".."),
    ("#A8497D", "xx"),
    ("#E3A6C8", ""),
    ("#5B3A8C", "--"),
    ("#AEB6BF", "..."),
    ("#8A6100", "||"),
)
HALF = 0.34  # of the distance between two bars


def terms_of(bars: Bars) -> list[str]:
    """Return the terms of all bars, in the order in which they first appear."""
    return list(dict.fromkeys(term for bar in bars.values() for term in bar))


def draw_stacked(
    ax: Axes,
    bars: Bars,
    number: Callable[[float], str] = style.bytes_text,
    *,
    end: float | None = None,
    limit: float | None = None,
    chosen: str | None = None,
) -> None:
    """Draw one stacked bar for each name, from top to bottom, with its total behind it.

    end: where the axis ends (default: behind the longest bar). limit: a dashed line there.
    chosen: the name of a bar to outline.
    """
    totals = [sum(bar.values()) for bar in bars.values()]
    end = end or 1.3 * max([*totals, limit or 0.0, 1e-30])
    with style.styled():
        for place, (term, drawn) in enumerate(_stack(bars, end).items()):
            colour, hatch = LOOKS[place % len(LOOKS)]
            add_boxes(ax, term, drawn, colour, hatch)
        for row, (name, total) in enumerate(zip(bars, totals, strict=True)):
            _write_total(ax, row, total, end, number(total), name == chosen)
            if name == chosen:
                frame = [_box(0, min(total, end), row, HALF + 0.05)]
                add_boxes(ax, "chosen", frame, "none", edgecolors=style.ACCENT, linewidths=2.2)
        if limit is not None:
            ax.axvline(
                limit, color=style.ACCENT, linestyle="--", linewidth=1.2, gid="limit", zorder=4
            )
        ax.set_yticks(range(len(bars)), list(bars))
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_ylim(len(bars) - 0.45, -0.55)
        ax.set_xlim(0, end)
        byte_axis(ax.xaxis, style.bytes_text)
        ax.grid(axis="x")


def _stack(bars: Bars, end: float) -> dict[str, list]:
    """Return the boxes of each term, cut off where the axis ends."""
    boxes: dict[str, list] = {term: [] for term in terms_of(bars)}
    for row, bar in enumerate(bars.values()):
        left = 0.0
        for term, value in bar.items():
            boxes[term].append(_box(min(left, end), min(left + value, end), row))
            left += value
    return boxes


def _box(left: float, right: float, row: int, half: float = HALF) -> list[tuple[float, float]]:
    return [(left, row - half), (left, row + half), (right, row + half), (right, row - half)]


def _write_total(ax: Axes, row: int, total: float, end: float, text: str, bold: bool) -> None:
    """Write a bar's total behind it, or at the end of the axis if the bar is longer."""
    weight = "bold" if bold else "normal"
    pixels = ax.bbox.width / ax.get_figure().dpi * 72  # points over the axis
    room = width_points(text, 8.6, weight) / pixels * end
    middle = min(total + room / 2 + 0.008 * end, end - room / 2)
    paper = _box(middle - room / 2, middle + room / 2, row, 0.22)
    add_boxes(ax, "total box", [paper], style.PAPER, zorder=5)
    add_labels(ax, "totals", [text], [(middle, row)], style.INK, 9.0, weight)


def stacked_legend(bars: Bars) -> list:
    """Return (handle, text) for each term."""
    looks = [LOOKS[place % len(LOOKS)] for place in range(len(terms_of(bars)))]
    return [
        (Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER), term.replace("_", " "))
        for (colour, hatch), term in zip(looks, terms_of(bars), strict=True)
    ]


def stacked_figure(
    bars: Bars,
    finding: str,
    *,
    title: str = "",
    label: str = "",
    number: Callable[[float], str] = style.bytes_text,
    limit: float | None = None,
) -> Figure:
    """Return stacked bars by term, e.g. {"TP, predicted": {...}, "TP, measured": {...}}.

    label: what the axis says. limit: a dashed line there.
    """
    entries = stacked_legend(bars)
    legend, room = legend_inches(entries), 0.42 * len(bars)
    height = room + legend + 1.15
    figure = style.new_figure(style.WIDTH, height)
    left = 0.3 + max(width_points(name, 8.6) for name in bars) / 72
    ax = style.add_axes(figure, left, 0.6, style.WIDTH - left - 0.2, room)
    draw_stacked(ax, bars, number, limit=limit)
    with style.styled():
        figure.text(0.012, 1 - 0.26 / height, title, fontsize=12, fontweight="bold", gid="title")
        draw_legend(figure, entries, "upper left", (0.15, height - 0.4))
        ax.set_xlabel(label)
    return style.finding(figure, finding)
