"""The legend of a timeline: what the picture uses, and only that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from pedagogy.plots import style
from pedagogy.plots.lanes import (
    OTHER,
    WAIT_INK,
    chunks_of,
    communication_looks,
    group_by_look,
    microbatch_of,
)
from pedagogy.plots.strips import kinds_of

ROOM = 9.15  # inches


def columns(entries: Sequence[tuple[Any, str]]) -> int:
    """Return in how many columns the entries fit into the width: the most that do."""
    inches = [0.44 + 0.0645 * len(text) for _, text in entries]
    for rows in range(1, len(inches) + 1):
        widest = [max(inches[i : i + rows]) for i in range(0, len(inches), rows)]
        if sum(widest) <= ROOM:
            return len(widest)
    return 1


def legend_inches(entries: Sequence[tuple[Any, str]]) -> float:
    """Return the height of the entries' legend."""
    return 0.22 * -(-len(entries) // columns(entries))


def timeline_legend(panels: Sequence[Any], counted: str) -> list[tuple[Any, str]]:
    """Return (handle, text) for each look in the panels; `counted` says what the numbers count."""
    events = [event for panel in panels for event in panel.events]
    groups = group_by_look(events or [e for panel in panels for e in panel.measured])
    numbered = any(microbatch_of(e) is not None for e in groups.get("forward", ()))
    looks = {
        "forward": (style.FORWARD[0], "", f"forward (number: {counted})" * numbered or "forward"),
        "recompute": (style.FORWARD[0], "////", "forward once more"),
        "backward": (style.BACKWARD[0], "", "backward (white bar)"),
        "weight": (style.WEIGHT[0], "", "half for the weights (dark bar)"),
        "other": (OTHER, "", ", ".join(sorted({e.kind for e in groups.get("other", ())}))),
        "wait": (style.PAPER, "////", "wait"),
    }
    entries: list[tuple[Any, str]] = []
    for look, (colour, hatch, text) in looks.items():
        if look in groups:
            edge = WAIT_INK if look == "wait" else style.PAPER
            entries.append((Patch(facecolor=colour, hatch=hatch, edgecolor=edge), text))
    if "update" in groups:
        mark = Line2D([], [], color=style.INK, marker="|", linestyle="", mew=1.8, markersize=9)
        entries.append((mark, "update"))
    for look in communication_looks(groups):
        colour, hatch = style.communication_look(look)
        entries.append((Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER), look))
    if "forward" in groups or "backward" in groups:
        text = "empty: idle" if "wait" in groups else "empty: the rank waits"
        entries.append((Patch(facecolor=style.LANE), text))
    if chunks_of(events) > 1:
        entries.append((Line2D([], [], linestyle=""), "lower: a later chunk"))
    if any(panel.measured and panel.events for panel in panels):
        entries.append((Rectangle((0, 0), 1, 0.3, facecolor=style.BACKWARD[0]), "thin: measured"))
    return entries


def memory_legend(panels: Sequence[Any]) -> list[tuple[Any, str]]:
    """Return (handle, text) for each kind of memory that the strips hold."""
    entries = []
    for kind in kinds_of([c for panel in panels if panel.memory for c in panel.memory.values()]):
        colour, hatch = style.memory_look(kind)
        patch = Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER)
        entries.append((patch, kind.replace("_", " ")))
    return entries


def draw_legend(figure: Figure, entries: list, corner: str, at: tuple[float, float]) -> None:
    """Put a legend with its corner at a place given in inches."""
    if entries:
        width, height = figure.get_size_inches()
        handles, texts = zip(*entries, strict=True)
        look = {"handlelength": 1.5, "handleheight": 0.9, "columnspacing": 1.5}
        figure.legend(
            handles,
            texts,
            loc=corner,
            bbox_to_anchor=(at[0] / width, at[1] / height),
            ncol=columns(entries),
            handletextpad=0.5,
            borderaxespad=0,
            borderpad=0,
            **look,
        )
