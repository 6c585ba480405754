"""Rules against a reference, seed by seed: one panel for each rule, one thin line for each seed.

Runs from different seeds start from different weights, and that difference is often larger than
the one between two rules. Bands over the seeds then hide what is asked. So each panel shows one
rule in colour over the reference in grey, and equal dashes are equal seeds: compare the pairs.
All panels share both axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.curves import plain_log, spread

Runs = tuple[Sequence[float], Sequence[Sequence[float]]]  # x, and a y for each seed
LEFT, RIGHT, GAP, BOTTOM, HEIGHT = 0.7, 0.05, 0.74, 0.62, 2.55
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))


def seeds_figure(
    rules: Mapping[str, Runs],
    reference: tuple[str, Runs],
    finding: str,
    *,
    x_label: str = "",
    y_label: str = "",
) -> Figure:
    """Return a row of panels, {rule: (x, [y of each seed])}, each over the reference (name, runs).

    The y axis is logarithmic; the lines of a rule and of the reference are named where they end.
    """
    figure = style.new_figure(style.WIDTH, BOTTOM + HEIGHT + 0.45)
    width = (style.WIDTH - LEFT - RIGHT - GAP * len(rules)) / len(rules)
    shared: dict[str, Axes] = {}
    panels = []
    for i, (name, runs) in enumerate(rules.items()):
        ax = style.add_axes(figure, LEFT + i * (width + GAP), BOTTOM, width, HEIGHT, **shared)
        shared = shared or {"sharex": ax, "sharey": ax}
        with style.styled():
            plain_log(ax.yaxis)
            _draw(ax, reference[0], reference[1], style.MUTED, 1.1)
            _draw(ax, name, runs, style.SERIES[i % 8], 1.5)
            ax.grid(True)
            ax.margins(x=0)
            ax.set_title(name, color=style.SERIES[i % 8])
            if i:
                ax.tick_params(labelleft=False)
            else:
                ax.set_ylabel(y_label)
        panels.append(ax)
    for ax in panels:
        _name(ax)
    middle = (LEFT + (style.WIDTH - LEFT - RIGHT - GAP) / 2) / style.WIDTH
    figure.text(middle, 0.12 / (BOTTOM + HEIGHT + 0.45), x_label, ha="center", fontsize=10.5)
    return style.finding(figure, finding)


def _draw(ax: Axes, name: str, runs: Runs, colour: str, width: float) -> None:
    x, by_seed = runs
    for seed, y in enumerate(by_seed):
        look = {"linestyle": DASHES[seed % len(DASHES)], "color": colour, "linewidth": width}
        ax.plot(x, y, gid=f"{name}, seed {seed}", label=name, **look)


def _name(ax: Axes) -> None:
    """Write each rule's name once, in the middle of where its lines end."""
    ax.autoscale_view()
    ends: dict[str, list] = {}
    for line in ax.get_lines():
        point = (line.get_xdata()[-1], line.get_ydata()[-1])
        ends.setdefault(line.get_label(), []).append((*ax.transData.transform(point), line))
    heights = [sum(y for _, y, _ in found) / len(found) for found in ends.values()]
    scale = ax.get_figure().dpi / 72
    for (name, found), y in zip(ends.items(), spread(heights, 11 * scale), strict=True):
        right = max(x for x, _, _ in found)
        at = ax.transAxes.inverted().transform((right + 4 * scale, y))
        look = {"color": found[0][2].get_color(), "fontsize": 8.5, "fontweight": "bold"}
        ax.annotate(name.replace(" ", "\n", 1), at, xycoords="axes fraction", va="center", **look)
