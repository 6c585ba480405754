"""Explorer of chapter 10: the bytes that training a GPT holds, by optimizer and precision.

Closed forms over the shapes of its parameters. Activations are left out: they depend on batch and
sequence, and on no optimizer. "Mixed" keeps 16-bit weights and gradients, and an fp32 master copy
that counts as optimizer state whichever optimizer there is.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from pedagogy.costs.optimizers import (
    OPTIMIZERS,
    PRESETS,
    gpt_shapes,
    num_parameters,
    training_bytes,
)
from pedagogy.plots import style
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.legend import draw_legend
from pedagogy.plots.memory import draw_memory_bars, memory_patch
from pedagogy.plots.precision import percent
from pedagogy.widgets.controls import choice, menu
from pedagogy.widgets.explorer import Explorer, Try
from pedagogy.widgets.presets import PresetExplorer

LAYERS = [2, 4, 8, 12, 24, 36, 48]
HIDDEN = [64, 256, 512, 768, 1024, 1280, 1600, 4096]
VOCABULARIES = [256, 50257, 51200]
SEQUENCES = [64, 1024, 2048]
DEVICES = [8, 16, 24, 40, 80, 141]  # GB
ROW, LEFT = 0.46, 1.7


def held(
    layers: int, hidden: int, vocabulary: int, sequence: int, precision: str
) -> dict[str, dict[str, int]]:
    """Bytes by kind with each optimizer."""
    shapes = gpt_shapes(layers, hidden, vocabulary, sequence)
    return {name: training_bytes(name, shapes, precision) for name in OPTIMIZERS}


def render_state_bytes(
    preset: str,
    layers: int,
    hidden: int,
    vocabulary: int,
    sequence: int,
    optimizer: str,
    precision: str,
    device_gb: int,
) -> Figure:
    """Draw what each optimizer holds, the chosen one framed, against the memory of a device."""
    bars = held(layers, hidden, vocabulary, sequence, precision)
    parameters = num_parameters(gpt_shapes(layers, hidden, vocabulary, sequence))
    limit = device_gb * 10**9
    height = ROW * len(bars) + 1.35
    figure = style.new_figure(style.WIDTH, height)
    ax = style.add_axes(figure, LEFT, 0.45, style.WIDTH - LEFT - 0.25, ROW * len(bars))
    draw_memory_bars(ax, bars)
    totals = {name: sum(bar.values()) for name, bar in bars.items()}
    with style.styled():
        _frame(ax, list(bars).index(optimizer), totals[optimizer])
        if limit < ax.get_xlim()[1]:
            look = {"color": style.ACCENT, "linestyle": "--", "linewidth": 1.4, "zorder": 4}
            ax.axvline(limit, gid="limit", **look)
            for total in ax.texts:  # legible where the line crosses one
                total.set(zorder=5, path_effects=[withStroke(linewidth=3, foreground=style.PAPER)])
        what = f"{_billions(parameters)} parameters, {precision}, without activations"
        title = f"A GPT of {what}; a device of {device_gb} GB"
        figure.text(0.012, 1 - 0.3 / height, title, fontsize=12, fontweight="bold", gid="title")
        patches = map(memory_patch, ("parameters", "gradients", "optimizer_state"))
        entries = [(patch, patch.get_label()) for patch in patches]
        draw_legend(figure, entries, "upper left", (0.15, height - 0.45))
    fits = ", ".join(name for name, total in totals.items() if total <= limit) or "none"
    state, whole = bars[optimizer]["optimizer_state"], totals[optimizer]
    adam = "" if optimizer == "Adam" else f" (Adam: {style.bytes_text(totals['Adam'])})"
    return style.finding(
        figure,
        f"With {optimizer} this GPT holds {style.bytes_text(whole)}{adam}, "
        f"{whole / parameters:.2f} bytes a parameter, of which {percent(state / whole)} are "
        f"optimizer state; in {device_gb} GB fit: {fits}.",
    )


def _frame(ax: Axes, row: int, end: float) -> None:
    """Frame a row's bar."""
    frame = [(0, row - 0.38), (0, row + 0.38), (end, row + 0.38), (end, row - 0.38)]
    add_boxes(ax, "chosen", [frame], "none", edgecolors=style.ACCENT, linewidths=2.2)


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e9 else f"{parameters / 1e6:.3g} M"


def state_bytes_explorer() -> Explorer:
    """Return the explorer of what optimizers keep.

    Try this: half of Adam's bytes are state; factored, what remains is weights and gradients; in
    mixed precision the master copy is back.
    """
    presets = {name: sizes._asdict() for name, sizes in PRESETS.items()}
    presets = {"GPT-2 XL": presets.pop("GPT-2 XL"), **presets}
    plain = {"preset": "GPT-2 XL", "precision": "fp32", "device_gb": 16}
    first = presets["GPT-2 XL"]
    return PresetExplorer(
        render_state_bytes,
        presets=presets,
        layers=choice(LAYERS, first["layers"]),
        hidden=choice(HIDDEN, first["hidden"]),
        vocabulary=choice(VOCABULARIES, first["vocabulary"]),
        sequence=choice(SEQUENCES, first["sequence"]),
        optimizer=menu(OPTIMIZERS, "Adafactor"),
        precision=["fp32", "mixed"],
        device_gb=choice(DEVICES, 16),
        try_this=(
            Try(
                "what Adam costs",
                "16 bytes a parameter, half of them state: four times the weights",
                {**plain, "optimizer": "Adam"},
            ),
            Try(
                "factored",
                "Adafactor: 8 bytes a parameter are left, weights and gradients, and no optimizer "
                "makes those smaller",
                {**plain, "optimizer": "Adafactor"},
            ),
            Try(
                "mixed precision",
                "Adafactor with 16-bit weights: 8 bytes a parameter again, as the fp32 master copy "
                "is half of them",
                {**plain, "optimizer": "Adafactor", "precision": "mixed"},
            ),
        ),
    )
