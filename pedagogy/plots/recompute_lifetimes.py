"""Where each activation lives over time: on the device, in host memory, nowhere.

How to read it
--------------
One row a saved tensor, in the order in which forward makes them. A filled bar: it lies on the
device. Hatched: its only copy is in host memory. A thin dotted line: it is nowhere, and the
triangle is where it is made again. Forward is left of the vertical line, backward right of it; what
was made first is needed last. The strip below adds up the filled bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes, add_lines
from pedagogy.plots.legend import draw_legend, legend_inches
from pedagogy.plots.recompute_lives import (
    HOST,
    KEPT,
    NOWHERE,
    Life,
    held_over_time,
    lives,
    turn_of,
)
from pedagogy.plots.time_axis import draw_grid, name_times

COLOURS = {"F": "#0072B2", "host": "#B9A6D3"}
RIGHT, TITLE, FOOT, STRIP, GAP = 0.75, 0.42, 0.5, 0.95, 0.12  # inches


def lifetime_figure(
    profile: Any,
    prediction: Any,
    actions: Mapping[Any, str],
    *,
    title: str = "Where each saved tensor lives",
    row: float | None = None,
    end: float | None = None,
    scale: float | None = None,
) -> Figure:
    """Draw the lives of what an iteration saves, under these actions.

    row: inches of a row. end, scale: fix the time axis (seconds) and the strip (bytes), for an
    explorer.
    **Raises** ValueError if nothing was saved.
    """
    found = lives(profile, prediction, actions)
    if not found:
        raise ValueError("a profile with 0 saved tensors has no lives to draw")
    curve = held_over_time(found)
    end = end or 1.01 * max(event.end for event in prediction.events)
    row = row or min(0.26, max(0.11, 7.0 / len(found)))
    entries, room = _legend(found), row * len(found)
    legend = legend_inches(entries)
    height = FOOT + STRIP + GAP + room + 0.25 + legend + TITLE
    figure = style.new_figure(style.WIDTH, height)
    names = [*(life.name for life in found), "all of them, on the device"]
    left = 0.2 + _size(row) * max(_width(name, "normal") for name in names) / 72
    width = style.WIDTH - left - RIGHT
    with style.styled():
        figure.text(0.012, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", gid="title")
        draw_legend(figure, entries, "upper left", (0.15, height - TITLE))
        rows = style.add_axes(figure, left, FOOT + STRIP + GAP, width, room)
        strip = style.add_axes(figure, left, FOOT, width, STRIP)
        _draw_rows(rows, found, end, row)
        _draw_strip(strip, curve, end, scale)
        _draw_turn([rows, strip], turn_of(prediction), end)
        draw_grid([rows, strip])
        name_times(strip, None)
    return style.finding(figure, _finding(found, curve))


def _size(row: float) -> float:
    """Points of a row's name."""
    return min(8.5, max(6.0, 60 * row))


def _draw_rows(ax: Axes, found: Sequence[Life], end: float, row: float) -> None:
    boxes: dict[str, list] = {KEPT: [], HOST: []}
    nowhere, again = [], []
    for place, life in enumerate(found):
        for (start, stop, where), before in zip(life.spans, (None, *life.spans), strict=False):
            if where == NOWHERE:
                nowhere.append([(start, place), (stop, place)])
                continue
            half = 0.4 if where == KEPT else 0.26
            low, high = place - half, place + half
            boxes[where].append([(start, low), (start, high), (stop, high), (stop, low)])
            if before and before[2] == NOWHERE:
                again.append((start, place))
    add_boxes(ax, KEPT, boxes[KEPT], COLOURS["F"], linewidths=0)
    add_boxes(ax, HOST, boxes[HOST], COLOURS["host"], "////", edgecolors=style.INK, linewidths=0.4)
    if nowhere:
        add_lines(ax, NOWHERE, nowhere, color=style.MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
    if again:
        look = {"color": style.ACCENT, "markeredgecolor": style.PAPER, "markeredgewidth": 0.5}
        size = min(7.5, 34 * row)
        ax.plot(*zip(*again, strict=True), ">", ms=size, zorder=6, gid="again", **look)
    ax.set_xlim(0, end)
    ax.set_ylim(len(found) - 0.4, -0.6)
    size = _size(row)
    _beside(ax, "tensors", [(life.name, y) for y, life in enumerate(found)], style.INK, size, -1)
    sizes = [(style.bytes_text(life.nbytes), y) for y, life in enumerate(found)]
    _beside(ax, "sizes", sizes, style.MUTED, size, 1)


@lru_cache(maxsize=1024)
def _width(text: str, weight: str) -> float:
    """Of a text of 1 point, in points."""
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return TextPath((0, 0), text, size=100, prop=font).get_extents().width / 100


def _beside(
    ax: Axes,
    gid: str,
    texts: Sequence[tuple[str, float]],
    colour: str,
    size: float,
    side: int,
    weight: str = "normal",
) -> None:
    """Write texts left (-1) or right (1) of the axes, flush with them, each at its height."""
    inches = ax.get_figure().get_size_inches()[0] * ax.get_position().width
    rooms = [_width(text, weight) * size / 144 for text, _ in texts]
    edge = 0 if side < 0 else 1
    at = [
        (edge + side * (0.07 + room) / inches, y) for room, (_, y) in zip(rooms, texts, strict=True)
    ]
    names, across = [text for text, _ in texts], ax.get_yaxis_transform()
    add_labels(ax, gid, names, at, colour, size, weight, transform=across)


def _draw_strip(
    ax: Axes, curve: Sequence[tuple[float, int]], end: float, scale: float | None
) -> None:
    times, held = zip(*curve, strict=True)
    colour, hatch = style.memory_look("activations")
    peak = max(held)
    x = np.append(times, end)
    y = np.append(held, held[-1])
    look = {"facecolor": colour, "hatch": hatch, "edgecolor": style.PAPER, "linewidth": 0}
    ax.fill_between(x, 0, y, step="post", gid="held", **look)
    at = times[held.index(peak)]
    dashes = {"color": style.ACCENT, "linewidth": 1.1, "linestyle": (0, (4, 2)), "zorder": 5}
    ax.hlines(peak, at, end, **dashes)
    ax.plot([at], [peak], "o", color=style.ACCENT, markersize=4, gid="peak", zorder=6)
    ax.set_xlim(0, end)
    ax.set_ylim(0, 1.1 * (scale or peak))
    _beside(ax, "peak", [(style.bytes_text(peak), peak)], style.ACCENT, 9.5, 1, "bold")
    middle = 0.5 * ax.get_ylim()[1]
    _beside(ax, "strip", [("all of them, on the device", middle)], style.MUTED, 8.5, -1)


def _draw_turn(axes: Sequence[Axes], turn: float, end: float) -> None:
    for ax in axes:
        ax.axvline(turn, color=style.INK, linewidth=1.3, zorder=5.5, gid="turn")
    ax = axes[0]
    inch = 1 / (ax.get_position().height * ax.get_figure().get_size_inches()[1])
    at = [(turn / 2, 1 + 0.11 * inch), ((turn + end) / 2, 1 + 0.11 * inch)]
    across = ax.get_xaxis_transform()
    add_labels(ax, "halves", ["forward", "backward"], at, style.INK, 9.0, "bold", across)


def _legend(found: Sequence[Life]) -> list:
    places = {where for life in found for *_, where in life.spans}
    entries = [(Patch(facecolor=COLOURS["F"]), KEPT)]
    if HOST in places:
        patch = Patch(facecolor=COLOURS["host"], hatch="////", edgecolor=style.INK, linewidth=0.4)
        entries.append((patch, HOST))
    if NOWHERE in places:
        dots = Line2D([], [], color=style.MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
        mark = Line2D([], [], color=style.ACCENT, marker=">", linestyle="none", markersize=7)
        entries += [(dots, NOWHERE), (mark, "made again")]
    return entries


def _finding(found: Sequence[Life], curve: Sequence[tuple[float, int]]) -> str:
    whole = sum(life.nbytes for life in found)
    told = [f"{len(found)} saved tensors of {style.bytes_text(whole)}"]
    for where, text in ((HOST, "are away in host memory"), (NOWHERE, "are dropped and made again")):
        gone = [life for life in found if any(span[2] == where for span in life.spans)]
        if gone:
            share = sum(life.nbytes for life in gone) / whole
            told.append(f"{len(gone)} ({share:.0%} of the bytes) {text}")
    peak = max(held for _, held in curve)
    return f"{'; '.join(told)}; at most {style.bytes_text(peak)} lie on the device at once."
