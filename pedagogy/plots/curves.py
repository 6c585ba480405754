"""Curves: lines named where they end, with a band for the spread over seeds; and histograms.

A legend makes the eye travel, so each line carries its name at its right end (names that would
overlap are pushed apart). Lines differ by dash and marker as well as by colour. A band reaches
from the lowest to the highest of the runs, and the line is their median: with three seeds, a
standard deviation would claim more than is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from pedagogy.plots import style


def spread(places: list[float], gap: float) -> list[float]:
    """Return the places moved apart, as little as needed, so that neighbours are `gap` apart."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    for _ in range(200):
        calm = True
        for low, high in pairwise(order):
            lack = gap - (moved[high] - moved[low])
            if lack > 1e-9:
                moved[low] -= lack / 2
                moved[high] += lack / 2
                calm = False
        if calm:
            break
    return moved


def draw_curves(
    ax: Axes,
    curves: Mapping[str, tuple[Sequence[float], Any]],
    *,
    markers: bool = False,
    dots: Collection[str] = (),
) -> None:
    """Draw one line per name; y is a list, or a list of lists (one for each seed).

    dots: names of curves that are points alone, such as what was measured beside what was fitted.
    Axes scales and limits are the caller's; call `name_curves` once they are set.
    """
    with style.styled():
        for i, (name, (x, y)) in enumerate(curves.items()):
            runs = np.atleast_2d(np.asarray(y, dtype=float))
            look = {"color": style.SERIES[i % 8], "linestyle": style.DASHES[i % 8]}
            alone = {"linestyle": "none", "markersize": 7} if name in dots else {}
            drawn = markers or name in dots
            marker = {"marker": style.MARKERS[i % 8], "markersize": 4} if drawn else {}
            ax.plot(
                x,
                np.median(runs, axis=0),
                **{"linewidth": 1.8, "gid": name, "label": name} | look | marker | alone,
            )
            if len(runs) > 1:
                band = ax.fill_between(
                    x,
                    runs.min(axis=0),
                    runs.max(axis=0),
                    alpha=0.2,
                    linewidth=0,
                    color=look["color"],
                )
                band.set_gid(f"{name} spread")
        ax.margins(x=0)
        ax.grid(True)


def plain_log(axis, base: float = 10.0) -> None:
    """Make an axis logarithmic with plain numbers at its ticks (0.2, not 2 x 10^-1)."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    subs = (1.0, 2.0, 5.0) if base == 10.0 else (1.0,)
    axis.set_major_locator(LogLocator(base, subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def thin_ticks(axis) -> None:
    """Keep one tick a decade where a decimal logarithmic axis spans more than four of them."""
    axis.axes.autoscale_view()
    low, high = axis.get_view_interval()
    if high > 1e4 * low:
        axis.set_major_locator(LogLocator(10.0, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def name_curves(ax: Axes, gap_points: float = 12.0) -> None:
    """Write the name of each line at its right end, in its colour, without overlaps."""
    figure = ax.get_figure()
    lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    if not lines:
        return
    ax.autoscale_view()  # the limits are lazy, and transData asks for none
    low, high = ax.bbox.y0, ax.bbox.y1
    ends = []
    for line in lines:
        x, y = line.get_xdata()[-1], line.get_ydata()[-1]
        ends.append(float(np.clip(ax.transData.transform((x, y))[1], low, high)))
    places = spread(ends, gap_points * figure.dpi / 72)
    for line, place in zip(lines, places, strict=True):
        ax.annotate(
            line.get_label(),
            (1, (place - low) / (high - low)),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            color=line.get_color(),
            fontweight="bold",
            annotation_clip=False,
        )


def curves_figure(
    curves: Mapping[str, tuple[Sequence[float], Any]],
    finding: str,
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    x_scale: str = "linear",
    y_scale: str = "linear",
    markers: bool = False,
    dots: Collection[str] = (),
    levels: Mapping[str, float] | None = None,
    y_bottom: float | None = None,
) -> Figure:
    """Return lines with their names at their ends; a scale is "linear", "log" or "log2".

    dots: as in `draw_curves`. levels: heights to compare with, drawn as thin grey lines.
    y_bottom: where the y axis begins. "log2" has its ticks at 1, 2, 4, 8.
    """
    figure = style.new_figure(style.WIDTH, 4.0)
    ax = style.add_axes(figure, 0.85, 0.6, 7.3, 2.95)
    with style.styled():
        for axis, scale in ((ax.xaxis, x_scale), (ax.yaxis, y_scale)):
            if scale != "linear":
                plain_log(axis, 2.0 if scale == "log2" else 10.0)
        for name, height in (levels or {}).items():
            look = {"color": style.MUTED, "linewidth": 1.2, "linestyle": (0, (4, 2)), "zorder": 1}
            ax.axhline(height, label=name, gid=name, **look)
        draw_curves(ax, curves, markers=markers, dots=dots)
        if y_bottom is not None:
            ax.set_ylim(bottom=y_bottom)
        for axis, scale in ((ax.xaxis, x_scale), (ax.yaxis, y_scale)):
            if scale == "log":
                thin_ticks(axis)
        ax.set_title(title)
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        name_curves(ax)
    return style.finding(figure, finding)


def draw_histograms(ax: Axes, values: Mapping[str, Any], bins: Any) -> None:
    """Draw each distribution as an outline over the same bins (counts, not densities)."""
    with style.styled():
        for i, (name, data) in enumerate(values.items()):
            counts, edges = np.histogram(np.asarray(data, dtype=float).ravel(), bins=bins)
            ax.stairs(
                counts,
                edges,
                color=style.SERIES[i % 8],
                linestyle=style.DASHES[i % 8],
                linewidth=1.6,
                label=name,
                gid=name,
            )
        ax.set_ylim(bottom=0)
        ax.grid(axis="y")


def histograms_figure(
    panels: Mapping[str, Mapping[str, Any]],
    finding: str,
    *,
    x_label: str = "value of a gradient's element",
    num_bins: int = 60,
) -> Figure:
    """Return one histogram per panel, side by side, over the same bins and the same axes.

    panels: {"before averaging": {"rank 0": array, ...}, "after averaging": {...}}.
    """
    everything = np.concatenate(
        [
            np.asarray(data, dtype=float).ravel()
            for panel in panels.values()
            for data in panel.values()
        ]
    )
    reach = float(np.percentile(np.abs(everything), 99.5)) or 1.0
    bins = np.linspace(-reach, reach, num_bins + 1)
    figure = style.new_figure(style.WIDTH, 3.4)
    width = (style.WIDTH - 0.9 - 0.3 * len(panels)) / len(panels)
    axes: list[Axes] = []
    for i, (title, values) in enumerate(panels.items()):
        shared = {"sharey": axes[0]} if axes else {}
        ax = style.add_axes(figure, 0.8 + i * (width + 0.3), 0.6, width, 2.4, **shared)
        draw_histograms(ax, values, bins)
        with style.styled():
            ax.set_title(title)
            ax.set_xlabel(x_label)
            ax.legend(loc="upper right", handlelength=2.6)
            if axes:
                ax.tick_params(labelleft=False)
            else:
                ax.set_ylabel("count")
        axes.append(ax)
    top = max(ax.dataLim.y1 for ax in axes)
    axes[0].set_ylim(0, top * 1.05)
    return style.finding(figure, finding)
