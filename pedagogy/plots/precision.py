"""Gradients against the range of a format, the trace of a loss scale, and sums that go wrong.

How to read the first
---------------------
Each bar counts the values between two powers of two, *after* the multiplication by the loss scale.
The format's ranges stand still behind the bars, and a scale of 2^k moves the bars k places to the
right. What a bar becomes shows in its colour and hatch: zero, a subnormal number with fewer digits,
a normal one, or infinity. Values that were zero before have no place on the axis; their share is
written beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from pedagogy.plots import style
from pedagogy.plots.curves import curves_figure
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.moe import numbers
from pedagogy.precision.histograms import HIGHEST, LOWEST

if TYPE_CHECKING:
    from pedagogy.precision import Format, Histogram

FATES = {  # what becomes of a value: how it is named, colour, hatch
    "underflow": ("becomes zero", "#B34700", "xxx"),
    "subnormal": ("subnormal: loses digits", "#F6D27A", "///"),
    "normal": ("normal", "#0072B2", ""),
    "overflow": ("becomes infinite", "#5B3A8C", "\\\\\\"),
}
PANEL, GAP, LEFT, RIGHT = 1.55, 0.42, 0.75, 2.55


def percent(share: float) -> str:
    """A share with three figures: "12.3%"; below 0.001 % only that."""
    return f"{100 * share:.3g}%" if share == 0 or share >= 1e-5 else "below 0.001%"


def populated(histograms: Sequence[Histogram], few: float = 0) -> tuple[int, int]:
    """The lowest and the highest exponent with more than `few` values; (0, 0) if none has."""
    counts = sum((numbers(histogram.counts) for histogram in histograms), np.zeros(1))
    found = np.flatnonzero(counts > few) + LOWEST
    return (int(found[0]), int(found[-1])) if len(found) else (0, 0)


def gradient_range_figure(
    histograms: Mapping[str, Histogram],
    log2_scale: int,
    to: Format,
    title: str = "",
    limits: tuple[int, int] | None = None,
    panel_inches: float = PANEL,
) -> Figure:
    """Histograms over exponents, one panel for each name, against what the format can hold.

    Names read as "weight gradients", "activation gradients". `limits` of the axis, exponents after
    scaling: by default all values and the ends of the format that are near.
    **Raises** ValueError without a histogram.
    """
    if not histograms:
        raise ValueError("no histogram to draw: at least 1 is needed")
    low, high = limits or _limits(list(histograms.values()), log2_scale, to)
    tall = panel_inches
    top, height = 0.75, 1.35 + len(histograms) * (tall + GAP) - GAP
    figure = style.new_figure(style.WIDTH, height)
    for i, (name, histogram) in enumerate(histograms.items()):
        bottom = height - top - (i + 1) * tall - i * GAP
        ax = style.add_axes(figure, LEFT, bottom, style.WIDTH - LEFT - RIGHT, tall)
        _draw_range(ax, histogram, log2_scale, to, (low, high))
        _write_shares(ax, histogram.shares(log2_scale, to))
        with style.styled():
            ax.set_title(name, fontsize=10, pad=6)
            ax.tick_params(labelbottom=i == len(histograms) - 1)
            ax.set_ylabel("% of the values")
    with style.styled():
        product = f"gradient x 2^{log2_scale}" if log2_scale else "gradient"
        near = any(low < end < high for end in _ends(to))
        lines = f"grey lines: ends of {to.name}'s ranges" if near else f"far from {to.name}'s ends"
        ax.set_xlabel(f"power of two of the {product} ({lines})")
        head = title or f"Gradients against the range of {to.name}, loss scale 2^{log2_scale}"
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.3 / height, head, **look)
    return style.finding(figure, _range_finding(histograms, log2_scale, to))


def _limits(histograms: list[Histogram], log2_scale: int, to: Format) -> tuple[int, int]:
    seen = [histogram for histogram in histograms if histogram.counts.sum()]
    few = 5e-4 * sum(int(histogram.counts.sum()) for histogram in seen)  # too few to see
    lowest, highest = (end + log2_scale for end in populated(seen, few))
    ends = [end for end in _ends(to) if lowest - 16 < end < highest + 16]
    return min([lowest, *ends]) - 2, max([highest, *ends]) + 3


def _ends(to: Format) -> tuple[int, int, int]:
    """Exponents at which underflow ends, normal numbers begin, and overflow begins."""
    lowest = 1 - to.bias
    return lowest - to.mantissa_bits - 1, lowest, to.bias + 1


def _draw_range(
    ax: Axes, histogram: Histogram, log2_scale: int, to: Format, limits: tuple[int, int]
) -> None:
    """Draw the bars by what becomes of them, and where the format's ranges end."""
    exponents = np.arange(LOWEST, HIGHEST + 1) + log2_scale
    shares = 100 * numbers(histogram.counts) / histogram.num_values
    zero, normal, infinite = _ends(to)
    edges = (-(10**9), zero, normal, infinite, 10**9)
    with style.styled():
        for end in (zero, normal, infinite):
            if limits[0] < end < limits[1]:
                look = {"color": style.MUTED, "linewidth": 1.0, "linestyle": (0, (4, 2))}
                ax.axvline(end, zorder=1, gid="end", **look)
                box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1}
                note = {"ha": "center", "va": "top", "fontsize": 8, "color": style.MUTED}
                at = {"xycoords": ("data", "axes fraction"), "bbox": box, "zorder": 4}
                ax.annotate(f"2^{end}", (end, 1.0), **note, **at)
        for (fate, (_, colour, hatch)), low, high in zip(
            FATES.items(), edges[:-1], edges[1:], strict=True
        ):
            inside = (exponents >= low) & (exponents < high) & (shares > 0.003 * shares.max())
            bars = [
                _bar(x, share) for x, share in zip(exponents[inside], shares[inside], strict=True)
            ]
            add_boxes(ax, fate, bars, colour, hatch)
        ax.set_xlim(*limits)
        ax.set_ylim(0, max(1.2 * shares.max(), 1e-9))
        ax.xaxis.set_major_locator(MultipleLocator(8))
        ax.yaxis.set_major_locator(MaxNLocator(3))
        ax.grid(axis="y")


def _bar(x: float, height: float) -> list[tuple[float, float]]:
    return [(x, 0), (x, height), (x + 1, height), (x + 1, 0)]


def _write_shares(ax: Axes, shares: Mapping[str, float]) -> None:
    """Write each fate with its look and share, right of the panel, and what was zero before."""
    width, height = (ax.bbox.width / style.DPI, ax.bbox.height / style.DPI)
    texts = [f"zero before {percent(shares['zero'])}"]
    texts += [f"{name} {percent(shares[fate])}" for fate, (name, *_) in FATES.items()]
    left, line = 1 + 0.15 / width, 0.21 / height
    with style.styled():
        for row, text in enumerate(texts):
            look = {"va": "center", "fontsize": 9, "transform": ax.transAxes, "gid": "share"}
            ax.text(left + 0.3 / width, 0.97 - row * line, text, **look)
        for row, (fate, (_, colour, hatch)) in enumerate(FATES.items(), start=1):
            middle, high, end = 0.97 - row * line, 0.06 / height, left + 0.22 / width
            box = [
                (left, middle - high),
                (left, middle + high),
                (end, middle + high),
                (end, middle - high),
            ]
            look = {"transform": ax.transAxes, "clip_on": False}
            add_boxes(ax, f"key {fate}", [box], colour, hatch, **look)


def _range_finding(histograms: Mapping[str, Histogram], log2_scale: int, to: Format) -> str:
    told = []
    for name, histogram in histograms.items():
        shares = histogram.shares(log2_scale, to)
        told.append(
            f"of {name} {percent(shares['underflow'])} become zero, "
            f"{percent(shares['subnormal'])} subnormal, {percent(shares['overflow'])} infinite"
        )
    largest = to.bias - populated(list(histograms.values()))[1]
    room = (
        f"nothing overflows up to a scale of 2^{largest}" if largest < 40 else "all are far from it"
    )
    room = room if largest >= 0 else "some do without any scale"
    return (
        f"In {to.name}, with a loss scale of 2^{log2_scale}: {'; '.join(told)}. Overflow: {room}."
    )


def skipped_steps(scales: Any) -> list[int]:
    """The steps after which a dynamic scale fell: those that were skipped; (steps,) -> list."""
    values = numbers(scales)
    return [int(step) for step in np.flatnonzero(values[1:] < values[:-1])]


def scale_trace_figure(
    scales: Any,
    losses: Any,
    skipped: Sequence[int] | None = None,
    title: str = "Dynamic loss scale",
) -> Figure:
    """The loss scale over the steps, with the skipped ones marked, over the loss.

    **Shapes** scales, losses (steps,). `skipped` are numbers of steps: by default `skipped_steps`.
    **Raises** ValueError where there are not as many losses as scales.
    """
    values, loss = numbers(scales), numbers(losses)
    if len(values) != len(loss):
        raise ValueError(f"{len(values)} scales and {len(loss)} losses: must be as many")
    skipped = skipped_steps(values) if skipped is None else list(skipped)
    figure = style.new_figure(style.WIDTH, 4.05)
    upper = style.add_axes(figure, 0.85, 2.15, 8.9, 1.5)
    lower = style.add_axes(figure, 0.85, 0.6, 8.9, 1.3)
    steps, powers = np.arange(len(values)), np.log2(values)
    with style.styled():
        upper.step(steps, powers, where="post", color=style.SERIES[0], linewidth=1.8, gid="scale")
        mark = {"linestyle": "", "marker": "X", "markersize": 8, "color": style.ACCENT}
        upper.plot(skipped, powers[skipped], gid="skipped", label="skipped step", zorder=5, **mark)
        lower.plot(steps, loss, color=style.SERIES[2], linewidth=1.4, gid="loss")
        for ax in (upper, lower):
            ax.set_xlim(0, max(len(values) - 1, 1))
            ax.grid(True)
        upper.set_ylim(powers.min() - 1, powers.max() + 1)
        upper.set_ylabel("log2 of the scale")
        upper.tick_params(labelbottom=False)
        upper.legend(loc="lower right")
        lower.set_ylabel("loss")
        lower.set_xlabel("step")
        upper.set_title(title)
    grown = int((values[1:] > values[:-1]).sum())
    return style.finding(
        figure,
        f"The scale starts at 2^{powers[0]:g} and ends at 2^{powers[-1]:g}: halved after "
        f"{len(skipped)} of {len(values)} steps, which were skipped, and doubled after {grown}.",
    )


def accumulation_error_figure(
    lengths: Sequence[int],
    errors: Mapping[str, Sequence[float]],
    title: str = "What is lost in a long sum",
) -> Figure:
    """Relative error of sums against their length, one line for each accumulator.

    **Shapes** errors: as many as lengths; 0 is drawn as a gap, for it has no logarithm.
    """
    seen = {name: [one if one > 0 else np.nan for one in line] for name, line in errors.items()}
    told = ", ".join(f"{name} {percent(line[-1])}" for name, line in errors.items())
    return curves_figure(
        {name: (lengths, line) for name, line in seen.items() if not np.isnan(line).all()},
        f"A sum of {lengths[-1]:,} terms is off by: {told}.",
        title=title,
        x_label="terms",
        y_label="relative error",
        x_scale="log2",
        y_scale="log",
        markers=True,
    )
