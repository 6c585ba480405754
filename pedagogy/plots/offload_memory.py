"""What a device holds when it offloads: over a step, and at its fullest against what it has.

Curves and bars have one scale each, so that what went to the host is what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from pedagogy.plots import style
from pedagogy.plots.labels import width_points
from pedagogy.plots.legend import draw_legend, legend_inches
from pedagogy.plots.memory import draw_memory_bars, draw_memory_curve, memory_patch
from pedagogy.plots.strips import Curve, in_order, kinds_of, peak_of

LIMIT = {"color": style.INK, "linestyle": ":", "linewidth": 1.8}
LEFT, RIGHT, GAP, HEIGHT = 0.85, 0.15, 0.35, 2.3  # inches


def offload_memory_figure(
    curves: Mapping[str, Curve],
    *,
    limit: float | None = None,
    title: str = "What the device holds over a step",
) -> Figure:
    """Draw bytes by kind over time, one panel beside the other, on one scale of bytes.

    curves: {title: `memory_meter(...).curve`}; seconds are each panel's own. limit: bytes that the
    device has, a dashed line.
    **Raises** ValueError for an empty curve.
    """
    if not curves or not all(curves.values()):
        raise ValueError(f"curves of {[len(curve) for curve in curves.values()]} readings: need 1")
    kinds = kinds_of(curves.values())
    entries = _legend(kinds, limit)
    height = HEIGHT + 1.35 + legend_inches(entries)
    figure = style.new_figure(style.WIDTH, height)
    width = (style.WIDTH - LEFT - RIGHT - GAP * (len(curves) - 1)) / len(curves)
    peaks = {name: peak_of(curve)[1] for name, curve in curves.items()}
    with style.styled():
        _write_head(figure, title, entries)
        for place, (name, curve) in enumerate(curves.items()):
            ax = style.add_axes(figure, LEFT + place * (width + GAP), 0.55, width, HEIGHT)
            draw_memory_curve(ax, curve)
            ax.set_ylim(0, 1.14 * max(*peaks.values(), limit or 0))
            ax.set_title(name, fontsize=10)
            ax.set_xlabel("time (s)")
            ax.tick_params(labelleft=place == 0)
            _draw_limit(ax.axhline, ax.texts, limit)
    return style.finding(figure, _finding(peaks, limit))


def device_bytes_figure(
    bars: Mapping[str, Mapping[str, float]],
    *,
    limit: float | None = None,
    title: str = "What must fit on the device, at the peak of a step",
) -> Figure:
    """Draw one stacked bar by kind for each technique, alone and together.

    bars: {technique: {kind: bytes}}, the first is what the others are compared with. limit: bytes
    that the device has, a dashed line.
    """
    totals = {name: sum(bar.values()) for name, bar in bars.items()}
    kinds = in_order({kind for bar in bars.values() for kind, held in bar.items() if held})
    entries = _legend(kinds, limit)
    room = 0.5 * len(bars)
    height = room + 1.3
    figure = style.new_figure(style.WIDTH, height)
    left = 0.3 + max(width_points(name, 8.6) for name in bars) / 72
    ax = style.add_axes(figure, left, 0.4, style.WIDTH - left - RIGHT, room)
    draw_memory_bars(ax, bars)
    with style.styled():
        _write_head(figure, title, entries)
        ax.set_xlim(0, 1.14 * max(*totals.values(), limit or 0))
        _draw_limit(ax.axvline, ax.texts, limit)
    return style.finding(figure, _finding(totals, limit))


def _legend(kinds: Sequence[str], limit: float | None) -> list:
    entries = [(patch, patch.get_label()) for patch in map(memory_patch, kinds)]
    if limit is not None:
        line = Line2D([], [], **LIMIT)
        entries.append((line, f"the device has {style.bytes_text(limit)}"))
    return entries


def _write_head(figure: Figure, title: str, entries: list) -> None:
    height = figure.get_size_inches()[1]
    figure.text(0.012, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", gid="title")
    draw_legend(figure, entries, "upper left", (0.15, height - 0.42))


def _draw_limit(draw: Callable, texts: Iterable[Text], limit: float | None) -> None:
    """A dotted line, above what is filled and behind what is written."""
    if limit is not None:
        around = [patheffects.withStroke(linewidth=3.5, foreground=style.PAPER)]
        draw(limit, gid="limit", zorder=4.5, path_effects=around, **LIMIT)
        for text in texts:
            text.set_bbox({"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.0})
            text.set_zorder(6)


def _finding(totals: Mapping[str, float], limit: float | None) -> str:
    """Each total, as a share of the first, and which fit."""
    (first, whole), *others = totals.items()
    told = [f"{first}: {style.bytes_text(whole)}"]
    told += [f"{name}: {style.bytes_text(one)} ({one / whole:.0%})" for name, one in others]
    text = "; ".join(told) + "."
    if limit is None:
        return text
    fit = [name for name, one in totals.items() if one <= limit]
    return f"{text} In {style.bytes_text(limit)} fits: {', '.join(fit) or 'none of them'}."
