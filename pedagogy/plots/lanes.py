"""Lanes: what each rank computes and sends over time, as light matplotlib collections.

Thousands of blocks must not mean thousands of artists, so each look is one PathCollection whose
gid names it: "forward", "backward", "wait", "other", or a kind of communication; the thin rows of
a measured run add " measured". `blocks(axes, gid)` gives the drawn spans back as numbers, which is
what tests (and curious readers) look at.

The y axis counts ranks downwards: a lane reaches from rank - 0.42 (its top) to rank + 0.34. Where
a timeline has communication, compute ends at + 0.13 and communication lies below it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.path import Path

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels, width_points

COMPUTE = {"F": "forward", "forward": "forward", "B": "backward", "backward": "backward"}
WAITS = {"wait", "bubble", "idle", "stall"}
TOP, FLOOR, BOTTOM = -0.42, 0.13, 0.34  # of the compute above communication, and of the lane
MEASURED = (0.38, 0.48)
OTHER, WAIT_INK = "#AEB6BF", "#AEB6BF"


def look_of(event: Any) -> str:
    """Return which look an event gets: forward, backward, wait, other, or its own kind."""
    if event.kind in COMPUTE:
        return COMPUTE[event.kind]
    if event.kind in WAITS:
        return "wait"
    if event.kind in style.COMMUNICATION or event.peers or event.nbytes:
        return event.kind
    return "other"


def group_by_look(events: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the events by the look they get."""
    groups = defaultdict(list)
    for event in events:
        groups[look_of(event)].append(event)
    return dict(groups)


def communication_looks(groups: Mapping[str, Any]) -> list[str]:
    """Return the looks that are kinds of communication, in a fixed order."""
    return sorted(set(groups) - {"forward", "backward", "wait", "other"})


def microbatch_of(event: Any) -> int | None:
    """Return the micro-batch that an event's name ends with ("F3" is 3), or None."""
    match = re.search(r"(\d+)$", event.name)
    return int(match.group(1)) if match else None


def blocks(ax: Axes, gid: str) -> list[tuple[int, float, float]]:
    """Return the drawn blocks of one look as (rank, start, end), by rank and start."""
    found = []
    for collection in ax.collections:
        if collection.get_gid() == gid:
            for path in collection.get_paths():
                for (x0, y0), _, (x1, y1), *_ in path.vertices.reshape(-1, 5, 2).tolist():
                    found.append((round((y0 + y1) / 2), x0, x1))
    return sorted(found)


def _box(event: Any, low: float, high: float) -> list[tuple[float, float]]:
    y0, y1 = event.rank + low, event.rank + high
    return [(event.start, y0), (event.start, y1), (event.end, y1), (event.end, y0)]


def add_boxes(
    ax: Axes,
    gid: str,
    boxes: Sequence[Sequence],
    colours: str | Sequence[str],
    hatch: str = "",
    **look: Any,
) -> None:
    """Add boxes of four corners as one collection that `blocks` finds by its gid.

    Boxes of one colour become one path: a picture is as fast as it has few paths.
    """
    colours = [colours] * len(boxes) if isinstance(colours, str) else colours
    by_colour: dict[str, list] = defaultdict(list)
    for box, colour in zip(boxes, colours, strict=True):
        by_colour[colour].append([*box, box[0]])
    paths = []
    for same in by_colour.values():
        codes = np.tile([Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY], len(same))
        paths.append(Path(np.reshape(same, (-1, 2)), codes))
    look = {"linewidths": 0.6, "edgecolors": style.PAPER, "zorder": 3} | look
    collection = PathCollection(paths, facecolors=list(by_colour), hatch=hatch or None, **look)
    collection.set_gid(gid)
    ax.add_collection(collection, autolim=False)


def draw_empty_lanes(ax: Axes, ranks: Iterable[int], end: float) -> None:
    """Draw the lanes themselves: what stays empty is a bubble."""
    boxes = [[(0, r + TOP), (0, r + BOTTOM), (end, r + BOTTOM), (end, r + TOP)] for r in ranks]
    add_boxes(ax, "lane", boxes, style.LANE, zorder=1, linewidths=0)


def draw_compute(ax: Axes, groups: Mapping[str, list], low: float, high: float, tag: str) -> None:
    """Draw forward, backward, other compute and waits between two heights of their lanes."""
    for look, palette in (("forward", style.FORWARD), ("backward", style.BACKWARD)):
        if events := groups.get(look):
            hues = [palette[(microbatch_of(e) or 0) % len(palette)] for e in events]
            add_boxes(ax, look + tag, [_box(e, low, high) for e in events], hues)
    if events := groups.get("backward"):
        bar = (high - low) * 0.1
        boxes = [_box(e, low + bar, low + 2 * bar) for e in events]
        add_boxes(ax, "backward bar" + tag, boxes, style.PAPER, linewidths=0, zorder=4)
    if events := groups.get("other"):
        add_boxes(ax, "other" + tag, [_box(e, low, high) for e in events], OTHER)
    if events := groups.get("wait"):
        boxes = [_box(e, low, high) for e in events]
        look = {"edgecolors": WAIT_INK, "linewidths": 0}
        add_boxes(ax, "wait" + tag, boxes, style.PAPER, "////", **look)


def draw_communication(ax: Axes, groups: Mapping[str, list]) -> None:
    """Draw communication as thin blocks under the compute, and sends as lines to receivers."""
    for look in communication_looks(groups):
        colour, hatch = style.communication_look(look)
        boxes = [_box(e, FLOOR + 0.03, BOTTOM) for e in groups[look]]
        add_boxes(ax, look, boxes, colour, hatch)
    sends = [e for look in ("send", "isend") for e in groups.get(look, ()) if len(e.peers) == 1]
    if sends:
        middle = (FLOOR + BOTTOM) / 2
        lines = [[(e.start, e.rank + middle), (e.end, e.peers[0] + middle)] for e in sends]
        arrows = LineCollection(lines, colors=style.INK, linewidths=0.8, zorder=5)
        arrows.set_gid("arrows")
        ax.add_collection(arrows, autolim=False)
        heads = [(e.end, e.peers[0] + middle) for e in sends]
        ax.plot(
            *zip(*heads, strict=True),
            "o",
            color=style.INK,
            markersize=2.8,
            zorder=6,
            gid="arrowheads",
        )


def write_names(ax: Axes, groups: Mapping[str, list], pixels_per_unit: float, floor: float) -> None:
    """Write micro-batch numbers and names into the blocks that are wide enough for them."""
    inks = {"forward": style.INK, "backward": style.PAPER, "other": style.INK}
    for look, ink in inks.items():
        weight = "bold" if look == "backward" else "normal"
        events = groups.get(look, ())
        numbers = [microbatch_of(e) if look != "other" else None for e in events]
        texts = [e.name if n is None else str(n) for e, n in zip(events, numbers, strict=True)]
        rooms = [(e.end - e.start) * pixels_per_unit * 72 / style.DPI - 1 for e in events]
        widths = [width_points(text, 1.0, weight) if text else 0.0 for text in texts]
        fits = [room / width for room, width in zip(rooms, widths, strict=True) if width]
        size = min(9.0, max(6.0, min(fits, default=9.0)))
        kept = [i for i, width in enumerate(widths) if width and width * size <= rooms[i]]
        at = [
            ((events[i].start + events[i].end) / 2, events[i].rank + (TOP + floor) / 2 + 0.03)
            for i in kept
        ]
        add_labels(ax, look + " names", [texts[i] for i in kept], at, ink, size, weight)


def draw_lanes(
    ax: Axes, events: Sequence[Any], measured: Sequence[Any], end: float, width_pixels: float
) -> None:
    """Draw the lanes of a timeline; time runs from 0 to `end` over `width_pixels`."""
    ranks = sorted({event.rank for event in [*events, *measured]})
    groups = group_by_look(events)
    floor = FLOOR if communication_looks(groups) else BOTTOM
    with style.styled():
        draw_empty_lanes(ax, ranks, end)
        draw_compute(ax, groups, TOP, floor, "")
        draw_communication(ax, groups)
        write_names(ax, groups, width_pixels / end, floor)
        draw_compute(ax, group_by_look(measured), *MEASURED, " measured")
        ax.set_xlim(0, end)
        ax.set_ylim(max(ranks) + 0.5, min(ranks) - 0.5)
        ax.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
        ax.tick_params(axis="both", length=0)
        for side in ax.spines.values():
            side.set_visible(False)
