"""Optimizers: what they keep, what their estimate is worth, and what becomes of the loss.

How to read the scatter
-----------------------
Each element of a matrix is a point: to the right how large its second moment is, upwards how large
the estimate is, both as powers of ten; darker is more of them. On the diagonal the estimate is
exact. Above it the step is too short, below it too long, each by the root of the factor. Elements
whose true value is 0 have no place there; their share is in the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pedagogy.optimizers.adam8bit import code_values
from pedagogy.plots import style
from pedagogy.plots.bars import draw_bars
from pedagogy.plots.curves import curves_figure, draw_curves, name_curves, plain_log, thin_ticks
from pedagogy.plots.labels import width_points
from pedagogy.plots.moe import numbers
from pedagogy.plots.precision import percent

if TYPE_CHECKING:
    from torch import Tensor

CELLS = 64
SHADES = LinearSegmentedColormap.from_list("many", [style.FORWARD[0], style.BACKWARD[0], style.INK])
ROW = 0.44


def optimizer_curves_figure(
    losses: Mapping[str, Sequence], window: int = 10, title: str = "The same GPT, each optimizer"
) -> Figure:
    """Losses over the steps, each point the mean of the `window` steps that end there.

    **Shapes** each (steps,) or (seeds, steps). **Raises** ValueError for fewer steps than a window.
    """
    runs = {name: np.atleast_2d(numbers(one)) for name, one in losses.items()}
    shortest = min((run.shape[1] for run in runs.values()), default=0)
    if not 1 <= window <= shortest:
        raise ValueError(f"a window of {window} for {shortest} steps: from 1 to as many as steps")
    kernel = np.ones(window) / window
    smooth = {
        name: np.array([np.convolve(one, kernel, "valid") for one in run])
        for name, run in runs.items()
    }
    ends = {name: run[:, -1] for name, run in smooth.items()}
    told = [
        f"{name} {np.median(end):.3f}"
        + (f" ({end.min():.3f} to {end.max():.3f})" if len(end) > 1 else "")
        for name, end in ends.items()
    ]
    return curves_figure(
        {
            name: (np.arange(window - 1, window - 1 + run.shape[1]), run)
            for name, run in smooth.items()
        },
        f"Mean loss of the last {window} of {shortest} steps: {', '.join(told)}.",
        title=title,
        x_label="step",
        y_label="loss (nats)",
    )


def state_bytes_figure(
    predicted: Mapping[str, float],
    measured: Mapping[str, float] | None = None,
    parameter_bytes: float | None = None,
    title: str = "Bytes of optimizer state",
) -> Figure:
    """Bars of what each optimizer should keep, and a mark over them where it was measured.

    `parameter_bytes` is a dashed line: the weights themselves. The first optimizer is what the
    others are compared with. **Raises** ValueError for a measured one that was not predicted.
    """
    measured = measured or {}
    if not predicted or set(measured) - set(predicted):
        raise ValueError(f"measured {list(measured)}, but predicted {list(predicted)}")
    height = ROW * len(predicted) + 1.2
    figure = style.new_figure(style.WIDTH, height)
    left = 0.3 + max(width_points(name, 8.6) for name in predicted) / 72
    ax = style.add_axes(figure, left, 0.55, style.WIDTH - left - 0.3, ROW * len(predicted))
    bars = {name: {"predicted": size} for name, size in predicted.items()}
    draw_bars(ax, bars, lambda size: f"   {style.bytes_text(size)}", parameter_bytes)
    rows = [list(predicted).index(name) for name in measured]
    with style.styled():
        mark = {"linestyle": "", "marker": "D", "markersize": 7, "color": style.ACCENT}
        ax.plot(list(measured.values()), rows, gid="measured", clip_on=False, zorder=5, **mark)
        line = "   (dashed: the weights)" if parameter_bytes else ""
        diamonds = "   (diamonds: measured)" if measured else ""
        ax.set_xlabel("bytes" + diamonds + line)
        ax.xaxis.set_major_formatter(lambda value, _: style.bytes_text(value) if value else "0")
        ax.set_title(title)
    return style.finding(figure, _state_finding(predicted, measured, parameter_bytes))


def _state_finding(
    predicted: Mapping[str, float], measured: Mapping[str, float], weights: float | None
) -> str:
    (first, most), *others = predicted.items()
    told = [f"{first} keeps {style.bytes_text(most)}"]
    if weights:
        told[0] += f" beside {style.bytes_text(weights)} of weights"
    told += [f"{name} {percent(size / most)} of that" for name, size in others]
    apart = max((abs(measured[name] / predicted[name] - 1) for name in measured), default=0)
    if measured:
        told.append("measured: the same" if not apart else f"measured within {percent(apart)}")
    return "; ".join(told) + "."


def second_moment_figure(
    pairs: Mapping[str, tuple[Tensor, Tensor]], title: str = "An estimate against the truth"
) -> Figure:
    """Estimates against true second moments, element by element, a panel for each name.

    **Shapes** (true, estimate) of one shape each. **Raises** ValueError without a pair, for shapes
    that differ, or where nothing is above 0.
    """
    if not pairs:
        raise ValueError("no estimate to draw: at least 1 is needed")
    figure = style.new_figure(style.WIDTH, 4.1)
    room = min((style.WIDTH - 0.5) / len(pairs), 4.7)
    for i, (name, (true, estimate)) in enumerate(pairs.items()):
        ax = style.add_axes(figure, 0.85 + i * room, 0.65, room - 0.75, 2.6)
        draw_second_moment(ax, true, estimate)
        with style.styled():
            ax.set_title(name, fontsize=10)
            ax.set_ylabel("estimate, power of 10" if i == 0 else "")
    with style.styled():
        head = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 0.935, title, **head)
    told = [second_moment_text(name, *pair) for name, pair in pairs.items()]
    return style.finding(figure, "; ".join(told) + ".")


def powers(true: Tensor, estimate: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms to the base 10 of both, where both are above 0.

    **Raises** ValueError for shapes that differ, or where nothing is left.
    """
    x, y = numbers(true).ravel(), numbers(estimate).ravel()
    seen = (x > 0) & (y > 0) if len(x) == len(y) else np.zeros(0, bool)
    if not seen.any():
        raise ValueError(f"{len(x)} true values and {len(y)} estimates: as many, some above 0")
    return np.log10(x[seen]), np.log10(y[seen])


def draw_second_moment(ax: Axes, true: Tensor, estimate: Tensor) -> None:
    """Draw how many elements lie where, and the diagonal."""
    x, y = powers(true, estimate)
    low, high = np.quantile(np.concatenate([x, y]), [0.002, 1])
    low, high = np.floor(low), np.ceil(high + 1e-9)
    edges = np.linspace(low, max(high, low + 1), CELLS + 1)
    counts, *_ = np.histogram2d(np.maximum(x, low), np.maximum(y, low), bins=(edges, edges))
    shown = np.ma.masked_equal(np.log1p(counts.T), 0)
    ends = (edges[0], edges[-1])
    with style.styled():
        look = {"origin": "lower", "cmap": SHADES, "aspect": "auto", "interpolation": "nearest"}
        ax.imshow(shown, extent=(*ends, *ends), gid="elements", zorder=2, **look)
        line = {"color": style.ACCENT, "linewidth": 1.4, "linestyle": (0, (4, 2)), "zorder": 3}
        ax.plot(ends, ends, gid="equal", **line)
        ax.set(xlim=ends, ylim=ends, xlabel="true second moment, power of 10")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(4, integer=True))
        ax.grid(True)


def second_moment_text(name: str, true: Tensor, estimate: Tensor) -> str:
    """How near the estimate is: within a factor of 2, and the median factor."""
    x, y = powers(true, estimate)
    far = y - x
    zero = float((numbers(true) <= 0).mean())
    told = (
        f"{name} is within a factor of 2 for {percent((np.abs(far) <= np.log10(2)).mean())} of the "
        f"elements, above for {percent((far > np.log10(2)).mean())}, median "
        f"{10 ** np.median(far):.2g} times the true value"
    )
    return told + f" ({percent(zero)} are 0)" * (zero > 0)


def codes() -> dict[str, np.ndarray]:
    """The values of a signed byte, ascending: the dynamic ones, and evenly spaced ones."""
    dynamic = np.unique(numbers(code_values(signed=True)).astype(float))
    return {"dynamic": dynamic, "evenly spaced": np.linspace(-1, 1, 255)}


def largest_errors(sizes: Sequence[float], code: np.ndarray) -> np.ndarray:
    """How far off the nearest value is at most, relative, for numbers about so large (0 to 1)."""
    above = np.clip(np.searchsorted(code, sizes), 1, len(code) - 1)
    half = (code[above] - code[above - 1]) / 2
    return np.minimum(half / np.asarray(sizes), 1.0)  # what is rounded to 0 is off by itself


def code_values_figure(title: str = "What eight bits can say") -> Figure:
    """The values of the dynamic code over evenly spaced ones, and their errors by size."""
    figure = style.new_figure(style.WIDTH, 3.4)
    left = style.add_axes(figure, 1.2, 0.62, 3.1, 2.1)
    right = style.add_axes(figure, 5.2, 0.62, 3.2, 2.1)
    sizes = np.geomspace(1e-6, 1, 400)
    with style.styled():
        for row, (name, code) in enumerate(codes().items()):
            look = {"color": style.SERIES[row], "linewidth": 0.4, "gid": name}
            left.vlines(code, row - 0.18, row + 0.18, snap=False, **look)  # snapped, lines merge
        left.set_yticks(range(len(codes())), list(codes()))
        left.tick_params(axis="y", length=0)
        left.set(ylim=(1.6, -0.6), xlim=(-1.03, 1.03), xlabel="value (largest of the block = 1)")
        left.spines["left"].set_visible(False)
        plain_log(right.xaxis)
        plain_log(right.yaxis)
        draw_curves(right, {name: (sizes, largest_errors(sizes, c)) for name, c in codes().items()})
        right.set(xlabel="size of the number", ylabel="relative error, at most", ylim=(1e-3, 1.5))
        thin_ticks(right.xaxis)
        name_curves(right)
        figure.text(0.012, 0.925, title, fontsize=12, fontweight="bold", gid="title")
    told = [f"{name} {percent(largest_errors([1e-3], code)[0])}" for name, code in codes().items()]
    return style.finding(
        figure, f"A number of a thousandth of the largest is off by at most: {', '.join(told)}."
    )
