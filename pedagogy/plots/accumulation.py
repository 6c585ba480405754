"""A batch in k pieces: memory, seconds and bytes sent, against k.

Three panels over the same k. The first falls, the second rises, and in the third stands what
one all_reduce for each micro-batch would send, beside one a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pedagogy.plots import style
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.legend import draw_legend
from pedagogy.plots.memory import memory_patch
from pedagogy.plots.strips import in_order

HEIGHT, PANEL = 3.9, 2.3


def accumulation_figure(
    ks: Sequence[int],
    memory: Mapping[str, Sequence[float]],
    seconds: Sequence[float],
    sent: Mapping[str, Sequence[float]],
    *,
    limit: float | None = None,
    chosen: int | None = None,
    measured: Sequence[float] | None = None,
    title: str = "A batch in k micro-batches",
) -> Figure:
    """Peak bytes by kind, seconds of a window, and bytes that a rank sends, against k.

    **Shapes** `memory` {kind: bytes for each k}, `seconds` for each k, `sent` {way: bytes for each
    k}; `measured` seconds are drawn as points. `limit` in bytes is a line, and a `chosen` k is
    outlined.
    **Raises** ValueError where a series has not as many values as `ks`.
    """
    series = {**memory, "seconds": seconds, **sent, **({"measured": measured} if measured else {})}
    wrong = {name: len(values) for name, values in series.items() if len(values) != len(ks)}
    if wrong:
        raise ValueError(f"{len(ks)} values of k, but {wrong}: each series needs as many")
    figure = style.new_figure(style.WIDTH, HEIGHT)
    axes = [
        style.add_axes(figure, x, 0.6, w, PANEL) for x, w in ((0.85, 3.0), (4.7, 2.1), (7.75, 2.1))
    ]
    _draw_memory(axes[0], ks, memory, limit, chosen)
    _draw_lines(axes[1], ks, {"seconds": seconds}, measured)
    _draw_lines(axes[2], ks, sent, None)
    with style.styled():
        axes[0].set_title("peak bytes", fontsize=10)
        axes[1].set_title("seconds a window", fontsize=10)
        axes[1].yaxis.set_major_formatter(
            lambda value, _: style.seconds_text(value) if value else "0"
        )
        axes[2].set_title("bytes a rank sends", fontsize=10)
        for ax in (axes[0], axes[2]):
            ax.yaxis.set_major_formatter(lambda value, _: style.bytes_text(value) if value else "0")
        if len(sent) > 1:
            axes[2].legend(loc="upper left", fontsize=8.5)
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.28 / HEIGHT, title, **look)
        kinds = in_order([kind for kind in memory if any(memory[kind])])
        entries = [(patch, patch.get_label()) for patch in map(memory_patch, kinds)]
        draw_legend(figure, entries, "upper left", (0.15, HEIGHT - 0.42))
    return style.finding(figure, _finding(ks, memory, seconds, sent, limit, chosen))


def _draw_memory(
    ax: Axes,
    ks: Sequence[int],
    memory: Mapping[str, Sequence[float]],
    limit: float | None,
    chosen: int | None,
) -> None:
    """Draw one stacked upright bar for each k, the limit, and a frame around the chosen one."""
    below = np.zeros(len(ks))
    places = range(len(ks))
    with style.styled():
        for kind in in_order([kind for kind in memory if any(memory[kind])]):
            tops = below + np.array(memory[kind], dtype=float)
            boxes = [_box(*one) for one in zip(places, below, tops, strict=True)]
            add_boxes(ax, kind, boxes, *style.memory_look(kind))
            below = tops
        if chosen is not None:
            place = list(ks).index(chosen)
            frame = {"edgecolors": style.ACCENT, "linewidths": 2.2, "zorder": 5}
            add_boxes(ax, "chosen", [_box(place, 0, below[place], 0.42)], "none", **frame)
        if limit is not None:
            ax.axhline(limit, color=style.ACCENT, linestyle="--", linewidth=1.3, gid="limit")
        ax.set_ylim(0, 1.12 * max(below.max(), limit or 0))
        _name_ks(ax, ks)


def _box(x: float, low: float, high: float, half: float = 0.36) -> list[tuple[float, float]]:
    return [(x - half, low), (x - half, high), (x + half, high), (x + half, low)]


def _draw_lines(
    ax: Axes, ks: Sequence[int], lines: Mapping[str, Sequence[float]], measured: Sequence | None
) -> None:
    """Draw lines over the places of k, from 0 on, and measured values as points."""
    places = np.arange(len(ks))
    top = max([max(values) for values in lines.values()] + list(measured or [0])) or 1.0
    with style.styled():
        for i, (name, values) in enumerate(lines.items()):
            look = {"color": style.SERIES[i], "linestyle": style.DASHES[i], "linewidth": 1.8}
            mark = {"marker": style.MARKERS[i], "markersize": 4}
            ax.plot(places, values, gid=name, label=name, **look, **mark)
        if measured:
            dots = {"linestyle": "", "marker": "D", "color": style.ACCENT, "markersize": 6}
            ax.plot(places, measured, gid="measured", label="measured", **dots)
            ax.legend(loc="upper left", fontsize=8.5)
        ax.set_ylim(0, 1.25 * top)
        _name_ks(ax, ks)


def _name_ks(ax: Axes, ks: Sequence[int]) -> None:
    ax.set_xticks(range(len(ks)), [str(k) for k in ks])
    ax.set_xlim(-0.6, len(ks) - 0.4)
    ax.set_xlabel("k, micro-batches a window")
    ax.yaxis.set_major_locator(MaxNLocator(4))
    ax.grid(axis="y")


def _finding(
    ks: Sequence[int],
    memory: Mapping[str, Sequence[float]],
    seconds: Sequence[float],
    sent: Mapping[str, Sequence[float]],
    limit: float | None,
    chosen: int | None,
) -> str:
    """The chosen k, or the last, against the first."""
    peaks = np.sum([list(values) for values in memory.values()], axis=0)
    at = list(ks).index(chosen) if chosen is not None else len(ks) - 1
    first = (
        f"With k = {ks[at]} the peak is {style.bytes_text(peaks[at])} ({peaks[at] / peaks[0]:.0%} "
        f"of k = {ks[0]}) and a window takes {style.seconds_text(seconds[at])} "
        f"({seconds[at] / seconds[0]:.2f} times)"
    )
    told = [f"{style.bytes_text(values[at])} {way}" for way, values in sent.items() if any(values)]
    more = f"; a rank sends {', '.join(told)}" if told else ""
    none = limit is not None and peaks.min() > limit
    wish = f" No k fits {style.bytes_text(limit)}." if none else ""
    return f"{first}{more}.{wish}"
