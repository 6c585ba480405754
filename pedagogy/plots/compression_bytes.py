"""Bytes of a compressed network: in a file, by section, and in training, by kind.

The two are set side by side on purpose: what makes a file small seldom makes training smaller.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.labels import width_points
from pedagogy.plots.legend import draw_legend, legend_inches
from pedagogy.plots.memory import byte_axis, draw_memory_bars, memory_patch
from pedagogy.plots.precision import percent
from pedagogy.plots.stacked import draw_stacked, stacked_legend
from pedagogy.plots.strips import in_order

ROW = 0.4
LOOKS = {"masks and indices": "buffers", "teacher": "other"}  # kinds that look like others


def file_sections_figure(
    stages: Mapping[str, Mapping[str, float]], title: str = "Bytes of the file, by section"
) -> Figure:
    """Bytes by section, a stacked bar for each stage, e.g. {"dense": {"values": 202_440}, ...}.

    The first stage is what the others are compared with. Where it is far longer than they are, it
    runs out of the picture; its total is written all the same.
    **Raises** ValueError for fewer than two stages.
    """
    if len(stages) < 2:
        raise ValueError(f"stages {list(stages)}: at least 2, the first one to compare with")
    (first, whole), *others = [(name, sum(bar.values())) for name, bar in stages.items()]
    told = [f"{first} {style.bytes_text(whole)}"]
    told += [f"{name} {style.bytes_text(n)} ({whole / n:.1f} times smaller)" for name, n in others]
    last, size = stages[others[-1][0]], others[-1][1]
    parts = ", ".join(f"{name} {percent(n / size)}" for name, n in last.items() if n)
    end = min(1.3 * max(n for _, n in others), 1.3 * whole)
    entries, rows = stacked_legend(stages), 0.42 * len(stages)
    height = rows + legend_inches(entries) + 1.15
    figure = style.new_figure(style.WIDTH, height)
    left = 0.3 + max(width_points(name, 8.6) for name in stages) / 72
    ax = style.add_axes(figure, left, 0.6, style.WIDTH - left - 0.2, rows)
    draw_stacked(ax, stages, end=end)
    with style.styled():
        figure.text(0.012, 1 - 0.26 / height, title, fontsize=12, fontweight="bold", gid="title")
        draw_legend(figure, entries, "upper left", (0.15, height - 0.4))
        cut = f" ({first} is longer than the picture)" if whole > end else ""
        ax.set_xlabel(f"bytes{cut}")
    return style.finding(figure, f"{'; '.join(told)}; the last is {parts}.")


def training_bytes_figure(
    methods: Mapping[str, tuple[Mapping[str, float], float]],
    title: str = "Bytes while training, and of the file",
) -> Figure:
    """Left bytes by kind while training, right the file's: {method: ({kind: bytes}, file bytes)}.

    The first method is what the others are compared with. Masks, indices and codebooks that are no
    parameters have the look of buffers, and a teacher that of other tensors.
    """
    rows, height = ROW * len(methods), ROW * len(methods) + 1.35
    figure = style.new_figure(style.WIDTH, height)
    left = 0.3 + max(width_points(name, 8.6) for name in methods) / 72
    wide = 0.6 * (style.WIDTH - left - 0.9)
    training = style.add_axes(figure, left, 0.5, wide, rows)
    file = style.add_axes(figure, left + wide + 0.3, 0.5, style.WIDTH - left - wide - 0.5, rows)
    bars = {
        name: {LOOKS.get(kind, kind): size for kind, size in held.items() if size}
        for name, (held, _) in methods.items()
    }
    draw_memory_bars(training, bars)
    names = {LOOKS.get(kind, kind): kind for held, _ in methods.values() for kind in held}
    kinds = in_order({kind for held in bars.values() for kind in held})
    entries = [(memory_patch(kind), names[kind].replace("_", " ")) for kind in kinds]
    with style.styled():
        training.set(xlim=(0, training.get_xlim()[1] * 1.06), xlabel="while training")
        _draw_files(file, [size for _, size in methods.values()], training.get_ylim())
        draw_legend(figure, entries, "upper left", (0.15, height - 0.44))
        head = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.28 / height, title, **head)
    return style.finding(figure, _finding(methods))


def _draw_files(ax: Axes, sizes: list[float], limits: tuple[float, float]) -> None:
    """Draw one bar for each file, beside the bars of training."""
    ax.barh(range(len(sizes)), sizes, height=0.62, color=style.MUTED, gid="file")
    for row, size in enumerate(sizes):
        text = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "gid": "size"}
        ax.annotate(style.bytes_text(size), (size, row), **text)
    ax.set(ylim=limits, xlim=(0, max(sizes) * 1.3), yticks=[], xlabel="of the file")
    byte_axis(ax.xaxis)
    ax.xaxis.get_major_locator().set_params(nbins=4)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")


def _finding(methods: Mapping[str, tuple[Mapping[str, float], float]]) -> str:
    (first, (held, size)), *others = methods.items()
    whole = sum(held.values())
    told = []
    for name, (mine, file) in others:
        share = sum(mine.values()) / whole
        told.append(f"{name} trains in {percent(share)} and stores in {percent(file / size)}")
    least = [name for name, (mine, _) in others if sum(mine.values()) < whole]
    return (
        f"Of {first}'s {style.bytes_text(whole)} in training and {style.bytes_text(size)} in a "
        f"file: {'; '.join(told)}; smaller while training: {', '.join(least) or 'none'}."
    )
