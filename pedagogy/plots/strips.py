"""Memory strips: what each rank holds over time, one strip a rank, all on one scale.

A curve is a list of (time, value); a value holds until the next entry. It is a number (of
micro-batches, say) or a dict from a kind of memory to bytes, as `memory_meter` records it. The
peak of a rank is marked by a dot, a dashed line leads to the right, and its value stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pedagogy.plots import style

PLAIN = "#8CA0B8"  # bytes without a kind
STRIP = 0.78  # height of a full strip, in units of the distance between two strips
Curve = Sequence[tuple[float, Any]]


def total(value: Any) -> float:
    """Return the number of bytes (or whatever is counted) behind one value of a curve."""
    return float(sum(value.values())) if isinstance(value, Mapping) else float(value)


def peak_of(curve: Curve) -> tuple[float, float]:
    """Return when a curve first reaches its highest value, and that value."""
    time, value = max(curve, key=lambda entry: total(entry[1]))
    return float(time), total(value)


def in_order(kinds: Iterable[str]) -> list[str]:
    """Return the kinds of memory in the order of the style's table, unknown ones last."""
    places = {kind: place for place, kind in enumerate(style.MEMORY)}
    return sorted(kinds, key=lambda kind: (places.get(kind.replace("_", " "), len(places)), kind))


def kinds_of(curves: Iterable[Curve]) -> list[str]:
    """Return the kinds of memory in the curves that hold any byte at any time."""
    values = [value for curve in curves for _, value in curve if isinstance(value, Mapping)]
    return in_order({kind for value in values for kind, held in value.items() if held})


def layers_of(curve: Curve, kinds: Sequence[str]) -> np.ndarray:
    """Return the cumulated heights of a curve, (len(kinds) + 1, len(curve)), from 0 up."""
    if not kinds:
        return np.array([[0.0] * len(curve), [total(value) for _, value in curve]])
    heights = [[float(value.get(kind, 0)) for _, value in curve] for kind in kinds]
    return np.vstack([np.zeros(len(curve)), np.cumsum(heights, axis=0)])


def draw_memory_strips(
    ax: Axes,
    memory: Mapping[int, Curve],
    end: float,
    number: Callable[[float], str] = "{:g}".format,
    scale: float | None = None,
) -> None:
    """Draw one strip per rank on one scale (the highest peak, or `scale`); `number` writes peaks.

    The y axis counts ranks downwards, as the lanes do; a strip stands on rank + 0.4.
    """
    curves = list(memory.values())
    scale = scale or max(peak_of(curve)[1] for curve in curves) or 1.0
    kinds = kinds_of(curves)
    with style.styled():
        for rank, curve in memory.items():
            times = np.array([time for time, _ in curve] + [end])
            layers = rank + 0.4 - STRIP / scale * layers_of(curve, kinds)
            layers = np.hstack([layers, layers[:, -1:]])
            for i, (low, high) in enumerate(pairwise(layers)):
                colour, hatch = style.memory_look(kinds[i]) if kinds else (PLAIN, "")
                ax.fill_between(
                    times,
                    low,
                    high,
                    step="post",
                    facecolor=colour,
                    hatch=hatch,
                    edgecolor=style.PAPER,
                    linewidth=0,
                    zorder=2,
                )
            _mark_peak(ax, rank, curve, scale, end, number)
            ax.plot([0, end], [rank + 0.4] * 2, color=style.GRID, linewidth=0.8, zorder=3)
        ax.set_xlim(0, end)
        ax.set_ylim(max(memory) + 0.45, min(memory) - 0.55)
        ax.set_yticks([rank + 0.1 for rank in memory], [f"rank {rank}" for rank in memory])
        ax.tick_params(axis="y", length=0)
        for name, side in ax.spines.items():
            side.set_visible(name == "bottom")


def _mark_peak(ax: Axes, rank: int, curve: Curve, scale: float, end: float, number) -> None:
    time, value = peak_of(curve)
    y = rank + 0.4 - STRIP / scale * value
    ax.plot([time, end], [y, y], color=style.ACCENT, linewidth=1.1, linestyle=(0, (4, 2)), zorder=4)
    ax.plot([time], [y], "o", color=style.ACCENT, markersize=3.5, zorder=5, gid="peak")
    ax.annotate(
        number(value),
        (end, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=style.ACCENT,
        fontweight="bold",
        fontsize=9.5,
        annotation_clip=False,
    )
