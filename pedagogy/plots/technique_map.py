"""The map of the book as one picture: a row a technique, a column for each thing it changes.

Colour is not the only sign: each cell carries a word as well, "same" is left quiet.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pedagogy.costs.techniques import KINDS, TECHNIQUES, Technique
from pedagogy.plots import style

LOOK = {
    "less": ("#00765A", style.PAPER, "bold"),
    "same": (style.LANE, style.MUTED, "normal"),
    "more": ("#B34700", style.PAPER, "bold"),
    "moved": ("#5B3A8C", style.PAPER, "bold"),
}
ROW, CELL = 0.28, 0.86  # inches
LEFT, CUTS = 2.05, 1.9  # inches for names, and for what is cut
FIRST = 0.42  # inches for the chapter's number


def technique_map_figure(
    finding: str, techniques: Sequence[Technique] = TECHNIQUES, *, title: str = ""
) -> Figure:
    """Return the map: chapter, name, what is cut, five effects on one device, exactness, price."""
    tracks = list(dict.fromkeys(one.track for one in techniques))
    rows = len(techniques) + len(tracks)
    height = ROW * (rows + 1) + 0.5
    figure = style.new_figure(11.6, height)
    ax = style.add_axes(figure, 0.1, 0.05, 11.4, ROW * (rows + 1) + 0.1)
    ax.set(xlim=(0, 11.4), ylim=(rows + 0.35, -1.0))
    ax.axis("off")
    with style.styled():
        figure.text(0.012, 1 - 0.22 / height, title, fontsize=11, fontweight="bold")
        _draw_head(ax)
        row = 0
        for track in tracks:
            ax.text(0, row + 0.5, track, va="center", fontweight="bold", color=style.INK)
            row += 1
            for technique in (one for one in techniques if one.track == track):
                _draw_row(ax, row, technique)
                row += 1
    return style.finding(figure, finding)


def _columns() -> list[tuple[str, float]]:
    """The name of each column and where it begins."""
    effects = FIRST + LEFT + CUTS
    places = [(kind, effects + i * CELL) for i, kind in enumerate(KINDS)]
    after = effects + len(KINDS) * CELL + 0.1
    names = [("chapter", 0.0), ("technique", FIRST), ("cuts", FIRST + LEFT)]
    return [*names, *places, ("equal to one process", after), ("price", after + 1.1)]


def _draw_head(ax: Axes) -> None:
    heads = {"optimizer_state": "optimizer\nstate", "equal to one process": "as one\nprocess"}
    for name, left in _columns():
        centred = name in KINDS
        ax.text(
            left + (CELL / 2 if centred else 0),
            -0.05,
            "" if name == "chapter" else heads.get(name, name),
            ha="center" if centred else "left",
            va="bottom",
            fontsize=8.8,
            color=style.MUTED,
        )


def _draw_row(ax: Axes, row: int, technique: Technique) -> None:
    places = dict(_columns())
    middle = row + 0.5
    words = {
        "chapter": technique.chapter,
        "technique": technique.name,
        "cuts": technique.cuts,
        "equal to one process": technique.exact,
        "price": technique.price,
    }
    for name, word in words.items():
        weight = "bold" if name == "technique" else "normal"
        ax.text(places[name], middle, word, va="center", fontsize=8.8, fontweight=weight, gid=name)
    for kind, effect in technique.effects().items():
        colour, ink, weight = LOOK[effect]
        box = Rectangle((places[kind] + 0.03, row + 0.08), CELL - 0.06, 0.84, color=colour)
        box.set_gid(f"{technique.name}: {kind} {effect}")
        ax.add_patch(box)
        ax.text(
            places[kind] + CELL / 2,
            middle,
            effect,
            ha="center",
            va="center",
            fontsize=8.8,
            color=ink,
            fontweight=weight,
        )
