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
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels, width_points
from pedagogy.plots.lanes import add_boxes, add_lines
from pedagogy.plots.legend import draw_legend, legend_inches
from pedagogy.plots.time_axis import draw_grid, name_times

KEPT, HOST, NOWHERE = "on the device", "in host memory", "nowhere"
COLOURS = {"F": "#0072B2", "host": "#B9A6D3"}
RIGHT, TITLE, FOOT, STRIP, GAP = 0.75, 0.42, 0.5, 0.95, 0.12  # inches
LARGE = 1 / 64  # of the largest: smaller ones have no row


class Life(NamedTuple):
    """A saved tensor: spans of (start, end, where), from when it was made to its last use."""

    name: str
    nbytes: int
    spans: tuple[tuple[float, float, str], ...]


def lives(profile: Any, prediction: Any, actions: Mapping[Any, str]) -> list[Life]:
    """Where each large saved tensor is over time, in the order of forward.

    profile, prediction, actions: of `recompute`'s `profile` and `predict`.
    """
    made = [event.end for event in prediction.events if event.kind == "F"]
    ends = [event.end for event in prediction.events if event.kind == "B"]
    moves: dict[Any, list[tuple[float, bool]]] = {}
    for second, key, is_back in prediction.moves:
        moves.setdefault(key, []).append((second, is_back))
    large = LARGE * max((saved.nbytes for saved in profile.saved.values()), default=0)
    found = []
    for key, saved in sorted(profile.saved.items()):
        if saved.nbytes >= large:
            used = ends[min(saved.asks[-1] + 1, len(ends) - 1)]
            away = HOST if actions.get(key) == "swap" else NOWHERE
            spans = _spans(made[key[0]], used, moves.get(key, ()), away)
            found.append(Life(profile.name(key), saved.nbytes, spans))
    return found


def _spans(
    start: float, end: float, moves: Sequence[tuple[float, bool]], away: str
) -> tuple[tuple[float, float, str], ...]:
    spans, where = [], KEPT
    for second, is_back in moves:
        if second < end:
            spans.append((start, second, where))
            start, where = second, KEPT if is_back else away
    return tuple(span for span in [*spans, (start, end, where)] if span[1] > span[0])


def turn_of(prediction: Any) -> float:
    """When forward is over."""
    return max(event.end for event in prediction.events if event.kind == "F")


def held_over_time(found: Sequence[Life]) -> list[tuple[float, int]]:
    """(second, bytes on the device), each holding until the next."""
    changes: dict[float, int] = {0.0: 0}
    for life in found:
        for start, end, where in life.spans:
            if where == KEPT:
                changes[start] = changes.get(start, 0) + life.nbytes
                changes[end] = changes.get(end, 0) - life.nbytes
    held, curve = 0, []
    for second in sorted(changes):
        held += changes[second]
        curve.append((second, held))
    return curve


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
    left = 0.25 + max(width_points(life.name, _size(row) - 0.8) for life in found) / 72
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
    names = [life.name for life in found]
    inches = ax.get_figure().get_size_inches()[0] * ax.get_position().width
    size = _size(row)
    at = [
        (-(0.06 + width_points(name, size - 0.8) / 144) / inches, place)
        for place, name in enumerate(names)
    ]
    across = ax.get_yaxis_transform()
    add_labels(ax, "tensors", names, at, style.INK, size, transform=across)
    sizes = [style.bytes_text(life.nbytes) for life in found]
    at = [
        (1 + (0.05 + width_points(text, size - 0.8) / 144) / inches, place)
        for place, text in enumerate(sizes)
    ]
    add_labels(ax, "sizes", sizes, at, style.MUTED, size, transform=across)


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
    inches = ax.get_figure().get_size_inches()[0] * ax.get_position().width
    text = style.bytes_text(peak)
    out = 1 + (0.06 + width_points(text, 8.6, "bold") / 144) / inches
    across = ax.get_yaxis_transform()
    add_labels(ax, "peak", [text], [(out, peak)], style.ACCENT, 9.0, "bold", transform=across)
    name = "all of them, on the device"
    middle = [(-(0.06 + width_points(name, 7.7) / 144) / inches, 0.5 * ax.get_ylim()[1])]
    add_labels(ax, "strip", [name], middle, style.MUTED, 8.5, transform=across)


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
