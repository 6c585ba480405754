"""Memory strips: what each rank holds over time, one strip a rank, all on one scale.

A curve is a list of (time, value); a value holds until the next entry. It is a number (of
micro-batches, say) or a dict from a kind of memory to bytes, as `memory_meter` records it. The
peak of a rank is marked by a dot, a dashed line leads to the right, and its value stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.path import Path

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels, name_rows, width_points

PLAIN = "#8CA0B8"  # bytes without a kind
STRIP = 0.78  # height of a full strip, in units of the distance between two strips
Curve = Sequence[tuple[float, Any]]


def total(value: Any) -> float:
    """Return the number of bytes (or whatever is counted) behind one value of a curve."""
    if isinstance(value, (int, float)):  # by far the quicker test
        return float(value)
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
        for i in range(max(len(kinds), 1)):
            colour, hatch = style.memory_look(kinds[i]) if kinds else (PLAIN, "")
            paths = [
                _area(rank, curve, kinds, i, scale, end) for rank, curve in memory.items() if curve
            ]
            area = PathCollection(
                paths, facecolors=colour, hatch=hatch or None, edgecolors=style.PAPER,
                linewidths=0, zorder=2,
            )  # fmt: skip
            ax.add_collection(area, autolim=False)
        _mark_peaks(ax, memory, scale, end, number)
        ax.hlines([rank + 0.4 for rank in memory], 0, end, color=style.GRID, lw=0.8, zorder=3)
        ax.set_xlim(0, end)
        ax.set_ylim(max(memory) + 0.45, min(memory) - 0.55)
        ax.set_yticks([])
        name_rows(ax, list(memory), 0.1)
        for name, side in ax.spines.items():
            side.set_visible(name == "bottom")


def _area(rank: int, curve: Curve, kinds: Sequence[str], i: int, scale: float, end: float) -> Path:
    """Return the outline of one layer of a curve, as steps that last until the next value."""
    times = np.repeat([*(time for time, _ in curve), end], 2)[1:-1]
    low, high = np.repeat(layers_of(curve, kinds)[i : i + 2], 2, axis=1)
    y = rank + 0.4 - STRIP / scale * np.concatenate([low, high[::-1]])
    return Path(np.column_stack([np.concatenate([times, times[::-1]]), y]))


def _mark_peaks(
    ax: Axes, memory: Mapping[int, Curve], scale: float, end: float, number: Callable
) -> None:
    peaks = [peak_of(curve) for curve in memory.values()]
    times = [time for time, _ in peaks]
    heights = [r + 0.4 - STRIP / scale * peak for r, (_, peak) in zip(memory, peaks, strict=True)]
    ax.hlines(heights, times, end, color=style.ACCENT, lw=1.1, linestyle=(0, (4, 2)), zorder=4)
    ax.plot(times, heights, "o", color=style.ACCENT, markersize=3.5, zorder=5, gid="peak")
    texts = [number(peak) for _, peak in peaks]
    inches = ax.get_figure().get_size_inches()[0] * ax.get_position().width
    rooms = [width_points(text, 9.0, "bold") / 72 for text in texts]
    at = [(1 + (0.09 + room / 2) / inches, y) for room, y in zip(rooms, heights, strict=True)]
    across = ax.get_yaxis_transform()
    add_labels(ax, "peaks", texts, at, style.ACCENT, 9.5, "bold", across)
