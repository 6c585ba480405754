"""Bytes of a compressed network: in a file, by section, and in training, by kind.

The two are set side by side on purpose: what makes a file small seldom makes training smaller.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.labels import width_points
from pedagogy.plots.legend import draw_legend, legend_inches
from pedagogy.plots.memory import byte_axis, draw_memory_bars, memory_patch
from pedagogy.plots.precision import percent
from pedagogy.plots.stacked import draw_stacked, stacked_legend
from pedagogy.plots.strips import in_order

ROW = 0.4
SAME = 1.005  # up to here training holds "no more" than without


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

    The first method is what the others are compared with.
    """
    rows, height = ROW * len(methods), ROW * len(methods) + 1.35
    figure = style.new_figure(style.WIDTH, height)
    left = 0.3 + max(width_points(name, 8.6) for name in methods) / 72
    wide = 0.6 * (style.WIDTH - left - 0.9)
    training = style.add_axes(figure, left, 0.5, wide, rows)
    file = style.add_axes(figure, left + wide + 0.3, 0.5, style.WIDTH - left - wide - 0.5, rows)
    draw_memory_bars(training, {name: held for name, (held, _) in methods.items()})
    with style.styled():
        sizes = [size for _, size in methods.values()]
        look = {"height": 0.62, "color": style.MUTED, "gid": "file"}
        file.barh(range(len(sizes)), sizes, **look)
        for row, size in enumerate(sizes):
            text = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
            file.annotate(style.bytes_text(size), (size, row), gid="size", **text)
        file.set(ylim=training.get_ylim(), xlim=(0, max(sizes) * 1.3), yticks=[])
        training.set_xlim(0, training.get_xlim()[1] * 1.06)
        byte_axis(file.xaxis)
        file.xaxis.get_major_locator().set_params(nbins=4)
        file.spines["left"].set_visible(False)
        file.grid(axis="x")
        training.set_xlabel("while training, at the peak")
        file.set_xlabel("of the file")
        kinds = in_order({kind for held, _ in methods.values() for kind in held})
        entries = [(patch, patch.get_label()) for patch in map(memory_patch, kinds)]
        draw_legend(figure, entries, "upper left", (0.15, height - 0.44))
        head = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.28 / height, title, **head)
    return style.finding(figure, _finding(methods))


def _finding(methods: Mapping[str, tuple[Mapping[str, float], float]]) -> str:
    (first, (held, size)), *others = methods.items()
    whole = sum(held.values())
    told = []
    for name, (mine, file) in others:
        share = sum(mine.values()) / whole
        told.append(f"{name} trains in {percent(share)} and stores in {percent(file / size)}")
    least = [name for name, (mine, _) in others if sum(mine.values()) * SAME < whole]
    return (
        f"Of {first}'s {style.bytes_text(whole)} in training and {style.bytes_text(size)} in a "
        f"file: {'; '.join(told)}. Smaller while training: {', '.join(least) or 'none'}."
    )
