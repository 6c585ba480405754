"""Explorer of chapter 04: parameters against FLOPs, with experts and without.

Everything is counted for our GPT, whatever its size: bytes as tokens, 32 of them in a sequence,
experts of 8 h^2 weights. So a preset has the layers, hidden size and experts of a published model,
and not its parameters: GShard's experts are twice as wide, Switch-C's three quarters as wide.

A rank holds its part of the experts, and all else whole; a token uses k experts of each mixture,
and all else. Ranks beyond the number of experts would hold none.

Sources: Lepikhin et al. 2020 (GShard), table 1; Fedus et al. 2021 (Switch), table 9.
"""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.costs.moe import expert_parameters, flops_per_token, moe_parameters
from pedagogy.plots import style
from pedagogy.plots.curves import plain_log
from pedagogy.widgets.controls import choice
from pedagogy.widgets.explorer import Try
from pedagogy.widgets.presets import OWN, PresetExplorer

SEQUENCE = 32  # what the chapter's models read at once
NAMES = ("dense", "all experts", "on one rank", "used by a token")
SHAPE = ("layers", "hidden", "experts", "k", "every", "ranks")
PRESETS = {
    name: dict(zip(SHAPE, values, strict=True))
    for name, *values in (
        ("our small GPT", 2, 32, 8, 1, 2, 4),
        ("shape of GShard 2048E 36L", 36, 1024, 2048, 2, 2, 2048),
        ("shape of Switch-C", 30, 2080, 2048, 1, 1, 2048),
    )
}
HIDDEN = [32, 64, 128, 256, 512, 1024, 2080, 4096, 8192]
POWERS = [2**i for i in range(12)]  # 1 to 2048


class Cost(NamedTuple):
    """Parameters of a model, or of a part of it, and the FLOPs of a token in it."""

    parameters: int
    flops: int


def experts_costs(
    layers: int, hidden: int, experts: int, k: int, every: int, ranks: int
) -> dict[str, Cost]:
    """Return the costs of the dense model, and of the mixture: all of it, a rank's, a token's.

    FLOPs are forward and backward. **Raises** ValueError where the ranks do not divide the experts.
    """
    if experts % ranks:
        raise ValueError(f"{experts} experts on {ranks} ranks: the ranks must divide them")
    dense_flops = flops_per_token(layers, hidden, SEQUENCE)
    flops = flops_per_token(layers, hidden, SEQUENCE, num_experts=experts, k=k, every=every)
    total = moe_parameters(layers, hidden, experts, sequence=SEQUENCE, every=every)
    # one expert of each mixture, with its 5 h biases
    one = layers // every * (expert_parameters(hidden, 4 * hidden) + 5 * hidden)
    counts = (
        moe_parameters(layers, hidden, 1, sequence=SEQUENCE),
        total,
        total - (experts - experts // ranks) * one,
        total - (experts - k) * one,
    )
    each_flops = (dense_flops, flops, flops, flops)
    return {name: Cost(*cost) for name, *cost in zip(NAMES, counts, each_flops, strict=True)}


def render_experts_cost(
    layers: int, hidden: int, experts: int, k: int, every: int, ranks: int, preset: str = OWN
) -> Figure:
    """Draw parameters against FLOPs of a token: the mixture leaves the line of dense models."""
    used = min(ranks, experts)
    costs = experts_costs(layers, hidden, experts, k, every, used)
    figure = style.new_figure(style.WIDTH, 4.4)
    ax = style.add_axes(figure, 0.95, 0.65, 4.6, 3.1)
    _draw_models(ax, costs, layers, experts, k, every, hidden)
    name = "Our GPT" if preset == OWN else preset[0].upper() + preset[1:]
    where = "each layer" if every == 1 else "each 2nd layer"
    title = f"{name}: {layers} layers of {hidden}, {experts} experts in {where}"
    with style.styled():
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.27 / 4.4, title, **look)
    _write_table(figure, costs)
    return style.finding(figure, _finding(costs, experts, ranks, used))


def _draw_models(
    ax: Axes, costs: dict[str, Cost], layers: int, experts: int, k: int, every: int, hidden: int
) -> None:
    """Draw the line of dense models, the way up to so many experts, and the four points."""
    sizes = [max(1, round(hidden / 32 * 2**i)) for i in range(11)]
    dense = [
        (flops_per_token(layers, h, SEQUENCE), moe_parameters(layers, h, 1, sequence=SEQUENCE))
        for h in sizes
    ]
    way = [costs["dense"][::-1]]
    for number in (n for n in POWERS if k <= n <= experts and n > 1):
        flops = flops_per_token(layers, hidden, SEQUENCE, num_experts=number, k=k, every=every)
        whole = moe_parameters(layers, hidden, number, sequence=SEQUENCE, every=every)
        way.append((flops, whole))
    middle, (low, high) = costs["dense"].flops, _ends(costs)
    with style.styled():
        for axis in (ax.xaxis, ax.yaxis):
            plain_log(axis)
        ax.plot(*zip(*dense, strict=True), color=style.MUTED, linestyle="--", gid="dense models")
        ax.plot(*zip(*way, strict=True), color=style.ACCENT, linestyle=":", gid="more experts")
        for place, (name, cost) in enumerate(costs.items()):
            look = {"color": style.SERIES[place], "marker": style.MARKERS[place], "markersize": 9}
            ax.plot(cost.flops, cost.parameters, gid=name, zorder=9 - place, **look)
        ax.set_xlim(middle / 20, middle * 20)
        ax.set_ylim(low / 3, high * 3)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _: short(value))
        ax.grid(True)
        ax.set_xlabel("FLOPs of a token, forward and backward")
        ax.set_ylabel("parameters")


def _ends(costs: dict[str, Cost]) -> tuple[int, int]:
    return min(cost.parameters for cost in costs.values()), costs["all experts"].parameters


def _write_table(figure: Figure, costs: dict[str, Cost]) -> None:
    """Write the numbers of the points, behind their marks, and what the lines are."""
    ax = style.add_axes(figure, 5.9, 0.65, 3.95, 3.1)
    columns = (0.09, 0.66, 1.0)
    with style.styled():
        ax.set_xlim(0, 1)
        ax.set_ylim(6.5, -0.5)
        ax.set_axis_off()
        for x, head in zip(columns[1:], ("parameters", "FLOPs"), strict=True):
            ax.text(x, 0, head, ha="right", va="center", color=style.MUTED, fontsize=9)
        for row, (name, cost) in enumerate(costs.items(), start=1):
            look = {"color": style.SERIES[row - 1], "marker": style.MARKERS[row - 1]}
            ax.plot(0.03, row, markersize=8, **look)
            ax.text(columns[0], row, name, va="center", gid="name")
            for x, value in zip(columns[1:], cost, strict=True):
                ax.text(x, row, short(value), ha="right", va="center", gid=name)
        lines = (
            ("--", style.MUTED, "dense models of other sizes"),
            (":", style.ACCENT, "more experts"),
        )
        for row, (dash, colour, text) in enumerate(lines, start=5):
            ax.plot([0, 0.06], [row, row], color=colour, linestyle=dash)
            ax.text(columns[0], row, text, va="center", color=style.MUTED, fontsize=9)


def _finding(costs: dict[str, Cost], experts: int, ranks: int, used: int) -> str:
    dense, whole, rank, token = costs.values()
    told = f"each of {used} ranks" if used > 1 else "the one rank"
    part = token.parameters / whole.parameters
    share = f"{part:.0%}" if part > 0.1 else f"{100 * part:.2g}%"
    less = f" Of {ranks} ranks {ranks - used} would hold no expert." if used < ranks else ""
    return (
        f"With {experts} experts {whole.parameters / dense.parameters:,.1f} times the parameters "
        f"of the dense model, at {whole.flops / dense.flops:.2f} times its FLOPs a token: a token "
        f"uses {share} of them, and {told} holds "
        f"{short(rank.parameters)}.{less}"
    )


def short(value: float) -> str:
    """A number in thousands (k), millions (M), billions (B, 10^9) or trillions (T)."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return (
                f"{value / size:.3g} {unit}"
                if value < 999.5 * size
                else f"{value / size:.0f} {unit}"
            )
    return f"{value:.0f}"


def experts_cost_explorer() -> PresetExplorer:
    """Return the explorer of what experts cost in parameters, and do not cost in FLOPs.

    Try this: double the experts of our small GPT a few times: the square climbs, and moves to the
    right only by the router. Set k to 2: twice the experts of each token, and FLOPs that say so.
    Take GShard's shape and lower the ranks: what one of them holds grows to all of it.
    """
    small, gshard, switch = PRESETS
    return PresetExplorer(
        render_experts_cost,
        presets=PRESETS,
        layers=(2, 64, 2),
        hidden=choice(HIDDEN, 32),
        experts=choice(POWERS[1:], 8),
        k=[1, 2],
        every=[("2nd layer", 2), ("layer", 1)],
        ranks=choice(POWERS, 4),
        try_this=(
            Try(
                "64 experts",
                "8 times the experts, and FLOPs that grow by the router's alone: 5 % more",
                {**PRESETS[small], "experts": 64},
            ),
            Try(
                "GShard's shape",
                "of 2048 experts a token uses 2 in each mixture; 2048 ranks hold one of each",
                {"preset": gshard},
            ),
            Try(
                "on 8 ranks",
                "Switch-C's shape, 256 experts of each layer on a rank: 267 B parameters, over "
                "1 TB in 32 bit (the paper's, with narrower experts: 196 B)",
                {**PRESETS[switch], "ranks": 8},
            ),
        ),
    )
