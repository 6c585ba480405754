"""Explorer of chapter 03: what one rank keeps for backward, by term, under each technique.

All bytes come from `pedagogy.costs.activations`: the paper's layer, 16 bit, with dropout, without
FlashAttention. What was measured is of our GPT, in fp32 and without dropout, so it stands in a
panel of its own, beside what the closed form of our layer predicts.

Source: Korthikanti et al. 2022, table 2; the presets are those of its table 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, update_wrapper

from matplotlib.figure import Figure

from pedagogy.costs.activations import activation_terms_per_layer
from pedagogy.plots import style
from pedagogy.plots.labels import add_labels, width_points
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.legend import draw_legend
from pedagogy.plots.stacked import draw_stacked, stacked_legend
from pedagogy.widgets.controls import choice, menu
from pedagogy.widgets.explorer import Explorer, Try
from pedagogy.widgets.presets import OWN, PresetExplorer

Measured = Mapping[str, Mapping[str, float]]
CARD_BYTES = 80e9
ONE, TP, SP = "one rank", "TP", "TP + SP"
SELECTIVE, FULL = "TP + SP, selective", "full recomputation"
TECHNIQUES = {  # name -> (is cut over t ranks, sequence parallel, recompute)
    ONE: (False, False, "none"),
    TP: (True, False, "none"),
    SP: (True, True, "none"),
    SELECTIVE: (True, True, "selective"),
    FULL: (True, True, "full"),
}
TERMS = {
    "norm inputs": ("norm_inputs",),
    "inputs of attention and MLP": ("attention_input", "feed_forward_input"),
    "dropout masks": ("attention_dropout_mask", "feed_forward_dropout_mask"),
    "query, key, value, heads": ("queries_and_keys", "values", "projection_input"),
    "MLP around GELU": ("before_gelu", "after_gelu"),
    "attention scores": ("softmax_output", "softmax_dropout_mask", "softmax_dropout_output"),
    "layer input alone": ("layer_input",),
}
PRESETS = {
    name: {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "sequence": 2048,
        "batch": batch,
        "tensor_parallel": 8,
    }
    for name, layers, hidden, heads, batch in (
        ("175B", 96, 12288, 96, 1),
        ("22B", 48, 6144, 64, 4),
        ("530B", 105, 20480, 128, 1),
        ("1T", 128, 25600, 160, 1),
    )
}
HIDDEN = [1024, 2048, 4096, 6144, 8192, 12288, 16384, 20480, 25600]
HEADS = [16, 32, 64, 96, 128, 160]
SEQUENCE = [512, 1024, 2048, 4096, 8192, 16384, 32768]


def activation_bars(
    layers: int, hidden: int, heads: int, sequence: int, batch: int, tensor_parallel: int
) -> dict[str, dict[str, int]]:
    """Return the bytes that a rank keeps of `layers` layers, by technique and term."""
    bars = {}
    for technique, (is_cut, sequence_parallel, recompute) in TECHNIQUES.items():
        terms = activation_terms_per_layer(
            sequence,
            batch,
            hidden,
            heads,
            tensor_parallel if is_cut else 1,
            sequence_parallel and tensor_parallel > 1,
            recompute,
        )
        bars[technique] = {
            name: layers * sum(terms.get(part, 0) for part in parts)
            for name, parts in TERMS.items()
        }
    return bars


def both_units(num_bytes: float) -> str:
    """Return a size in GB (10^9 bytes) and in GiB (2^30)."""
    return f"{num_bytes / 1e9:.4g} GB = {num_bytes / 2**30:.4g} GiB"


def _finding(bars: dict, technique: str, tensor_parallel: int) -> str:
    total = sum(bars[technique].values())
    largest = max(bars[technique], key=bars[technique].__getitem__)
    fits = "fits" if total <= CARD_BYTES else "does not fit"
    first = sum(bars[ONE].values()) / total
    where = "" if technique == ONE else f" on each of {tensor_parallel} ranks"
    less = "" if technique == ONE else f", {first:.3g} times less than one rank alone would keep"
    return (
        f"{technique[0].upper()}{technique[1:]}: {both_units(total)}{where}{less}; it {fits} on a "
        f"card of 80 GB, weights not counted. The largest term: {largest}, "
        f"{bars[technique][largest] / total:.0%}."
    )


def render_activation_memory(
    technique: str,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    tensor_parallel: int,
    preset: str = OWN,
    measured: Measured | None = None,
) -> Figure:
    """Draw the activations that one rank keeps, stacked by term, for each technique.

    measured: name -> {"predicted": bytes, "measured": bytes} of our GPT, for a panel below.
    """
    bars = activation_bars(layers, hidden, heads, sequence, batch, tensor_parallel)
    below = 0.6 + 0.42 * len(measured) if measured else 0.0
    entries = stacked_legend(bars)
    height = 3.95 + below
    figure = style.new_figure(style.WIDTH, height)
    ax = style.add_axes(figure, 1.65, below + 0.6, style.WIDTH - 1.85, 2.3)
    total = sum(bars[technique].values())
    end = 1.3 * max(CARD_BYTES, total)
    draw_stacked(ax, bars, both_units, end=end, limit=CARD_BYTES, chosen=technique)
    name = "Activations" if preset == OWN else f"{preset}: activations"
    title = f"{name} of {layers} layers on one rank, t = {tensor_parallel}"
    with style.styled():
        figure.text(0.012, 1 - 0.27 / height, title, fontsize=12, fontweight="bold", gid="title")
        draw_legend(figure, entries, "upper left", (0.15, height - 0.42))
        ax.set_xlabel("16 bit, with dropout, no FlashAttention; dashed: 80 GB (GB = 10^9 bytes)")
    if measured:
        _draw_measured(figure, measured, below)
    return style.finding(figure, _finding(bars, technique, tensor_parallel))


def _draw_measured(figure: Figure, measured: Measured, below: float) -> None:
    """Draw pairs of bars with their bytes behind them; the numbers make an axis needless."""
    width = style.WIDTH - 1.85
    ax = style.add_axes(figure, 1.65, 0.1, width, below - 0.5)
    most = 1.25 * max(value for pair in measured.values() for value in pair.values())
    texts, at = [], []
    for place, (series, hatch) in enumerate((("predicted", ""), ("measured", "//"))):
        boxes = []
        for row, pair in enumerate(measured.values()):
            top, value = row - 0.38 + 0.38 * place, pair[series]
            boxes.append([(0, top), (0, top + 0.34), (value, top + 0.34), (value, top)])
            texts.append(f"{series} {style.bytes_text(value)}")
            at.append((value + 0.07 * most, top + 0.17))
        add_boxes(ax, series, boxes, style.SERIES[place], hatch)
    add_labels(ax, "values", texts, at, style.INK, 8.5)
    names = [(-(width_points(name, 8.3) / 72 / 2 + 0.07) / width) for name in measured]
    rows = [(x, row) for row, x in enumerate(names)]
    look = {"transform": ax.get_yaxis_transform()}
    add_labels(ax, "names", list(measured), rows, style.INK, 9.0, **look)
    with style.styled():
        ax.set_xlim(0, most)
        ax.set_ylim(len(measured) - 0.5, -0.5)
        ax.set_axis_off()
        ax.set_title("Our GPT on one rank: fp32, no dropout", fontsize=10)


def activation_memory_explorer(measured: Measured | None = None) -> Explorer:
    """Return the explorer of activation memory.

    measured: name of a technique -> {"predicted": bytes, "measured": bytes} of our GPT.
    """
    gpt3 = {"preset": "175B"}
    render = partial(render_activation_memory, measured=measured)
    return PresetExplorer(
        update_wrapper(render, render_activation_memory),
        presets=PRESETS,
        technique=menu(list(TECHNIQUES), TP),
        layers=(1, 128, 96),
        hidden=choice(HIDDEN, 12288),
        heads=choice(HEADS, 96),
        sequence=choice(SEQUENCE, 2048),
        batch=(1, 16, 1),
        tensor_parallel=choice([1, 2, 4, 8], 8),
        try_this=(
            Try(
                "what TP leaves whole",
                "10 of the 34 s b h stay on every rank: 51.75 GiB, where a cut of everything would "
                "leave 32.06",
                {**gpt3, "technique": TP},
            ),
            Try(
                "no scores kept",
                "selective recomputation takes the scores, 70 % of what is left: 9.562 GiB",
                {**gpt3, "technique": SELECTIVE},
            ),
            Try(
                "four times the sequence",
                "the scores grow 16-fold, all else 4-fold: with everything cut, it does not fit",
                {**gpt3, "technique": SP, "sequence": 8192},
            ),
        ),
    )
