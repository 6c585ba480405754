"""Accuracy against what a network costs: one picture for all methods of compression.

How to read it
--------------
Each mark is a method with one setting: the mean accuracy over the seeds, and a bar from the worst
to the best of them. Settings of one method are joined; hollow marks are the second network. Up and
to the left is better. A star is a full net, and the dashed line its accuracy.

Two costs stand side by side, for they are not the same: a mask makes a file small and leaves every
FLOP of a dense product. What has as many FLOPs as the full net is named in a corner, not at its
mark. The accuracy axis is stretched towards 100 %: from 98 to 99 % is half of the errors.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from pedagogy.plots import style
from pedagogy.plots.labels import width_points
from pedagogy.plots.legend import draw_legend, legend_inches

if TYPE_CHECKING:
    from pedagogy.compression.frontier import Point

FULL = "full"  # the method that is no compression
COSTS = {"file_bytes": "bytes of the file", "flops": "FLOPs of one digit, zeros multiplied too"}
TICKS = (0.05, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
TOP = 0.998  # accuracies above are drawn here: 1 has no place on this axis
CLOSE = 0.01  # "as accurate as the full net": at most one point less
SIZE = 7.5  # points: letters of a setting
AROUND = [(6, 0), (-6, 0), (6, 8), (-6, 8), (6, -8), (-6, -8), (0, 10), (0, -10)]  # points
Box = tuple[float, float, float, float]  # left, bottom, right, top, in points


def frontier_figure(
    points: Iterable[Point], title: str = "What each method costs, in accuracy and otherwise"
) -> Figure:
    """Accuracy against file bytes, and against FLOPs.

    **Raises** ValueError where a network has no point of the method "full", or more than one.
    """
    points = list(points)
    networks = list(dict.fromkeys(point.network for point in points))
    for network in networks or ["any"]:
        named = [p for p in points if (p.method, p.network) == (FULL, network)]
        if len(named) != 1:
            raise ValueError(f"{len(named)} points {FULL!r} of network {network}: must be 1")
    methods = list(dict.fromkeys(point.method for point in points))
    entries = _legend(methods, networks)
    height = 5.1 + legend_inches(entries)
    figure = style.new_figure(style.WIDTH, height)
    left = style.add_axes(figure, 0.72, 0.6, 4.4, 4.0)
    right = style.add_axes(figure, 5.4, 0.6, 4.4, 4.0, sharey=left)
    with style.styled():
        for ax, cost in ((left, "file_bytes"), (right, "flops")):
            _draw(ax, points, methods, networks, cost)
        ends = [_shown(one) for point in points for one in point.accuracies]
        left.set_ylim(min(ends) * 0.8, 1 - 0.7 * (1 - max(ends)))
        left.set_ylabel("accuracy (mean; bar: all seeds)")
        right.tick_params(labelleft=False)
        figure.text(0.012, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", gid="title")
        draw_legend(figure, entries, "upper left", (0.15, height - 0.42))
        _write_settings(left, points, "file_bytes")
        _write_settings(right, [p for p in points if p.flops < _full(p, points).flops], "flops")
    return style.finding(figure, frontier_text(points))


def _full(point: Point, points: Sequence[Point]) -> Point:
    return next(p for p in points if (p.method, p.network) == (FULL, point.network))


def _draw(
    ax: Axes, points: list[Point], methods: list[str], networks: list[str], cost: str
) -> None:
    """Draw the marks of every method, joined, and the level of each full net."""
    ax.set_xscale("log")
    ax.set_yscale("logit")
    costs = [getattr(point, cost) for point in points]
    ax.set_xlim(min(costs) / 1.4, max(costs) * 1.4)
    number = style.bytes_text if cost == "file_bytes" else flops_text
    ax.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5), numticks=9))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    ax.yaxis.set_major_locator(FixedLocator(TICKS))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())
    for method in methods:
        for network in networks:
            found = [p for p in points if (p.method, p.network) == (method, network)]
            found.sort(key=lambda point: getattr(point, cost))
            if found:
                look = _look(methods.index(method), method, networks.index(network))
                _draw_method(ax, found, cost, f"{method}, {network}", look)
    ax.set_xlabel(COSTS[cost])
    ax.grid(True)
    same = {p.method: None for p in points if p.flops == _full(p, points).flops}
    same = ", ".join(method for method in same if method != FULL)
    if cost == "flops" and same:
        box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 2}
        note = {"fontsize": 8.5, "color": style.MUTED, "va": "bottom", "bbox": box, "zorder": 5}
        text = "\n".join(textwrap.wrap(f"as many FLOPs as the full net: {same}", 48))
        ax.text(0.02, 0.02, text, transform=ax.transAxes, gid="same FLOPs", **note)


def _draw_method(ax: Axes, points: list[Point], cost: str, name: str, look: dict) -> None:
    x = [getattr(point, cost) for point in points]
    means = [_shown(np.mean(point.accuracies)) for point in points]
    ends = [(_shown(min(p.accuracies)), _shown(max(p.accuracies))) for p in points]
    bar = {"color": look["color"], "linewidth": 1.1, "alpha": 0.55, "zorder": 2}
    ax.vlines(x, *zip(*ends, strict=True), **bar)
    ax.plot(x, means, gid=name, linewidth=0.9, zorder=4, **look)
    if look["marker"] == "*":
        level = {"color": style.MUTED, "linewidth": 1.1, "linestyle": (0, (4, 2)), "zorder": 1}
        ax.axhline(means[0], gid=f"level of {name}", **level)


def _look(place: int, method: str, network: int) -> dict:
    """Colour and marker of a method; hollow for the second network."""
    colour = style.INK if method == FULL else style.SERIES[place % 8]
    marker = "*" if method == FULL else style.MARKERS[place % 7]  # the eighth is the star
    size = 13 if method == FULL else 6.5
    face = style.PAPER if network else colour
    return {"color": colour, "marker": marker, "markersize": size, "markerfacecolor": face}


def _legend(methods: list[str], networks: list[str]) -> list[tuple[Line2D, str]]:
    looks = {method: _look(place, method, 0) for place, method in enumerate(methods)}
    entries = [
        (
            Line2D([], [], linestyle="", **look | {"markersize": 9 if method == FULL else 6.5}),
            method,
        )
        for method, look in looks.items()
    ]
    if len(networks) > 1:
        filled, hollow = networks[0], ", ".join(networks[1:])
        entries.append((Line2D([], [], linestyle=""), f"(filled: {filled}; hollow: {hollow})"))
    return entries


def _shown(accuracy: float) -> float:
    return float(np.clip(accuracy, 1e-3, TOP))


def flops_text(flops: float) -> str:
    """1.2M for 1,200,000; 250k for 250,000."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if flops >= size:
            return f"{flops / size:.3g}{unit}"
    return f"{flops:.3g}"


def _write_settings(ax: Axes, points: Iterable[Point], cost: str) -> None:
    """Write each setting in small print beside its mark, where nothing else is; else not at all."""
    scale = 72 / ax.get_figure().dpi
    frame = tuple(end * scale for end in ax.bbox.extents)
    taken = []  # by marks, and by what is written
    for line in (one for one in ax.get_lines() if one.get_marker() != "None"):
        for x, y in ax.transData.transform(line.get_xydata()) * scale:
            taken.append((x - 4, y - 4, x + 4, y + 4))
    for point in points:
        if point.method == FULL:
            continue
        value = (getattr(point, cost), _shown(np.mean(point.accuracies)))
        x, y = ax.transData.transform(value) * scale
        wide = 0.85 * width_points(point.setting, SIZE)
        for dx, dy in AROUND:
            left = x + dx - (wide / 2 if dx == 0 else wide if dx < 0 else 0)
            box = (left, y + dy - SIZE / 2, left + wide, y + dy + SIZE / 2)
            if _inside(box, frame) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                at = ax.transAxes.inverted().transform(
                    ((left + wide / 2) / scale, (y + dy) / scale)
                )
                look = {"fontsize": SIZE, "color": style.INK, "ha": "center", "va": "center"}
                ax.text(*at, point.setting, transform=ax.transAxes, gid="setting", zorder=6, **look)
                break


def _inside(box: Box, frame: Box) -> bool:
    low, high = (box[0] >= frame[0], box[1] >= frame[1]), (box[2] <= frame[2], box[3] <= frame[3])
    return all(low + high)


def _overlap(one: Box, other: Box) -> bool:
    across = one[0] < other[2] and other[0] < one[2]
    return across and one[1] < other[3] and other[1] < one[3]


def frontier_text(points: Sequence[Point]) -> str:
    """For each full net, what is as accurate with the smallest file and with the fewest FLOPs."""
    sentences = []
    for full in (point for point in points if point.method == FULL):
        level = float(np.mean(full.accuracies))
        mine = [p for p in points if p.network == full.network and p.method != FULL]
        near = [p for p in mine if np.mean(p.accuracies) >= level - CLOSE]
        told = [f"The full {full.network} has {level:.1%}, {style.bytes_text(full.file_bytes)}"]
        for what, cost in (("smallest file", "file_bytes"), ("fewest FLOPs", "flops")):
            if near:
                best = min(near, key=lambda point: getattr(point, cost))
                times = getattr(full, cost) / getattr(best, cost)
                named = f"{best.method}, {best.setting}, {np.mean(best.accuracies):.1%}"
                told.append(f"{what} within a point of it: {named}, {times:.1f} times less")
        sentences.append("; ".join(told if near else [*told, "nothing else is within a point"]))
    return ". ".join(sentences) + "."
