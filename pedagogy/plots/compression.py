"""Weights and what is left of them; errors.

How to read the first
---------------------
A panel is the histogram of a layer's weights. What a threshold removes is hatched. Weights that are
exactly zero would be one bar above all others: they are not drawn, and their share is written in
the panel. Ticks under the axis are the values that a codebook or a grid allows.

An error is the norm of what changed over the norm of the weight: 1 is as much as the weight itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pedagogy.plots import style
from pedagogy.plots.curves import draw_curves, name_curves, plain_log
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.moe import numbers
from pedagogy.plots.precision import percent

if TYPE_CHECKING:
    from torch import Tensor

Curve = tuple[Sequence[float], Sequence[float]]
BINS = 61
KEPT, REMOVED = ("#0072B2", ""), ("#F6D27A", "///")


def weight_histogram_figure(
    weights: Mapping[str, Tensor],
    thresholds: Mapping[str, float] | None = None,
    values: Mapping[str, Tensor] | None = None,
    title: str = "Weights by value",
) -> Figure:
    """Histograms of weights, a panel for each name, over the same bins.

    By name: `thresholds`, weights below this magnitude are hatched; `values`, what the weights may
    be, and such a panel has a scale of its own for its counts.
    **Raises** ValueError without a weight, or for a threshold or values that no panel has.
    """
    thresholds, values = thresholds or {}, values or {}
    if not weights or {*thresholds, *values} - set(weights):
        named = list(dict.fromkeys([*thresholds, *values]))
        raise ValueError(f"thresholds or values of {named}, but weights of {list(weights)}")
    figure = style.new_figure(style.WIDTH, 3.5)
    room = (style.WIDTH - 0.8) / len(weights)
    bins = bins_of(weights.values())
    first: Axes | None = None
    for i, (name, weight) in enumerate(weights.items()):
        own = first is None or name in values
        shared = {} if own else {"sharey": first}
        ax = style.add_axes(figure, 0.8 + i * room, 0.62, room - 0.5, 2.2, **shared)
        first = first or ax
        draw_weights(ax, weight, bins, thresholds.get(name), values.get(name))
        with style.styled():
            ax.set_title(name, fontsize=10)
            ax.set_xlabel("weight")
            ax.set_ylabel("" if i else "weights, zeros left out")
            ax.tick_params(labelleft=own)
            if own:
                ax.set_ylim(0, 1.08 * ax.dataLim.y1)
    with style.styled():
        figure.text(0.012, 0.93, title, fontsize=12, fontweight="bold", gid="title")
    told = [
        weights_text(name, one, thresholds.get(name), values.get(name))
        for name, one in weights.items()
    ]
    return style.finding(figure, "; ".join(told) + ".")


def bins_of(weights: Sequence[Tensor]) -> np.ndarray:
    """Edges of `BINS` equal bins, symmetric, that hold all but 1 in 1,000 of the weights."""
    largest = max(float(np.quantile(np.abs(numbers(one)), 0.999)) for one in weights)
    return np.linspace(-1, 1, BINS + 1) * (largest or 1.0)


def draw_weights(
    ax: Axes,
    weight: Tensor,
    bins: np.ndarray,
    threshold: float | None = None,
    values: Tensor | None = None,
) -> None:
    """Draw one panel; weights beyond the bins count in the outermost ones."""
    flat = numbers(weight).ravel()
    zero = flat == 0
    flat = np.clip(flat[~zero], bins[0], bins[-1])
    below = np.abs(flat) < (threshold or 0)
    counts = [np.histogram(one, bins)[0] for one in (flat[~below], flat[below])]
    with style.styled():
        bottoms = np.zeros(len(bins) - 1)
        for name, many, (colour, hatch) in zip(
            ("kept", "removed"), counts, (KEPT, REMOVED), strict=True
        ):
            bars = [
                _bar(*edges, bottom, bottom + count)
                for *edges, bottom, count in zip(bins[:-1], bins[1:], bottoms, many, strict=True)
                if count
            ]
            add_boxes(ax, name, bars, colour, hatch, linewidths=0)
            bottoms = bottoms + many
        ax.update_datalim([(bins[0], 0), (bins[-1], max(bottoms.max(), 1))])
        if threshold:
            for end in (-threshold, threshold):
                look = {"color": style.ACCENT, "linewidth": 1.3, "linestyle": (0, (4, 2))}
                ax.axvline(end, gid="threshold", **look)
        if values is not None:
            _draw_ticks(ax, np.clip(numbers(values).ravel(), bins[0], bins[-1]))
        ax.set_xlim(bins[0], bins[-1])
        ax.grid(axis="y")
        ax.yaxis.set_major_locator(MaxNLocator(4))
        if zero.any():
            look = {"ha": "right", "va": "bottom", "fontsize": 9, "gid": "zeros"}
            text = f"{percent(zero.mean())} are zero"
            ax.text(1, 1.02, text, transform=ax.transAxes, **look)


def _draw_ticks(ax: Axes, values: np.ndarray) -> None:
    """Draw a short line under the axis at each value."""
    look = {"linestyle": "", "marker": "|", "markersize": 9, "color": style.ACCENT}
    at = {"transform": ax.get_xaxis_transform(), "clip_on": False}
    ax.plot(values, [0.0] * len(values), gid="values", **look, **at)


def _bar(left: float, right: float, low: float, high: float) -> list[tuple[float, float]]:
    return [(left, low), (left, high), (right, high), (right, low)]


def weights_text(
    name: str, weight: Tensor, threshold: float | None = None, values: Tensor | None = None
) -> str:
    """What a panel shows, in words."""
    flat = numbers(weight).ravel()
    told = f"{name}: {len(flat):,} weights, standard deviation {flat.std():.2g}"
    if (flat == 0).any():
        told += f", {percent((flat == 0).mean())} zero"
    if threshold:
        told += f", {percent((np.abs(flat) < threshold).mean())} below {threshold:.2g}"
    return told if values is None else f"{told}, {len(numbers(values).ravel())} values allowed"


def error_figure(
    by_bits: Mapping[str, Curve],
    by_rank: Mapping[str, Curve],
    break_even: Mapping[str, int] | None = None,
    title: str = "What fewer bits and a lower rank cost",
) -> Figure:
    """Relative errors: left against bits, logarithmic, right against the rank, with its break-even.

    Curves are (bits or ranks, errors); an error of 0 is a gap on the left. `break_even`: by names
    of the right, the largest rank that is smaller. **Raises** ValueError for a break-even of no
    curve, or a panel without a curve.
    """
    break_even = break_even or {}
    if not by_bits or not by_rank or set(break_even) - set(by_rank):
        raise ValueError(f"bits {list(by_bits)}, ranks {list(by_rank)}, {list(break_even)}")
    figure = style.new_figure(style.WIDTH, 3.7)
    left = style.add_axes(figure, 0.8, 0.62, 3.0, 2.45)
    right = style.add_axes(figure, 5.5, 0.62, 2.75, 2.45)
    with style.styled():
        plain_log(left.yaxis)
        gaps = {name: (x, [one or np.nan for one in y]) for name, (x, y) in by_bits.items()}
        draw_curves(left, gaps, markers=True)
        draw_curves(right, by_rank)
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.set(xlabel="bits for each weight", ylabel="relative error")
        right.set(xlabel="rank (dashed: break-even)", ylim=(0, 1.02))
        handles = right.get_lines()
        texts = [line.get_label() for line in handles]
        for line, name in zip(handles, texts, strict=True):
            if name in break_even:
                look = {"linewidth": 1.2, "linestyle": (0, (4, 2)), "gid": f"break-even of {name}"}
                right.axvline(break_even[name], color=line.get_color(), label="_", **look)
        told = [f"{name}, {break_even[name]}" if name in break_even else name for name in texts]
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.03), "handlelength": 3}
        right.legend(handles, told, title="and break-even" if break_even else None, **place)
        name_curves(left)
        figure.text(0.012, 0.93, title, fontsize=12, fontweight="bold", gid="title")
    return style.finding(figure, _error_finding(by_bits, by_rank, break_even))


def _error_finding(by_bits: Mapping, by_rank: Mapping, break_even: Mapping[str, int]) -> str:
    told = [
        f"{name} {errors[-1]:.2g} at {bits[-1]} bits" for name, (bits, errors) in by_bits.items()
    ]
    for name, rank in break_even.items():
        ranks, errors = by_rank[name]
        told.append(f"{name} {np.interp(rank, ranks, errors):.2g} at its break-even rank {rank}")
    return f"Relative errors: {'; '.join(told)}."
