"""An all_to_all between nodes, flat and in two levels: who sends to whom, and how much.

How to read it
--------------
A frame is a node, a circle a rank. A line is a message in each direction, thicker for more bytes:
full inside a node, dashed between nodes. What rank 0 sends is dark, all else pale. In two levels
the ranks of a node first exchange (all that goes to a place, whichever the node), then equal places
talk between nodes: fewer and thicker lines.

Source: Rajbhandari et al. 2022 (DeepSpeed-MoE), section 5.
"""

from __future__ import annotations

from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from pedagogy.costs.moe_messages import (
    Traffic,
    flat_bytes,
    flat_messages,
    two_level_bytes,
    two_level_messages,
)
from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.tensor import inches_axes

MOST = 16  # ranks: more lines than that are a tangle
PANEL, ROW, BELOW = 3.2, 0.62, 0.86  # inches: width of a panel, height of a rank, text below
INSIDE, BETWEEN = style.SERIES[0], style.ACCENT
PALE = "#C9CFD6"
STEPS = ("flat: one step", "two levels: first inside", "two levels: then between")


def exchange_figure(nodes: int = 2, per_node: int = 2, num_bytes: float = 4000) -> Figure:
    """Who sends to whom in an all_to_all of `num_bytes` a rank: flat, and in its two levels.

    **Raises** ValueError for fewer than 2 nodes or 2 ranks a node, or more than 16 ranks.
    """
    ranks = nodes * per_node
    if min(nodes, per_node) < 2 or ranks > MOST:
        raise ValueError(
            f"{nodes} nodes of {per_node} ranks: both must be 2 or more, and at most {MOST} ranks "
            "together can be drawn"
        )
    flat, levels = (
        flat_bytes(num_bytes, ranks, per_node),
        two_level_bytes(num_bytes, ranks, per_node),
    )
    counts, fewer = flat_messages(ranks, per_node), two_level_messages(ranks, per_node)
    steps = [
        (counts, flat),
        (fewer._replace(between=0), levels),
        (fewer._replace(inside=0), levels),
    ]
    height = BELOW + per_node * ROW + 0.75
    figure = style.new_figure(style.WIDTH, height)
    ax = inches_axes(figure)
    for panel, (title, (messages, sent)) in enumerate(zip(STEPS, steps, strict=True)):
        left = 0.15 + panel * (PANEL + 0.05)
        at = [_place(rank, nodes, per_node, left) for rank in range(ranks)]
        _draw_messages(ax, panel, at, per_node, messages, sent, num_bytes / ranks)
        _draw_ranks(ax, at, per_node)
        add_labels(ax, "titles", [title], [(left + PANEL / 2, height - 0.3)], style.INK, 10, "bold")
        for line, (text, colour) in enumerate(_told(messages, sent)):
            y = BELOW - 0.32 - 0.24 * line
            add_labels(ax, f"told {panel}", [text], [(left + PANEL / 2, y)], colour, 8.5)
    return style.finding(figure, exchange_finding(nodes, per_node, num_bytes))


def exchange_finding(nodes: int, per_node: int, num_bytes: float) -> str:
    """Messages and bytes of one rank, flat and in two levels."""
    ranks = nodes * per_node
    flat, levels = (
        flat_bytes(num_bytes, ranks, per_node),
        two_level_bytes(num_bytes, ranks, per_node),
    )
    many, few = flat_messages(ranks, per_node), two_level_messages(ranks, per_node)
    text = style.bytes_text
    return (
        f"Each of {ranks} ranks in {nodes} nodes sends {text(flat.between)} between nodes, flat in "
        f"{many.between} message{'s' * (many.between > 1)}, in two levels in {few.between}; inside "
        f"its node it sends {text(flat.inside)} flat and {text(levels.inside)} in two levels."
    )


def _place(rank: int, nodes: int, per_node: int, left: float) -> tuple[float, float]:
    """The middle of a rank in inches: nodes from left to right, places from top to bottom."""
    node, place = divmod(rank, per_node)
    width = PANEL / nodes
    return left + (node + 0.5) * width, BELOW + (per_node - place - 0.5) * ROW


def _pairs(per_node: int, ranks: int, messages: Traffic) -> list[tuple[int, int, bool]]:
    """Pairs of ranks that exchange, and whether within a node."""
    found = []
    in_two_levels = messages.between < ranks - per_node
    for one, other in combinations(range(ranks), 2):
        inside = one // per_node == other // per_node
        same_place = one % per_node == other % per_node
        if inside and messages.inside:
            found.append((one, other, True))
        if not inside and messages.between and (same_place or not in_two_levels):
            found.append((one, other, False))
    return found


def _draw_messages(
    ax: Axes, panel: int, at: list, per_node: int, messages: Traffic, sent: Traffic, piece: float
) -> None:
    """Draw a line with two heads for each pair, thicker where a message has several pieces."""
    for one, other, inside in _pairs(per_node, len(at), messages):
        size = sent.inside / messages.inside if inside else sent.between / messages.between
        colour = PALE if one else INSIDE if inside else BETWEEN
        apart = abs(one - other) if inside else abs(one - other) // per_node
        arrow = FancyArrowPatch(
            at[one],
            at[other],
            arrowstyle="<|-|>",
            mutation_scale=9,
            color=colour,
            linewidth=min(1.1 * size / piece, 5.0),
            linestyle="-" if inside else (0, (4, 1.5)),
            shrinkA=12,
            shrinkB=12,
            zorder=4 if one else 5,
            connectionstyle=f"arc3,rad={0.25 if apart > 1 else 0}",
        )
        arrow.set_gid(f"{'inside' if inside else 'between'} {panel}")
        ax.add_patch(arrow)


def _draw_ranks(ax: Axes, at: list, per_node: int) -> None:
    """Draw nodes as frames, and ranks as circles with their number."""
    frames = []
    for first in range(0, len(at), per_node):
        (x, top), (_, low) = at[first], at[first + per_node - 1]
        half, low, top = 0.3, low - 0.27, top + 0.27
        frames.append([(x - half, low), (x - half, top), (x + half, top), (x + half, low)])
    add_boxes(ax, "nodes", frames, style.LANE, zorder=1, linewidths=0)
    names = [f"node {node}" for node in range(len(frames))]
    over = [((box[0][0] + box[2][0]) / 2, box[1][1] + 0.1) for box in frames]
    add_labels(ax, "node names", names, over, style.MUTED, 7.5)
    with style.styled():
        look = {"markersize": 17, "markerfacecolor": style.FORWARD[0], "markeredgewidth": 0}
        ax.plot(*zip(*at, strict=True), "o", gid="ranks", zorder=6, **look)
    add_labels(ax, "numbers", [str(rank) for rank in range(len(at))], at, style.INK, 9.0)


def _told(messages: Traffic, sent: Traffic) -> list[tuple[str, str]]:
    """What rank 0 sends in a panel, as (line, colour): nothing said of what it does not send."""
    told = []
    for name, colour, count, num in zip(
        ("inside", "between nodes"), (INSIDE, BETWEEN), messages, sent, strict=True
    ):
        if count:
            each = f"{count} x {style.bytes_text(num / count)}"
            told.append((f"rank 0, {name}: {each} = {style.bytes_text(num)}", colour))
    return told
