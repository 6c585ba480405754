"""What is left when one technique is removed, and what 16 bits save of memory.

A removed technique hurts if its runs end above all runs of fp32: the band is the spread of fp32
over its seeds, and a dot inside it is no finding. The other columns say why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.labels import width_points
from pedagogy.plots.legend import draw_legend
from pedagogy.plots.memory import draw_memory_bars, memory_patch
from pedagogy.plots.strips import in_order

ROW = 0.44


def removal_figure(
    losses: Mapping[str, Sequence[float]],
    notes: Mapping[str, str] | None = None,
    reference: str = "fp32",
    title: str = "Final loss with one technique removed",
) -> Figure:
    """Final losses of every scheme, one dot a seed, beside the spread of the reference.

    `notes` stand at the right of a row, e.g. "61% of updates lost". A loss that is not finite is
    drawn as a cross at the right edge.
    **Raises** ValueError where the reference is no row, or has no finite loss.
    """
    if reference not in losses or not np.isfinite(losses[reference]).any():
        raise ValueError(
            f"rows {list(losses)}: one must be {reference!r}, with a finite loss to compare with"
        )
    spread = [one for one in losses[reference] if np.isfinite(one)]
    height = 1.2 + ROW * len(losses)
    figure = style.new_figure(style.WIDTH, height)
    ax = style.add_axes(figure, 2.1, 0.6, 5.0, ROW * len(losses))
    finite = [one for row in losses.values() for one in row if np.isfinite(one)]
    low, high = min(finite), max(finite)
    margin = 0.08 * (high - low) or 0.05 * abs(high)
    with style.styled():
        ax.axvspan(min(spread), max(spread), color=style.FORWARD[0], alpha=0.6, gid="spread")
        for row, (name, seeds) in enumerate(losses.items()):
            seen = [one for one in seeds if np.isfinite(one)]
            look = {"linestyle": "", "marker": "o", "markersize": 6, "gid": name}
            ax.plot(seen, [row] * len(seen), color=style.SERIES[row % 8], **look)
            for _ in range(len(seeds) - len(seen)):
                cross = {"marker": "X", "markersize": 9, "color": style.ACCENT}
                ax.plot([high + margin], [row], gid=f"{name} diverged", clip_on=False, **cross)
            note = (notes or {}).get(name, "")
            ax.annotate(
                note, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=9
            )
        ax.set_yticks(range(len(losses)), list(losses))
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(losses) - 0.5, -0.5)
        ax.set_xlim(low - margin, high + margin)
        ax.set_xlabel(f"final loss, a dot for each seed (band: spread of {reference})")
        ax.grid(axis="x")
        ax.set_title(title)
    return style.finding(figure, _removal_finding(losses, reference))


def _removal_finding(losses: Mapping[str, Sequence[float]], reference: str) -> str:
    worst = max(one for one in losses[reference] if np.isfinite(one))
    above, among = [], []
    for name, seeds in losses.items():
        if name == reference:
            continue
        ends_above = not np.isfinite(seeds).all() or min(seeds) > worst
        (above if ends_above else among).append(name)
    first = f"Above all runs of {reference}: {', '.join(above) or 'none'}"
    return f"{first}; not above all of them: {', '.join(among) or 'none'}."


def precision_memory_figure(
    bars: Mapping[str, Mapping[str, float]], title: str = "Bytes by kind"
) -> Figure:
    """Bytes by kind as stacked bars, one for each name, e.g. {"autocast": {"parameters": ...}}.

    The first bar is what the others are compared with.
    **Raises** ValueError for a bar without the kinds of the first.
    """
    first, *others = bars
    kinds = list(bars[first])
    for name, bar in bars.items():
        if list(bar) != kinds:
            raise ValueError(f"bar {name!r} holds {list(bar)}, and the first one {kinds}")
    told = [_less(name, bars[name], bars[first]) for name in others]
    whole = style.bytes_text(sum(bars[first].values()))
    finding = f"{first} holds {whole}" + "".join(f"; {one}" for one in told) + "."
    height = 1.2 + ROW * len(bars)
    figure = style.new_figure(style.WIDTH, height)
    left = 0.3 + max(width_points(name, 8.6) for name in bars) / 72
    draw_memory_bars(
        style.add_axes(figure, left, 0.4, style.WIDTH - left - 0.2, ROW * len(bars)), bars
    )
    with style.styled():
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.28 / height, title, **look)
        entries = [(patch, patch.get_label()) for patch in map(memory_patch, in_order(kinds))]
        draw_legend(figure, entries, "upper left", (0.15, height - 0.42))
    return style.finding(figure, finding)


def _less(name: str, bar: Mapping[str, float], first: Mapping[str, float]) -> str:
    """How much a bar is of the first, states and activations apart."""
    states = {kind for kind in bar if kind != "activations"}
    now, then = (sum(one[kind] for kind in states) for one in (bar, first))
    activations = bar.get("activations", 0) / max(first.get("activations", 0), 1)
    text = style.bytes_text(sum(bar.values()))
    return f"{name} {text}, {activations:.0%} of the activations and {now / then:.0%} of all else"
