"""What memory costs in time: policies as points.

How to read the points
----------------------
Each policy is a point: how long an iteration takes, and the most bytes that are live in it. To the
lower left is better. The stepped line joins the policies that no other beats in both; whatever
lies above and to the right of it is never worth choosing. The dashed line is the budget: what lies
above it does not fit. Hollow: predicted. Filled: measured. Each policy has a shape of its own, and
its name beside it, with what it gives and costs against the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pedagogy.plots import style
from pedagogy.plots.beside import name_beside
from pedagogy.plots.memory import byte_axis

Spot = tuple[float, float]  # seconds, bytes
LEFT, RIGHT, BOTTOM, HEIGHT, TOP = 0.95, 0.25, 0.55, 4.1, 0.72  # inches


class Point(NamedTuple):
    """A policy: (seconds of an iteration, peak bytes), as predicted and as measured."""

    predicted: Spot | None = None
    measured: Spot | None = None

    @property
    def best(self) -> Spot:
        """Measured, where it was."""
        return self.measured or self.predicted


def frontier(points: Mapping[str, Point]) -> list[str]:
    """The policies that no other beats in seconds and bytes, the fastest first."""
    found: list[str] = []
    for name in sorted(points, key=lambda name: points[name].best):
        if not found or points[name].best[1] < points[found[-1]].best[1]:
            found.append(name)
    return found


def policy_figure(
    points: Mapping[str, Point],
    *,
    budget: float | None = None,
    title: str = "What each policy costs: bytes against seconds",
    limits: tuple[Spot, Spot] | None = None,
) -> Figure:
    """Draw each policy as a point; the first is what the others are compared with.

    budget: bytes. limits: ((least, most seconds), (least, most bytes)), for an explorer.
    **Raises** ValueError for no point, or one that is neither predicted nor measured.
    """
    empty = [name for name, point in points.items() if not any(point)]
    if not points or empty:
        raise ValueError(f"{len(points)} policies, of which without any point: {empty}")
    figure = style.new_figure(style.WIDTH, BOTTOM + HEIGHT + TOP)
    ax = style.add_axes(figure, LEFT, BOTTOM, style.WIDTH - LEFT - RIGHT, HEIGHT)
    with style.styled():
        (x0, x1), (y0, y1) = limits or _limits(points, budget)
        ax.set(xlim=(x0, x1), ylim=(y0, y1))
        ax.set(xlabel="time of an iteration", ylabel="most bytes live in it")
        _axes(ax)
        _draw_budget(ax, budget, [spot for point in points.values() for spot in point if spot])
        _draw_frontier(ax, [points[name].best for name in frontier(points)])
        for place, point in enumerate(points.values()):
            _draw_point(ax, point, place)
        _draw_names(ax, points)
        height = figure.get_size_inches()[1]
        figure.text(0.012, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", gid="title")
        _draw_key(figure, points)
    return style.finding(figure, _finding(points, budget))


def _limits(points: Mapping[str, Point], budget: float | None) -> tuple[Spot, Spot]:
    spots = [spot for point in points.values() for spot in point if spot]
    times, held = zip(*spots, strict=True)
    room = 0.12 * (max(times) - min(times)) or 0.1 * max(times)
    low, high = min([*held, budget or min(held)]), max([*held, budget or 0])
    space = high - low or 0.5 * high
    bottom = max(0.0, low - 0.3 * space)
    return (max(0.0, min(times) - room), max(times) + 1.8 * room), (bottom, high + 0.15 * space)


def _axes(ax: Axes) -> None:
    byte_axis(ax.yaxis)
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.seconds_text(value)))
    ax.grid(True)


def _draw_budget(ax: Axes, budget: float | None, spots: Sequence[Spot]) -> None:
    if budget is None:
        return
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
    over = {"facecolor": "none", "edgecolor": style.GRID, "hatch": "///", "linewidth": 0}
    ax.axhspan(budget, y1, zorder=0.2, gid="over", **over)
    ax.axhline(budget, color=style.ACCENT, linestyle="--", linewidth=1.5, gid="budget", zorder=3)
    near = [seconds for seconds, held in spots if abs(held - budget) < 0.1 * (y1 - y0)]
    right = x1 - max([*near, x0]) >= min([*near, x1]) - x0  # where there is more room
    ax.annotate(
        f"budget {style.bytes_text(budget)}",
        (float(right), budget),
        xycoords=("axes fraction", "data"),
        xytext=(-4 if right else 4, -4),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top",
        color=style.ACCENT,
        fontweight="bold",
        gid="budget",
        zorder=7,
        bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6},
    )


def _draw_frontier(ax: Axes, spots: list[Spot]) -> None:
    (_, x1), (_, y1) = ax.get_xlim(), ax.get_ylim()
    times = [spots[0][0], *(seconds for seconds, _ in spots), x1]
    held = [y1, *(one for _, one in spots), spots[-1][1]]
    look = {"color": style.INK, "linewidth": 1.3, "linestyle": (0, (1, 1.5)), "zorder": 2.5}
    ax.step(times, held, where="post", gid="frontier", **look)


def _draw_point(ax: Axes, point: Point, place: int) -> None:
    marker, colour = style.MARKERS[place % 8], style.SERIES[place % 8]
    look = {"linestyle": "none", "marker": marker, "markersize": 9, "color": colour, "zorder": 5}
    if point.predicted and point.measured:
        ends = zip(point.predicted, point.measured, strict=True)
        ax.plot(*ends, color=colour, linewidth=1.3, zorder=4, gid="joined")
    if point.predicted:
        hollow = {"markerfacecolor": style.PAPER, "markeredgewidth": 1.8}
        ax.plot(*([one] for one in point.predicted), gid="predicted", **look, **hollow)
    if point.measured:
        edge = {"markeredgecolor": style.INK, "markeredgewidth": 0.8} | look
        edge |= {"markersize": 8, "zorder": 6}
        ax.plot(*([one] for one in point.measured), gid="measured", **edge)


def _draw_names(ax: Axes, points: Mapping[str, Point]) -> None:
    """Names beside their points; policies on one spot share a name."""
    base = next(iter(points.values())).best
    spots: dict[Spot, list[str]] = {}
    for name, point in points.items():
        spots.setdefault(point.best, []).append(name)
    names = {" = ".join(names): spot for spot, names in spots.items()}
    own = f"{style.bytes_text(base[1])}, {style.seconds_text(base[0])}"
    notes = {name: own if spot == base else _against(spot, base) for name, spot in names.items()}
    both = [point for point in points.values() if point.predicted and point.measured]
    lines = [*_lines(ax), *((point.predicted, point.measured) for point in both)]
    avoid = [point.predicted for point in both]
    name_beside(ax, names, notes=notes, avoid=avoid, lines=lines)


def _lines(ax: Axes) -> list[tuple[Spot, Spot]]:
    """What is drawn across the picture: the budget, its text, and the steps."""
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
    found = []
    for text in ax.texts:
        if text.get_gid() == "budget":
            side, held = text.xy
            below, reach = held - 0.035 * (y1 - y0), 0.17 * (x1 - x0)
            start = x1 - reach if side else x0
            found += [((x0, held), (x1, held)), ((start, below), (start + reach, below))]
    for line in ax.lines:
        if line.get_gid() == "frontier":
            spots = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
            for (t0, h0), (t1, h1) in pairwise(spots):
                found += [((t0, h0), (t1, h0)), ((t1, h0), (t1, h1))]
    return found


def _against(spot: Spot, base: Spot) -> str:
    added = round(spot[0] / base[0] - 1, 2) + 0.0  # not -0
    return f"{spot[1] / base[1]:.0%} of the bytes, {added:+.0%} time"


def _draw_key(figure: Figure, points: Mapping[str, Point]) -> None:
    width, height = figure.get_size_inches()
    dot = {"linestyle": "none", "marker": "o", "markersize": 8, "color": style.MUTED}
    entries = {}
    if any(point.predicted for point in points.values()):
        entries["predicted"] = Line2D([], [], markerfacecolor=style.PAPER, mew=1.8, **dot)
    if any(point.measured for point in points.values()):
        entries["measured"] = Line2D([], [], **dot)
    entries["beaten by none"] = Line2D([], [], color=style.INK, lw=1.3, ls=(0, (1, 1.5)))
    figure.legend(
        list(entries.values()), list(entries), ncol=3, loc="upper left", borderaxespad=0,
        bbox_to_anchor=(0.15 / width, 1 - 0.4 / height),
    )  # fmt: skip


def _finding(points: Mapping[str, Point], budget: float | None) -> str:
    (first, base), *others = ((name, point.best) for name, point in points.items())
    told = [f"{first}: {style.bytes_text(base[1])}, {style.seconds_text(base[0])}"]
    told += [f"{name}: {_against(spot, base)}" for name, spot in others]
    text = "; ".join(told) + f". Beaten by none: {', '.join(frontier(points))}."
    if budget is None:
        return text
    fit = {name: point.best for name, point in points.items() if point.best[1] <= budget}
    if not fit:
        return f"{text} None fits the budget of {style.bytes_text(budget)}."
    fastest = min(fit, key=fit.get)
    return f"{text} The fastest within {style.bytes_text(budget)} is {fastest}."
