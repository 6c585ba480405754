"""Matrices that are cut over ranks: who holds which rows and columns, and what is exchanged.

How to read it
--------------
A rectangle is a whole matrix. Cut by columns or by rows, it has a band for each rank, in the rank's
colour and with its number. Grey is whole on every rank. A cascade of sheets is a sum that nobody
has made yet: each rank holds a part, of full size. A weight has a dark frame; what does not exist
yet is an outline. Forward is light and backward dark, as in every picture of the book.

Everything is drawn in inches on one axes, as a handful of artists, so that it is drawn in time for
an explorer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.pipeline import Block
from pedagogy.plots.timeline import Panel, timeline_figure

WHOLE, ROWS, COLUMNS, PARTS = "whole on each", "cut by rows", "cut by columns", "parts of a sum"
CUTS = (WHOLE, ROWS, COLUMNS, PARTS)
SHIFT = (0.045, 0.1)  # inches from sheet to sheet of a cascade, for a few ranks
GREY = {"forward": "#D5DAE0", "backward": "#5B6470"}
Box = list[tuple[float, float]]


class Matrix(NamedTuple):
    """A matrix to draw: its corners in inches, and how it lies on the ranks.

    left, bottom, width, height in inches. cut: one of `CUTS`. look: "forward", "backward", or
    "later" for an outline alone. frame: "", "weight", "read" or "made". name above, notes below.
    """

    left: float
    bottom: float
    width: float
    height: float
    cut: str
    look: str = "forward"
    frame: str = ""
    name: str = ""
    notes: Sequence[str] = ()

    def bands(self, ranks: int) -> list[Box]:
        """Return the rectangle of each rank's piece, rank 0 first (at the left, or at the top)."""
        x, y, width, height = self[:4]
        if self.cut == WHOLE:
            return [_box(x, y, width, height)]
        if self.cut == COLUMNS:
            part = width / ranks
            return [_box(x + rank * part, y, part, height) for rank in range(ranks)]
        if self.cut == ROWS:
            part = height / ranks
            tops = [y + height - (rank + 1) * part for rank in range(ranks)]
            return [_box(x, top, width, part) for top in tops]
        across, down = (min(shift, 0.6 / max(ranks - 1, 1)) for shift in SHIFT)
        across = min(across, 0.5 * width / ranks)
        sheet = (width - (ranks - 1) * across, height - (ranks - 1) * down)
        return [
            _box(x + rank * across, y + (ranks - 1 - rank) * down, *sheet) for rank in range(ranks)
        ]

    def marks(self, ranks: int) -> list[tuple[str, tuple[float, float]]]:
        """Return what is written into the pieces, and where: the number of the rank."""
        boxes = self.bands(ranks)
        if self.cut == WHOLE:
            return [("all", _middle(boxes[0]))]
        middles = [_middle(box) for box in boxes]
        if self.cut == PARTS:  # of all sheets but the last, the upper edge is seen
            middles = [(box[1][0] + 0.09, box[1][1] - 0.05) for box in boxes]
        return [(str(rank), middle) for rank, middle in enumerate(middles)]


def _box(x: float, y: float, width: float, height: float) -> Box:
    return [(x, y), (x, y + height), (x + width, y + height), (x + width, y)]


def _middle(box: Box) -> tuple[float, float]:
    return (box[0][0] + box[2][0]) / 2, (box[0][1] + box[2][1]) / 2


def inches_axes(figure: Figure) -> Axes:
    """Return axes over the whole figure whose units are inches from the lower left corner."""
    width, height = figure.get_size_inches()
    ax = style.add_axes(figure, 0, 0, width, height)
    ax.set_xlim(0, width)
    ax.set_ylim(0, height)
    ax.set_axis_off()
    return ax


def draw_matrices(ax: Axes, matrices: Sequence[Matrix], ranks: int, size: float = 7.5) -> None:
    """Draw matrices on axes made by `inches_axes`, with names, notes and the ranks' numbers."""
    for look in ("forward", "backward"):
        drawn = [one for one in matrices if one.look == look]
        palette = style.FORWARD if look == "forward" else style.BACKWARD
        depth = max(ranks, 1)
        for level in range(depth):  # sheets of a cascade lie on each other
            pieces = [
                (box, GREY[look] if one.cut == WHOLE else palette[level % len(palette)])
                for one in drawn
                for box in one.bands(ranks)[level : level + 1]
            ]
            if pieces:
                boxes, colours = zip(*pieces, strict=True)
                add_boxes(ax, f"{look} {level}", boxes, colours, zorder=2 + level / depth)
        ink = style.INK if look == "forward" else style.PAPER
        marks = [mark for one in drawn for mark in one.marks(ranks)]
        weight = "normal" if look == "forward" else "bold"
        add_labels(ax, f"{look} ranks", *_split(marks), ink, 7.0 if ranks <= 4 else 6.2, weight)
    later = [_box(*one[:4]) for one in matrices if one.look == "later"]
    add_boxes(ax, "later", later, "none", edgecolors="#AEB6BF", linewidths=0.8, linestyles=":")
    _draw_frames(ax, matrices, ranks)
    names = [
        (one.name, (one.left + one.width / 2, one.bottom + one.height + 0.12)) for one in matrices
    ]
    add_labels(ax, "names", *_split(names), style.INK, size + 1.5, "bold")
    notes = [
        (note, (one.left + one.width / 2, one.bottom - 0.12 - 0.14 * line))
        for one in matrices
        for line, note in enumerate(one.notes)
    ]
    add_labels(ax, "notes", *_split(notes), style.MUTED, size)


def _split(pairs: Sequence[tuple]) -> tuple[list, list]:
    kept = [pair for pair in pairs if pair[0]]
    return [text for text, _ in kept], [at for _, at in kept]


FRAMES = {"weight": (style.INK, 1.4), "read": (style.MUTED, 2.0), "made": (style.ACCENT, 2.6)}


def _draw_frames(ax: Axes, matrices: Sequence[Matrix], ranks: int) -> None:
    for frame, (colour, width) in FRAMES.items():
        boxes = [_box(*one[:4]) for one in matrices if one.frame == frame]
        if boxes:
            add_boxes(ax, frame, boxes, "none", edgecolors=colour, linewidths=width, zorder=4)


def matrices_figure(
    rows: Sequence[Matrix], ranks: int, finding: str, *, title: str = "", height: float = 2.4
) -> Figure:
    """Return a picture of matrices whose places are given in inches, e.g. a weight cut two ways."""
    figure = style.new_figure(style.WIDTH, height)
    draw_matrices(inches_axes(figure), rows, ranks, 8.0)
    with style.styled():
        figure.text(0.02, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", gid="title")
    return style.finding(figure, finding)


def weight_figure(shape: tuple[int, int], ranks: int, finding: str, *, title: str = "") -> Figure:
    """Return one weight of `shape` (inputs, outputs), whole, cut by columns and cut by rows."""
    rows, columns = shape
    width = max(0.6, 2.2 * min(1.0, columns / rows))
    height = max(0.6, 1.0 * min(1.0, rows / columns))
    shares = {
        WHOLE: shape,
        COLUMNS: (rows, columns / ranks),
        ROWS: (rows / ranks, columns),
    }
    matrices = [
        Matrix(
            1.67 + 3.33 * place - width / 2,
            0.9 - height / 2,
            width,
            height,
            cut,
            frame="weight",
            name=cut,
            notes=[f"each rank {share[0]:,g} x {share[1]:,g}"],
        )
        for place, (cut, share) in enumerate(shares.items())
    ]
    return matrices_figure(matrices, ranks, finding, title=title, height=2.1)


def ring_events(ranks: int, causal: bool, transfer: float = 0.5) -> list[Block]:
    """Return the events of ring attention, if a block of keys takes 1 and its way `transfer`.

    The block in a lane is that of the rank whose number it bears. In each step a rank passes the
    block on while it computes with it; with `causal`, a block of later keys is skipped.
    """
    events, start = [], [0.0] * ranks
    for step in range(ranks):
        ends = []
        for rank in range(ranks):
            source = (rank - step) % ranks
            length = 0.0 if causal and source > rank else 1.0
            ends.append(start[rank] + length)
            if length:
                events.append(Block(rank, "F", f"k{source}", start[rank], ends[rank]))
        if step == ranks - 1:
            break
        arrivals = [max(start[rank - 1], start[rank]) + transfer for rank in range(ranks)]
        for rank, arrival in enumerate(arrivals):
            sender = (rank - 1) % ranks
            events.append(
                Block(sender, "send", f"k{step}", arrival - transfer, arrival, peers=(rank,))
            )
        start = [
            max(ends[rank], arrivals[rank], arrivals[(rank + 1) % ranks]) for rank in range(ranks)
        ]
    return events


def ring_attention_figure(ranks: int, finding: str, transfer: float = 0.5) -> Figure:
    """Return two timelines of ring attention: all blocks, and those that a causal mask leaves."""
    panels = []
    for causal, title in ((False, "Every query meets every key"), (True, "Causal")):
        events = ring_events(ranks, causal, transfer)
        blocks = sum(event.kind == "F" for event in events)
        panels.append(Panel(events, title, [f"{blocks} of {ranks**2} blocks computed"]))
    return timeline_figure(
        panels, finding, time_label="time (one block on one rank = 1)", counted="whose keys"
    )
