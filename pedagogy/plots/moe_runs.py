"""Runs of a mixture of experts: loads over training, drops, losses, and who took which tokens.

How to read it
--------------
Loads over training are stacked: an expert's band is as thick as its share of the choices. Dotted
lines cut the height evenly, so that a balanced gate has its bands between them.

A table of classes by experts gives, in each column, how an expert's tokens divide among the classes
(a column sums to 100 %); the last column is all tokens. Experts that do not specialise look like
it. Beside it stands the one number for the whole table, the mutual information, among those that
chance gives: the same tokens with the experts shuffled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.curves import curves_figure
from pedagogy.plots.labels import add_labels
from pedagogy.plots.moe import expert_colour, numbers

if TYPE_CHECKING:
    from torch import Tensor

SHADES = LinearSegmentedColormap.from_list("share", [style.PAPER, style.FORWARD[0]])


def load_figure(loads_by_name: Mapping[str, Tensor], window: int = 20) -> Figure:
    """Each expert's share of the choices over the steps of training, one panel for each run.

    **Shapes** each (steps, experts): how many choices fell on each expert. A point is the mean of
    the `window` steps that end there; single steps swing more.
    **Raises** ValueError without a run.
    """
    if not loads_by_name:
        raise ValueError("no run to draw: at least 1 is needed")
    figure = style.new_figure(style.WIDTH, 3.9)
    room = (style.WIDTH - 0.85) / len(loads_by_name)
    told = []
    for i, (name, loads) in enumerate(loads_by_name.items()):
        ax = style.add_axes(figure, 0.75 + i * room, 0.6, room - 0.45, 2.6)
        shares = running_shares(loads, window)
        _draw_shares(ax, shares)
        fullest = shares[-1].max() * shares.shape[1]
        told.append(f"{fullest:.1f} times {name}")
        with style.styled():
            ax.set_title(name, pad=22)
            line = f"fullest expert at the end: {fullest:.1f} times its share"
            ax.text(0, 1.025, line, transform=ax.transAxes, color=style.ACCENT, gid="fullest")
            ax.set_xlabel("step (dotted: even shares)")
            ax.set_ylabel(f"share of the choices, mean of {window} steps" if i == 0 else "")
            ax.tick_params(labelleft=i == 0)
    told = ", ".join(told)
    return style.finding(figure, f"At the end, the fullest expert gets its even share {told}.")


def running_shares(loads: Tensor, window: int) -> np.ndarray:
    """(steps, experts): each expert's share of the choices of the `window` steps that end there."""
    total = np.vstack([np.zeros(loads.shape[1]), numbers(loads).cumsum(0)])
    steps = np.arange(1, len(total))
    counts = total[steps] - total[np.maximum(steps - window, 0)]
    return counts / counts.sum(1, keepdims=True)


def _draw_shares(ax: Axes, shares: np.ndarray) -> None:
    """Draw shares (steps, experts) as bands from the bottom up, and each expert's number."""
    tops = np.hstack([np.zeros((len(shares), 1)), shares.cumsum(1)])  # (steps, experts + 1)
    steps, experts = np.arange(1, len(shares) + 1), shares.shape[1]
    with style.styled():
        for expert in range(experts):
            look = {"color": expert_colour(expert), "edgecolor": style.PAPER, "linewidth": 0.7}
            low, high = tops[:, expert], tops[:, expert + 1]
            ax.fill_between(steps, low, high, gid=f"expert {expert}", **look)
        for cut in range(1, experts):
            look = {"color": style.INK, "linewidth": 0.8, "linestyle": ":", "gid": "even"}
            ax.axhline(cut / experts, **look)
        ax.set_xlim(steps[0], max(steps[-1], 2))
        ax.set_ylim(0, 1)
    middles = (tops[-1, :-1] + tops[-1, 1:]) / 2
    seen = [expert for expert in range(experts) if shares[-1, expert] > 0.03]
    at = [(1.025, middles[expert]) for expert in seen]
    names = [str(expert) for expert in seen]
    add_labels(ax, "experts", names, at, style.INK, 8.5, transform=ax.get_yaxis_transform())


def drops_figure(factors: Sequence[float], dropped: Mapping[str, Sequence[float]]) -> Figure:
    """The dropped share of the choices against the capacity factor, one line for each name.

    **Shapes** each as many shares (0 to 1) as there are factors, which rise.
    """
    told = []
    for name, shares in dropped.items():
        free = [factor for factor, share in zip(factors, shares, strict=True) if share == 0]
        least = (
            f"none from {free[0]:g} on" if free else f"{min(shares):.0%} even at {factors[-1]:g}"
        )
        told.append(f"{name}: {shares[0]:.0%} at a factor of {factors[0]:g}, {least}")
    return curves_figure(
        {name: (factors, [100 * share for share in shares]) for name, shares in dropped.items()},
        f"What a capacity factor drops. {'; '.join(told)}.",
        title="Dropped choices",
        x_label="capacity factor",
        y_label="% of the choices",
        markers=True,
        y_bottom=0,
    )


def equal_compute_figure(
    runs: Mapping[str, Tensor], steps: Sequence[int], title: str = "Losses at equal FLOPs a token"
) -> Figure:
    """Losses of several models at equal steps: medians over the seeds, and their whole spread.

    **Shapes** each (seeds, points), in nats; `steps` (points,).
    """
    losses = {name: numbers(run) for name, run in runs.items()}
    ends = {name: run[:, -1] for name, run in losses.items()}
    told = ", ".join(
        f"{name} {np.median(end):.2f} ({end.min():.2f} to {end.max():.2f})"
        for name, end in ends.items()
    )
    lowest = min(ends, key=lambda name: np.median(ends[name]))
    others = [end.min() for name, end in ends.items() if name != lowest]
    apart = bool(others) and ends[lowest].max() < min(others)
    verdict = f"{lowest} is below all other seeds" if apart else "the seeds' spreads overlap"
    seeds = len(next(iter(losses.values())))
    return curves_figure(
        {name: (steps, run) for name, run in losses.items()},
        f"Losses after {steps[-1]} steps, median and range of {seeds} seeds: {told}; {verdict}.",
        title=title,
        x_label="step",
        y_label="loss (nats)",
    )


def specialisation_figure(
    counts: Tensor,
    classes: Sequence[str],
    information: float,
    shuffled: Sequence[float],
    untrained: float | None = None,
) -> Figure:
    """How each expert's tokens divide among the classes, and whether chance would do the same.

    **Shapes** counts (classes, experts); `information` in bits, `shuffled` that of each shuffle,
    `untrained` that of the gate before training.
    """
    figure = style.new_figure(style.WIDTH, 0.5 * len(classes) + 1.35)
    tall = 0.5 * len(classes)
    _draw_table(style.add_axes(figure, 1.15, 0.7, 5.0, tall), numbers(counts), classes)
    ax = style.add_axes(figure, 6.95, 0.7, 2.8, tall)
    _draw_shuffles(ax, information, shuffled, untrained)
    there_are = entropy(counts)
    with style.styled():
        ax.set_xlabel(f"bits told of the class, of {there_are:.2f}")
    as_much = sum(one >= information for one in shuffled)
    before = "" if untrained is None else f"; untrained it told {untrained:.3f}"
    return style.finding(
        figure,
        f"The expert tells {information:.3f} of {there_are:.3f} bits of a token's class{before}; "
        f"{as_much} of {len(shuffled)} shuffles tell as much (the most: {max(shuffled):.3f}).",
    )


def entropy(counts: Tensor) -> float:
    """Bits that a token's class is worth: (classes, experts), the experts being of no matter."""
    shares = numbers(counts).sum(1) / numbers(counts).sum()
    return float(-(shares[shares > 0] * np.log2(shares[shares > 0])).sum())


def _draw_table(ax: Axes, counts: np.ndarray, classes: Sequence[str]) -> None:
    """Draw each expert's tokens by class as a column of shaded percentages, all tokens last."""
    counts = np.column_stack([counts, counts.sum(1)])
    totals = counts.sum(0)
    shares = counts / np.maximum(totals, 1)
    used = np.flatnonzero(totals).tolist()
    cells = [(column, row) for column in used for row in range(len(classes))]
    texts = [f"{shares[row, column]:.0%}" for column, row in cells]
    names = [f"{expert}" for expert in range(len(totals) - 1)] + ["all"]
    with style.styled():
        ax.imshow(shares, cmap=SHADES, vmin=0, vmax=1, aspect="auto", gid="shares")
        ax.axvline(len(totals) - 1.5, color=style.PAPER, linewidth=5)
        ax.set_yticks(range(len(classes)), list(classes))
        ax.set_xticks(
            range(len(names)), [f"{n}\n{t:.0f}" for n, t in zip(names, totals, strict=True)]
        )
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_xlabel("expert, and its number of tokens")
        ax.set_title("Each expert's tokens by class", pad=10)
    add_labels(ax, "shares", texts, cells, style.INK, 8.0)


def _draw_shuffles(
    ax: Axes, information: float, shuffled: Sequence[float], untrained: float | None
) -> None:
    """Draw how much information each shuffle had left, and how much there was."""
    told = {"untrained": untrained, "trained": information}
    told = {name: bits for name, bits in told.items() if bits is not None}
    end = 1.12 * max(*told.values(), *shuffled)
    heights, edges = np.histogram(shuffled, bins=40, range=(0, end))
    with style.styled():
        look = {"color": style.FORWARD[0], "edgecolor": style.BACKWARD[0], "hatch": "////"}
        ax.stairs(heights, edges, fill=True, gid="shuffled", **look)
        ax.set_xlim(0, end)
        ax.set_ylim(0, 1.3 * heights.max())
        ax.set_ylabel("shuffles")
        note = {"va": "center", "fontsize": 9, "textcoords": "offset points"}
        low = {"xytext": (4, 0), "ha": "left", "color": style.BACKWARD[0]}
        ax.annotate("shuffled", (max(shuffled), 1.12 * heights.max()), **note, **low)
        for (name, bits), height in zip(told.items(), (0.35, 0.7), strict=False):
            dashes = "--" if name == "trained" else ":"
            ax.axvline(bits, color=style.ACCENT, linestyle=dashes, linewidth=1.6, gid=name)
            side = {"xytext": (4, 0), "ha": "left", "color": style.ACCENT}
            if bits > end / 2:
                side |= {"xytext": (-4, 0), "ha": "right"}
            ax.annotate(name, (bits, height * heights.max()), **note, **side)
        ax.set_title("Against chance", pad=10)
