"""Memory: bytes by kind over time, and predicted beside measured.

Kinds are stacked in one order everywhere (parameters at the bottom: they never leave), each with
its colour and its hatch. The peak is marked and named, for it is the peak that must fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pedagogy.plots import style
from pedagogy.plots.strips import Curve, in_order, kinds_of, layers_of, peak_of

Number = Callable[[float], str]


def _kind_text(kind: str) -> str:
    return kind.replace("_", " ")


def draw_memory_curve(ax: Axes, curve: Curve, number: Number = style.bytes_text) -> None:
    """Draw the bytes of each kind over time, stacked, with the peak marked and named.

    curve: list of (seconds, dict from kind to bytes), as `memory_meter` records it.
    """
    kinds = kinds_of([curve])
    times = np.array([time for time, _ in curve])
    layers = layers_of(curve, kinds)
    with style.styled():
        for kind, low, high in zip(kinds, layers[:-1], layers[1:], strict=True):
            colour, hatch = style.memory_look(kind)
            area = ax.fill_between(
                times,
                low,
                high,
                step="post",
                facecolor=colour,
                hatch=hatch,
                edgecolor=style.PAPER,
                linewidth=0,
                label=_kind_text(kind),
            )
            area.set_gid(kind)
        time, peak = peak_of(curve)
        ax.plot([time], [peak], "o", color=style.ACCENT, markersize=5, gid="peak", zorder=5)
        ax.axhline(peak, color=style.ACCENT, linewidth=1.1, linestyle=(0, (4, 2)), zorder=4)
        ax.annotate(
            f"peak {number(peak)}",
            (1, peak),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 4),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=style.ACCENT,
            fontweight="bold",
        )
        ax.set_xlim(times[0], times[-1])
        ax.set_ylim(0, peak * 1.14)
        byte_axis(ax.yaxis, number)
        ax.grid(axis="y")


def byte_axis(axis, number: Number = style.bytes_text) -> None:
    """Write an axis in bytes with few ticks."""
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: "0" if value == 0 else number(value)))


def memory_figure(
    curve: Curve,
    finding: str,
    *,
    title: str = "",
    time_label: str = "time (s)",
    number: Number = style.bytes_text,
) -> Figure:
    """Return the stacked bytes by kind over time of one rank."""
    figure = style.new_figure(style.WIDTH, 3.6)
    ax = style.add_axes(figure, 0.85, 0.55, 7.3, 2.6)
    draw_memory_curve(ax, curve, number)
    with style.styled():
        ax.set_title(title)
        ax.set_xlabel(time_label)
        handles, texts = ax.get_legend_handles_labels()
        ax.legend(handles[::-1], texts[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return style.finding(figure, finding)


def draw_memory_bars(
    ax: Axes, bars: Mapping[str, Mapping[str, float]], number: Number = style.bytes_text
) -> None:
    """Draw one stacked bar for each name, from left to right, with its total at the end."""
    kinds = in_order({kind for bar in bars.values() for kind, held in bar.items() if held})
    names = list(bars)
    with style.styled():
        left = np.zeros(len(names))
        for kind in kinds:
            widths = np.array([float(bars[name].get(kind, 0)) for name in names])
            colour, hatch = style.memory_look(kind)
            drawn = ax.barh(
                range(len(names)),
                widths,
                left=left,
                height=0.62,
                color=colour,
                hatch=hatch,
                edgecolor=style.PAPER,
                linewidth=0.8,
            )
            for patch in drawn:
                patch.set_gid(kind)
            left += widths
        for row, total in enumerate(left):
            ax.annotate(
                number(total),
                (total, row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontweight="bold",
            )
        ax.set_yticks(range(len(names)), names)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_ylim(len(names) - 0.45, -0.55)
        ax.set_xlim(0, max(left.max(), 1e-30) * 1.12)
        byte_axis(ax.xaxis, number)
        ax.grid(axis="x")


def memory_bars_figure(
    bars: Mapping[str, Mapping[str, float]],
    finding: str,
    *,
    title: str = "",
    number: Number = style.bytes_text,
) -> Figure:
    """Return stacked bars of bytes by kind, e.g. {"predicted": {...}, "measured": {...}}."""
    height = 0.5 * len(bars) + 1.3
    figure = style.new_figure(style.WIDTH, height)
    ax = style.add_axes(figure, 1.3, 0.45, 8.0, 0.5 * len(bars))
    draw_memory_bars(ax, bars, number)
    kinds = in_order({kind for bar in bars.values() for kind, held in bar.items() if held})
    with style.styled():
        figure.text(1.3 / style.WIDTH, 1 - 0.3 / height, title, fontsize=11, fontweight="bold")
        handles = [memory_patch(kind) for kind in kinds]
        figure.legend(
            handles=handles,
            loc="upper left",
            ncol=6,
            borderaxespad=0,
            borderpad=0,
            bbox_to_anchor=(1.3 / style.WIDTH, 1 - 0.42 / height),
        )
    return style.finding(figure, finding)


def memory_patch(kind: str) -> Patch:
    """Return a legend's handle for a kind of memory."""
    colour, hatch = style.memory_look(kind)
    return Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER, label=_kind_text(kind))


def draw_memory_rows(
    ax: Axes,
    held: Mapping[str, float],
    notes: Sequence[str] = (),
    number: Number = style.bytes_text,
) -> None:
    """Draw all kinds as one stacked bar, and below it each kind in a row, where it lies in the bar.

    notes: what each kind is made of, written after its size.
    """
    notes = list(notes) or [""] * len(held)
    left = 0.0
    with style.styled():
        for row, (kind, note) in enumerate(zip(held, notes, strict=True), start=1):
            colour, hatch = style.memory_look(kind)
            look = {"color": colour, "hatch": hatch, "edgecolor": style.PAPER, "linewidth": 0.8}
            ax.barh([0, row], held[kind], left=left, height=0.62, gid=kind, **look)
            left += held[kind]
            _write_size(ax, left, row, number(held[kind]) + (f"  {note}" if note else ""))
        _write_size(ax, left, 0, number(left), fontweight="bold")
        names = ["together", *map(_kind_text, held)]
        ax.set_yticks(range(len(names)), names)
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(held) + 0.55, -0.6)
        ax.spines["left"].set_visible(False)
        byte_axis(ax.xaxis, number)


def _write_size(ax: Axes, end: float, row: int, text: str, **look: str) -> None:
    box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}
    place = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    ax.annotate(text, (end, row), bbox=box, **place, **look)
