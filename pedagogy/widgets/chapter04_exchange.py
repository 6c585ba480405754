"""Explorer of chapter 04: an all_to_all between nodes, flat against two levels.

Counts and seconds come from `pedagogy.costs.moe_messages`: balanced traffic, one message after
another, alpha seconds for each and its bytes over the link's speed. The default links are round
numbers of the order of a fast link inside a node and a network between nodes; nothing is measured.

Source: Rajbhandari et al. 2022 (DeepSpeed-MoE), section 5, for the two levels.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.costs.moe_messages import (
    Link,
    exchange_seconds,
    flat_bytes,
    flat_messages,
    two_level_bytes,
    two_level_messages,
    two_levels_pay_below,
)
from pedagogy.plots import style
from pedagogy.plots.curves import draw_curves, name_curves, plain_log
from pedagogy.plots.legend import draw_legend
from pedagogy.plots.stacked import draw_stacked, stacked_legend
from pedagogy.widgets.controls import choice
from pedagogy.widgets.explorer import Explorer, Try

WAYS = {"flat": (flat_messages, flat_bytes), "two levels": (two_level_messages, two_level_bytes)}
BYTES = [10**i for i in range(3, 11)]  # 1 kB to 10 GB
SIZES = [10 ** (3 + i / 4) for i in range(29)]  # the same, in smaller steps
ALPHAS = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3]
SPEEDS = [1e9, 1e10, 2.5e10, 5e10, 1e11, 2e11, 4e11]
HEIGHT = 4.95
DEFAULT = {
    "nodes": 8,
    "per_node": 8,
    "num_bytes": 10**6,
    "alpha_inside": 2e-6,
    "speed_inside": 2e11,
    "alpha_between": 1e-5,
    "speed_between": 2.5e10,
}
TRIES = (
    Try(
        "small messages",
        "10 kB a rank: 56 messages between nodes cost 560 us, 7 cost 70 us",
        {**DEFAULT, "num_bytes": 10**4},
    ),
    Try(
        "large messages",
        "1 GB a rank: the same bytes cross, and more move inside: flat wins",
        {**DEFAULT, "num_bytes": 10**9},
    ),
    Try(
        "64 nodes",
        "eight times the nodes: two levels win up to eight times the bytes",
        {**DEFAULT, "nodes": 64},
    ),
)


def exchange_bars(
    nodes: int, per_node: int, num_bytes: float, inside: Link, between: Link
) -> dict[str, dict[str, dict[str, float]]]:
    """Quantity -> way -> what one rank sends, or waits for, inside its node and between nodes."""
    ranks = nodes * per_node
    bars: dict[str, dict] = {"messages": {}, "bytes": {}, "seconds": {}}
    for way, (count, size) in WAYS.items():
        messages, sent = count(ranks, per_node), size(num_bytes, ranks, per_node)
        seconds = [  # as if nothing went over the other link
            exchange_seconds(messages._replace(**off), sent._replace(**off), inside, between)
            for off in ({"between": 0}, {"inside": 0})
        ]
        for name, pair in zip(bars, (messages, sent, seconds), strict=True):
            bars[name][way] = dict(zip(("inside a node", "between nodes"), pair, strict=True))
    return bars


def render_exchange(
    nodes: int,
    per_node: int,
    num_bytes: float,
    alpha_inside: float,
    speed_inside: float,
    alpha_between: float,
    speed_between: float,
) -> Figure:
    """Draw messages, bytes and seconds of one rank's all_to_all, and the seconds at any size."""
    links = Link(alpha_inside, speed_inside), Link(alpha_between, speed_between)
    bars = exchange_bars(nodes, per_node, num_bytes, *links)
    figure = style.new_figure(style.WIDTH, HEIGHT)
    texts = (lambda value: f"{value:.0f}", style.bytes_text, style.seconds_text)
    for i, ((name, panel), text) in enumerate(zip(bars.items(), texts, strict=True)):
        ax = style.add_axes(figure, 0.95 + 3.02 * i, 3.12, 2.75, 0.8)
        draw_stacked(ax, panel, text, end=1.5 * max(sum(bar.values()) for bar in panel.values()))
        with style.styled():
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
            ax.tick_params(labelleft=i == 0)
            ax.set_title(f"{name} of one rank", fontsize=10)
    below = two_levels_pay_below(nodes * per_node, *links)
    ax = style.add_axes(figure, 0.95, 0.6, 7.6, 2.0)
    _draw_sizes(ax, _curves(nodes, per_node, links), num_bytes, below)
    with style.styled():
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        title = f"all_to_all of {style.bytes_text(num_bytes)} a rank, {nodes} nodes of {per_node}"
        figure.text(0.012, 1 - 0.27 / HEIGHT, title, **look)
        draw_legend(figure, stacked_legend(bars["bytes"]), "upper left", (0.15, HEIGHT - 0.42))
    return style.finding(figure, _finding(bars, below))


def _curves(nodes: int, per_node: int, links: tuple[Link, Link]) -> dict[str, tuple]:
    """Way -> sizes in bytes, and the seconds of each."""
    each = [exchange_bars(nodes, per_node, size, *links)["seconds"] for size in SIZES]
    return {way: (SIZES, [sum(bars[way].values()) for bars in each]) for way in WAYS}


def _draw_sizes(ax: Axes, curves: dict, num_bytes: float, below: float) -> None:
    """Draw the seconds of both ways at any size, this one, and where they are equal."""
    with style.styled():
        for axis in (ax.xaxis, ax.yaxis):
            plain_log(axis)
        draw_curves(ax, curves)
        look = {"color": style.INK, "linewidth": 1.2, "linestyle": "--"}
        ax.axvline(num_bytes, gid="now", **look)
        note = {"xycoords": ("data", "axes fraction"), "ha": "center", "fontsize": 8.5}
        ax.annotate("this size", (num_bytes, 1.03), **note)
        end = min(below, SIZES[-1])
        if end > SIZES[0]:
            ax.axvspan(SIZES[0], end, color=style.LANE, zorder=0, gid="two levels win")
        if end > 100 * SIZES[0]:  # there is room to say so
            right = note | {"ha": "right", "color": style.MUTED}
            ax.annotate("two levels win ", (end, 0.9), **right)
        ax.set_xticks(BYTES)
        ax.xaxis.set_major_formatter(lambda value, _: style.bytes_text(value))
        low, high = (
            extreme([*curves["flat"][1], *curves["two levels"][1]]) for extreme in (min, max)
        )
        decades = [10.0**i for i in range(-6, 4) if low / 10 < 10.0**i < high * 10]
        ax.set_yticks(decades)
        ax.yaxis.set_major_formatter(lambda value, _: style.seconds_text(value))
        ax.set_ylim(low / 2, high * 2)
        ax.set_xlabel("bytes that a rank has for all ranks together")
        name_curves(ax)


def _finding(bars: dict, below: float) -> str:
    flat, levels = (sum(bars["seconds"][way].values()) for way in WAYS)
    many, few = (bars["messages"][way]["between nodes"] for way in WAYS)
    text = style.seconds_text
    verdict = "Two levels win" if levels < flat else "Flat wins" if flat < levels else "A draw"
    return (
        f"{verdict}: {text(levels)} in two levels against {text(flat)} flat, {few:.0f} messages "
        f"between nodes against {many:.0f} with the same bytes. Two levels win below "
        f"{style.bytes_text(below)} a rank."
    )


def exchange_explorer() -> Explorer:
    """Return the explorer of the all_to_all, flat and in two levels.

    Try this: make the message smaller: the seconds of the flat way stop falling, for alpha is all
    that is left. Double the nodes: the size below which two levels win doubles too. Give both links
    the same alpha and speed: two levels still win for small messages, by their number alone.
    """
    return Explorer(
        render_exchange,
        nodes=choice([2, 4, 8, 16, 32, 64], DEFAULT["nodes"]),
        per_node=choice([2, 4, 8, 16], DEFAULT["per_node"]),
        num_bytes=choice([(style.bytes_text(one), one) for one in BYTES], DEFAULT["num_bytes"]),
        alpha_inside=choice(
            [(style.seconds_text(one), one) for one in ALPHAS], DEFAULT["alpha_inside"]
        ),
        speed_inside=choice(
            [(f"{style.bytes_text(one)}/s", one) for one in SPEEDS], DEFAULT["speed_inside"]
        ),
        alpha_between=choice(
            [(style.seconds_text(one), one) for one in ALPHAS], DEFAULT["alpha_between"]
        ),
        speed_between=choice(
            [(f"{style.bytes_text(one)}/s", one) for one in SPEEDS], DEFAULT["speed_between"]
        ),
        try_this=TRIES,
    )
