"""Shard maps: who holds which piece, before and after.

One row per rank, one column per chunk of the tensor. A cell has a slot for every rank, from left
to right: a filled slot says that this rank's contribution is in the chunk. So an all-reduce turns
rows that have one slot filled in each cell into rows that have all of them, and a reduce-scatter
leaves one full cell in each row. Position says what the colour repeats; a complete cell has a
dark frame besides.

Source of the form: the figures of collectives in the documentation of NCCL and of MPI, which show
the pieces before and after; slots are added here, so that a half-made sum can be seen as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes

State = Sequence[Sequence[Collection[int]]]
CELL = (0.88, 0.66)  # of the distance between two cells
EMPTY = "#F4F5F7"


class ShardMap(NamedTuple):
    """Who holds what at one moment.

    state: state[rank][chunk] is the set of ranks whose contributions the cell holds.
    moves: (sender, receiver, chunk, phase[, column in which it lands]), drawn as arrows.
    changed: cells (rank, chunk) to frame, e.g. those just received.
    contributions: how many ranks can be in a cell (default: as many as there are rows).
    texts: texts[rank][chunk] is written into the cell (default: the ranks in it).
    """

    state: State
    title: str = ""
    moves: Sequence[Any] = ()
    changed: Collection[tuple[int, int]] = ()
    columns: str = "chunk"
    contributions: int | None = None
    texts: Sequence[Sequence[str]] | None = None


def cell_text(held: Collection[int], contributions: int, most: int = 3) -> str:
    """Return what is written into a cell: the ranks in it, or how many if they are over `most`."""
    if not held:
        return ""
    if len(held) == contributions > 1:
        return "all"
    if len(held) <= most:
        return "+".join(str(rank) for rank in sorted(held))
    return f"{len(held)} of {contributions}"


def _rectangle(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    return [(x, y), (x, y + height), (x + width, y + height), (x + width, y)]


def _cell_corner(rank: int, chunk: int) -> tuple[float, float]:
    return chunk - CELL[0] / 2, rank - CELL[1] / 2


def _draw_slots(ax: Axes, state: State, contributions: int) -> None:
    boxes, colours = [], []
    width = CELL[0] / contributions
    for rank, row in enumerate(state):
        for chunk, held in enumerate(row):
            x, y = _cell_corner(rank, chunk)
            for source in sorted(held):
                boxes.append(_rectangle(x + source * width, y, width, CELL[1]))
                colours.append(style.FORWARD[source % len(style.FORWARD)])
    add_boxes(ax, "slots", boxes, colours, linewidths=0)


def _frame(ax: Axes, gid: str, cells: Collection[tuple[int, int]], colour: str, width: float):
    boxes = [_rectangle(*_cell_corner(rank, chunk), *CELL) for rank, chunk in sorted(cells)]
    add_boxes(ax, gid, boxes, "none", edgecolors=colour, linewidths=width, zorder=4)


def landing(move: Sequence[Any]) -> int:
    """Return the column in which a move lands: its fifth entry, or the one that it left."""
    return move[4] if len(move) > 4 else move[2]


def draw_moves(ax: Axes, moves: Sequence[Any], ranks: int, chunks: int) -> None:
    """Draw an arrow from the sender's cell to the receiver's, for each move."""
    for move in moves:
        sender, receiver, chunk = move[:3]
        down = 1 if receiver > sender else -1
        side = 0.3 * down
        if chunks == 1:  # one wide column: each sender has a place of its own
            side = CELL[0] * ((sender + 0.5) / ranks - 0.5)
        arrow = FancyArrowPatch(
            (chunk + side, sender + 0.14 * down),
            (landing(move) + side, receiver - 0.2 * down),
            arrowstyle="-|>",
            mutation_scale=11,
            color=style.ACCENT,
            linewidth=1.5,
            zorder=8,
            shrinkA=0,
            shrinkB=0,
            connectionstyle=f"arc3,rad={-0.12 if abs(receiver - sender) > 1 else 0}",
        )
        arrow.set_gid("move")
        ax.add_patch(arrow)


def draw_shard_map(ax: Axes, shard_map: ShardMap) -> None:
    """Draw who holds what, with arrows for what moves and frames around what has changed."""
    state = shard_map.state
    ranks, chunks = len(state), len(state[0])
    contributions = shard_map.contributions or ranks
    cells = [(rank, chunk) for rank in range(ranks) for chunk in range(chunks)]
    full = {cell for cell in cells if len(state[cell[0]][cell[1]]) == contributions > 1}
    with style.styled():
        corners = [_rectangle(*_cell_corner(*cell), *CELL) for cell in cells]
        add_boxes(ax, "cells", corners, EMPTY, edgecolors=style.GRID, linewidths=0.8, zorder=2)
        _draw_slots(ax, state, contributions)
        _frame(ax, "full", full, style.INK, 1.4)
        _frame(ax, "changed", set(shard_map.changed), style.ACCENT, 2.2)
        most = 3 if chunks <= 4 else 2
        texts = shard_map.texts or [[cell_text(c, contributions, most) for c in r] for r in state]
        held = {(c, r): texts[r][c] for r, c in cells}
        held = {at: text for at, text in held.items() if text}
        size = 9.0 if chunks <= 4 else 7.5 if chunks <= 6 else 6.0
        add_labels(ax, "held", list(held.values()), list(held), style.INK, size)
        draw_moves(ax, shard_map.moves, ranks, chunks)
        _name_rows_and_columns(ax, ranks, chunks, shard_map.columns)
        ax.set_title(shard_map.title, pad=20)


def _name_rows_and_columns(ax: Axes, ranks: int, chunks: int, columns: str) -> None:
    ax.set_xlim(-0.55, chunks - 0.45)
    ax.set_ylim(ranks - 0.5, -0.5)
    ax.set_axis_off()
    names = [f"{columns} {chunk}" if chunks <= 4 else str(chunk) for chunk in range(chunks)]
    inches = ax.bbox.size / ax.get_figure().dpi
    above = [(chunk, 1 + 0.1 / inches[1]) for chunk in range(chunks)]
    names = [columns] if chunks == 1 else names
    add_labels(ax, "columns", names, above, style.INK, transform=ax.get_xaxis_transform())
    beside = [(-0.28 / inches[0], rank) for rank in range(ranks)]
    names = [f"rank {rank}" for rank in range(ranks)]
    add_labels(ax, "rows", names, beside, style.INK, transform=ax.get_yaxis_transform())


def draw_sent(ax: Axes, sent: Sequence[float], limit: float | None, most: float) -> None:
    """Draw what each rank has sent, row by row beside a shard map; `limit` is what it will be."""
    with style.styled():
        rows = [_rectangle(0, rank - 0.17, amount, 0.34) for rank, amount in enumerate(sent)]
        add_boxes(ax, "sent", rows, style.SERIES[0], linewidths=0)
        ax.set_xlim(0, most * 1.45)
        ax.set_ylim(len(sent) - 0.5, -0.5)
        ax.set_axis_off()
        at = [(most * 1.25, rank) for rank in range(len(sent))]  # a column beyond the limit
        add_labels(ax, "amounts", [f"{amount:.3g}" for amount in sent], at, style.INK)
        ax.axvline(0, color=style.MUTED, linewidth=1.0)
        if limit is not None:
            look = {"color": style.ACCENT, "linewidth": 1.3, "linestyle": (0, (4, 2)), "zorder": 2}
            ax.axvline(limit, gid="limit", **look)


def shards_figure(
    maps: Sequence[ShardMap],
    finding: str,
    *,
    sent: Sequence[float] | None = None,
    limit: float | None = None,
    sent_title: str = "sent so far\n(tensors)",
    height: float | None = None,
) -> Figure:
    """Return one shard map, or several side by side, and what each rank has sent.

    sent: for each rank, e.g. in tensors; limit: a dashed line there.
    height: fixes the height in inches, for an explorer; rows keep their distance.
    """
    rows = max(len(one.state) for one in maps)
    row = min(0.62 if height is None else 0.85, ((height or 99.0) - 1.0) / rows)
    figure = style.new_figure(style.WIDTH, height or row * rows + 1.0)
    top = figure.get_size_inches()[1] - 0.75
    right = 1.9 if sent is not None else 0.2
    width = (style.WIDTH - right) / len(maps) - 0.75
    for place, one in enumerate(maps):
        room = row * len(one.state)
        ax = style.add_axes(figure, 0.7 + place * (width + 0.75), top - room, width, room)
        draw_shard_map(ax, one)
    if sent is not None:
        ax = style.add_axes(figure, style.WIDTH - 1.65, top - row * len(sent), 1.5, row * len(sent))
        draw_sent(ax, sent, limit, max([*sent, limit or 0.0, 1.0]))
        with style.styled():
            ax.set_title(sent_title, pad=9, fontsize=9.5, fontweight="normal", color=style.MUTED)
    return style.finding(figure, finding)
