"""Buckets over a backward pass: what overlaps, and what stays exposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from pedagogy.plots import style
from pedagogy.plots.curves import plain_log
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes

LANES = ("backward", "all_reduce")


def _boxes(spans: Sequence[tuple[float, float]], lane: int) -> list:
    low, high = lane - 0.38, lane + 0.38
    return [[(a, low), (a, high), (b, high), (b, low)] for a, b in spans]


def draw_buckets(ax: Axes, overlap: Any, backward_seconds: float) -> None:
    """Draw the pieces of backward, and below them each bucket's all_reduce, in the same hue.

    The hatched span at the right is exposed: only communication runs.
    """
    end = max(backward_seconds, overlap.buckets[-1][1])
    hues = style.BACKWARD
    with style.styled():
        add_boxes(
            ax, "lane", _boxes([(0, end)] * 2, 0) + _boxes([(0, end)], 1), style.LANE, zorder=1
        )
        pieces = [(start, stop) for start, stop, _ in overlap.layers]
        colours = [hues[bucket % 8] for *_, bucket in overlap.layers]
        add_boxes(ax, "backward", _boxes(pieces, 0), colours, linewidths=0.4)
        colours = [hues[bucket % 8] for bucket in range(len(overlap.buckets))]
        add_boxes(ax, "all_reduce", _boxes(overlap.buckets, 1), colours, linewidths=0.8)
        exposed = _boxes([(backward_seconds, end)], 0)
        look = {"edgecolors": "#AEB6BF", "linewidths": 0, "zorder": 2}
        add_boxes(ax, "exposed", exposed, style.PAPER, "////", **look)
        wide = [i for i, (start, stop) in enumerate(overlap.buckets) if stop - start > 0.022 * end]
        at = [(sum(overlap.buckets[i]) / 2, 1) for i in wide]
        add_labels(ax, "bucket names", [str(i) for i in wide], at, style.PAPER, 9.0, "bold")
        ax.axvline(
            backward_seconds, color=style.ACCENT, linewidth=1.3, zorder=5, gid="backward ends"
        )
        ax.set_xlim(0, end * 1.001)
        ax.set_ylim(1.5, -0.5)
        ax.set_yticks([0, 1], LANES)
        ax.tick_params(axis="y", length=0)
        ax.spines[["left"]].set_visible(False)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time * 1e3:g}"))
        ax.set_xlabel("time (ms)", labelpad=1)
        exposed_text = style.seconds_text(overlap.exposed_seconds)
        title = (
            f"Hue, number: the bucket  ·  line: backward ends  ·  hatched: exposed, {exposed_text}"
        )
        ax.set_title(title, fontsize=10)


def draw_exposed(ax: Axes, sizes: Sequence[int], exposed: Sequence[float], chosen: int) -> None:
    """Draw the exposed time for each bucket size, with the chosen one marked."""
    milliseconds = [seconds * 1e3 for seconds in exposed]
    with style.styled():
        ax.plot(
            [size / 1e6 for size in sizes],
            milliseconds,
            "o-",
            color=style.SERIES[0],
            markersize=4,
            linewidth=1.6,
            gid="exposed curve",
        )
        at = (sizes[chosen] / 1e6, milliseconds[chosen])
        ax.plot(*zip(at, strict=True), "o", color=style.ACCENT, markersize=8, gid="chosen")
        plain_log(ax.xaxis)
        ax.set_ylim(0, max(milliseconds) * 1.15)
        ax.set_xlabel("bucket size (MB)", labelpad=1)
        ax.set_ylabel("exposed (ms)")
        ax.grid(True)
