"""A model cut into stages: one bar for each layer, a bracket over each stage.

Neighbouring stages differ in hue and hatch. Over each bracket stands how long the stage takes for
a minibatch and, where it has more than one, on how many machines. A dashed line is a cut, which an
activation and its gradient must cross. The slowest of all is marked: the pipeline is as fast as it.
Under the bars stands what each layer is; a grey line gives their scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes, add_lines

LEFT, RIGHT, TITLE, BARS, GAP, FOOT = 0.75, 0.25, 0.8, 1.15, 0.12, 0.7
HATCHES = ("", "//")


class CutStage(NamedTuple):
    """Layers first..last - 1 on `replicas` machines.

    seconds: from one minibatch to the next. sent_seconds: what crosses to the next stage takes.
    """

    first: int
    last: int
    replicas: int
    seconds: float
    sent_seconds: float = 0.0


def period(stages: Sequence[CutStage]) -> float:
    """Return the seconds from one minibatch to the next: the slowest stage's or cut's."""
    return max(max(stage.seconds, stage.sent_seconds) for stage in stages)


def milliseconds(seconds: float) -> str:
    """Return the time in ms with three digits, never with an exponent: 0.197, 88.8, 1640."""
    value = 1e3 * seconds
    return f"{value:.3g}" if abs(value) < 999.5 else f"{float(f'{value:.3g}'):.0f}"


def partition_figure(
    layer_seconds: Sequence[float],
    cuts: Mapping[str, Sequence[CutStage]],
    finding: str,
    *,
    kinds: Sequence[str] = (),
    facts: Sequence[str] = (),
) -> Figure:
    """Return the layers' times under each of several cuts: {title: stages}.

    kinds: what each layer is, in a word. facts: a text for each cut, at the right of its title.
    """
    height = len(cuts) * (TITLE + BARS) + (len(cuts) - 1) * GAP + FOOT
    figure = style.new_figure(style.WIDTH, height)
    width = style.WIDTH - LEFT - RIGHT
    for row, (title, stages) in enumerate(cuts.items()):
        bottom = height - (row + 1) * (TITLE + BARS) - row * GAP
        ax = style.add_axes(figure, LEFT, bottom, width, BARS)
        with style.styled():
            _draw_cut(ax, layer_seconds, stages)
            look = {"va": "bottom", "gid": "title"}
            y = (bottom + BARS + 0.5) / height
            figure.text(LEFT / style.WIDTH, y, title, fontsize=12, fontweight="bold", **look)
            if facts:
                right = 1 - RIGHT / style.WIDTH
                figure.text(
                    right, y, facts[row], fontsize=10, color=style.MUTED, ha="right", **look
                )
    _write_layers(ax, layer_seconds, kinds)
    return style.finding(figure, finding)


def _draw_cut(ax: Axes, seconds: Sequence[float], stages: Sequence[CutStage]) -> None:
    highest = max(seconds)
    ax.set_xlim(-0.6, len(seconds) - 0.4)
    ax.set_ylim(0, highest * 1.05)
    ax.set_axis_off()
    for number, stage in enumerate(stages):
        boxes = [
            [(i - 0.4, 0), (i - 0.4, seconds[i]), (i + 0.4, seconds[i]), (i + 0.4, 0)]
            for i in range(stage.first, stage.last)
        ]
        colour = style.SERIES[number % len(style.SERIES)]
        add_boxes(ax, f"stage {number}", boxes, colour, HATCHES[number % 2])
    _draw_brackets(ax, stages)
    _draw_scale(ax, highest)
    add_lines(ax, "axis", [[(-0.6, 0), (len(seconds) - 0.4, 0)]], color=style.MUTED, linewidth=0.8)


def _draw_scale(ax: Axes, highest: float) -> None:
    """Draw a grey line at a round height, 1, 2 or 5 times a power of ten, and write how high."""
    power = 10.0 ** math.floor(math.log10(highest))
    height = max(step * power for step in (1, 2, 5) if step * power <= highest)
    left, right = ax.get_xlim()
    look = {"color": style.GRID, "linewidth": 1.0, "zorder": 0}
    add_lines(ax, "scale line", [[(left, height), (right, height)]], **look)
    inches = (style.WIDTH - LEFT - RIGHT) / (right - left)  # for each layer
    at = [(left - 0.33 / inches, height)]
    add_labels(ax, "scale", [f"{milliseconds(height)} ms"], at, style.MUTED, 8.0)


def _write_layers(ax: Axes, seconds: Sequence[float], kinds: Sequence[str]) -> None:
    """Write what each layer is and its time below the axes, and what the picture counts."""
    across = ax.get_xaxis_transform()
    for gid, texts, ink, below in (
        ("kinds", kinds, style.INK, 0.11),
        ("milliseconds", [milliseconds(value) for value in seconds], style.MUTED, 0.27),
    ):
        at = [(i, -below / BARS) for i in range(len(texts))]
        add_labels(ax, gid, texts, at, ink, 7.5, transform=across)
    text = (
        "ms of each layer, forward and backward; above: ms of each stage, and on how many machines"
    )
    middle = [((len(seconds) - 1) / 2, -0.49 / BARS)]
    add_labels(ax, "label", [text], middle, style.MUTED, 9.5, transform=across)


def _draw_brackets(ax: Axes, stages: Sequence[CutStage]) -> None:
    """Draw a bracket over each stage, the slowest one in the colour of the sentence."""
    across, y, slowest = ax.get_xaxis_transform(), 1 + 0.05 / BARS, period(stages)
    look = {"transform": across, "clip_on": False, "linewidth": 1.4}
    for gid, ink in (("slowest", style.ACCENT), ("stages", style.INK)):
        mine = [stage for stage in stages if (stage.seconds == slowest) == (gid == "slowest")]
        ends = [(stage.first - 0.4, stage.last - 0.6) for stage in mine]
        lines = [[(a, y - 0.05), (a, y), (b, y), (b, y - 0.05)] for a, b in ends]
        if lines:
            add_lines(ax, f"{gid} brackets", lines, color=ink, **look)
        middles = [(stage.first + stage.last - 1) / 2 for stage in mine]
        texts = [milliseconds(stage.seconds) for stage in mine]
        at = [(x, 1 + 0.16 / BARS) for x in middles]
        add_labels(ax, gid, texts, at, ink, 8.0, transform=across)
        several = [(s, x) for s, x in zip(mine, middles, strict=True) if s.replicas > 1]
        texts = [f"on {stage.replicas}" for stage, _ in several]
        at = [(x, 1 + 0.32 / BARS) for _, x in several]
        add_labels(ax, f"{gid} machines", texts, at, ink, 8.5, "bold", across)
    _draw_cuts(ax, stages[:-1], slowest)


def _draw_cuts(ax: Axes, stages: Sequence[CutStage], slowest: float) -> None:
    for stage in stages:
        ink = style.ACCENT if stage.sent_seconds == slowest else style.MUTED
        line, dashes = [[(stage.last - 0.5, 0), (stage.last - 0.5, 1)]], (0, (3, 2))
        look = {"transform": ax.get_xaxis_transform(), "linewidth": 1.2, "linestyle": dashes}
        add_lines(ax, "cut", line, color=ink, **look)
    for stage in [stage for stage in stages if stage.sent_seconds == slowest][:1]:
        text, at = [f"{milliseconds(slowest)} ms to send"], [(stage.last - 0.5, -0.1 / BARS)]
        across = ax.get_xaxis_transform()
        add_labels(ax, "slowest cut", text, at, style.ACCENT, 8.0, transform=across)
