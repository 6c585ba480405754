"""Lanes: what each rank computes and sends over time, as light matplotlib collections.

Thousands of blocks must not mean thousands of artists, so each look is one PathCollection whose
gid names it: "forward", "backward", "weight", "recompute", "wait", "other", or a kind of
communication; the thin rows of a measured run add " measured". `blocks(axes, gid)` gives the drawn
spans back as numbers, which is what tests (and curious readers) look at.

The y axis counts ranks downwards: a lane reaches from rank - 0.42 (its top) to rank + 0.34. Where
a timeline has communication, compute ends at + 0.13 and communication lies below it. Events may
have a `chunk`, the place of their stage among those of the rank: later chunks lie lower. An update
takes no time and is a vertical mark.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.path import Path

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels, width_points

COMPUTE = {
    **{"F": "forward", "B": "backward", "W": "weight", "R": "recompute", "U": "update"},
    **{"forward": "forward", "backward": "backward"},
}
PALETTES = {
    "forward": style.FORWARD,
    "backward": style.BACKWARD,
    "weight": style.WEIGHT,
    "recompute": style.FORWARD,
}
WAITS = {"wait", "bubble", "idle", "stall"}
TOP, FLOOR, BOTTOM = -0.42, 0.13, 0.34  # of the compute above communication, and of the lane
MEASURED = (0.38, 0.48)
OTHER, WAIT_INK = "#AEB6BF", "#AEB6BF"
CROWD = 600  # blocks of a look: more are so narrow that edges and lines would hide them


def look_of(event: Any) -> str:
    """Return which look an event gets: that of its compute, wait, other, or its own kind."""
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
    return sorted(set(groups) - {*COMPUTE.values(), "wait", "other"})


def microbatch_of(event: Any) -> int | None:
    """Return the micro-batch that an event's name ends with ("F3" is 3), or None."""
    return _last_number(event.name)


@lru_cache(maxsize=4096)
def _last_number(name: str) -> int | None:
    match = re.search(r"(\d+)$", name)
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


def chunks_of(events: Iterable[Any]) -> int:
    """Return how many chunks the events tell apart: 1 where no event has a chunk."""
    return 1 + max((getattr(event, "chunk", 0) for event in events), default=0)


def _box(event: Any, low: float, high: float, chunks: int = 1) -> list[tuple[float, float]]:
    stair = (high - low) * min(0.2, 0.42 / max(chunks - 1, 1))
    above = getattr(event, "chunk", 0)
    y0, y1 = event.rank + low + above * stair, event.rank + high - (chunks - 1 - above) * stair
    return [(event.start, y0), (event.start, y1), (event.end, y1), (event.end, y0)]


def _stripe(box: Sequence[tuple[float, float]], upper: float, lower: float) -> list:
    """Return the part of a box between two shares of its height, counted from the top."""
    (x0, y0), (_, y1), (x1, _), _ = box
    top, bottom = y0 + upper * (y1 - y0), y0 + lower * (y1 - y0)
    return [(x0, top), (x0, bottom), (x1, bottom), (x1, top)]


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
    """Draw compute, updates and waits between two heights of their lanes."""
    chunks = max(chunks_of(groups.get(look, ())) for look in PALETTES)
    for look in [look for look in PALETTES if look in groups]:
        events, palette = groups[look], PALETTES[look]
        places = [(microbatch_of(e) or 0) % len(palette) for e in events]
        boxes = [_box(e, low, high, chunks) for e in events]
        hatch = "////" if look == "recompute" else ""
        edges = 0.6 if len(boxes) <= CROWD else 0.2
        add_boxes(ax, look + tag, boxes, [palette[i] for i in places], hatch, linewidths=edges)
        if look == "backward":
            bars, inks = [_stripe(box, 0.1, 0.2) for box in boxes], style.PAPER
            add_boxes(ax, "backward bar" + tag, bars, inks, linewidths=0, zorder=4)
        if look == "weight":
            bars, inks = [_stripe(box, 0.82, 1.0) for box in boxes], style.BACKWARD
            inks = [inks[i] for i in places]
            add_boxes(ax, "weight bar" + tag, bars, inks, zorder=4)
    if events := groups.get("other"):
        add_boxes(ax, "other" + tag, [_box(e, low, high) for e in events], OTHER)
    if events := groups.get("wait"):
        boxes = [_box(e, low, high) for e in events]
        look = {"edgecolors": WAIT_INK, "linewidths": 0}
        add_boxes(ax, "wait" + tag, boxes, style.PAPER, "////", **look)
    if events := groups.get("update"):
        marks = [[(e.end, e.rank + low - 0.06), (e.end, e.rank + high)] for e in events]
        add_lines(ax, "update" + tag, marks, linewidth=1.8)


def add_lines(ax: Axes, gid: str, lines: Sequence[Sequence], **look: Any) -> None:
    """Add lines from point to point as one artist, with a gap behind each."""
    points = [point for line in lines for point in [*line, (np.nan, np.nan)]]
    look = {"color": style.INK, "zorder": 5, "gid": gid} | look
    ax.plot(*zip(*points, strict=True), **look)


def draw_communication(ax: Axes, groups: Mapping[str, list]) -> None:
    """Draw communication as thin blocks under the compute, and a few sends as lines as well."""
    for look in communication_looks(groups):
        colour, hatch = style.communication_look(look)
        boxes = [_box(e, FLOOR + 0.03, BOTTOM) for e in groups[look]]
        add_boxes(ax, look, boxes, colour, hatch)
    sends = [e for look in ("send", "isend") for e in groups.get(look, ()) if len(e.peers) == 1]
    if 0 < len(sends) <= CROWD:
        middle = (FLOOR + BOTTOM) / 2
        lines = [[(e.start, e.rank + middle), (e.end, e.peers[0] + middle)] for e in sends]
        add_lines(ax, "arrows", lines, linewidth=0.8)
        look = {"color": style.INK, "markersize": 2.8, "zorder": 6, "gid": "arrowheads"}
        ax.plot(*zip(*(head for _, head in lines), strict=True), "o", **look)


def write_names(ax: Axes, groups: Mapping[str, list], pixels_per_unit: float, floor: float) -> None:
    """Write micro-batch numbers and names into the blocks that are wide enough for them."""
    chunks = max(chunks_of(groups.get(look, ())) for look in PALETTES)
    for look in (*PALETTES, "other"):
        ink = style.PAPER if look == "backward" else style.INK
        weight = "bold" if look == "backward" else "normal"
        events = groups.get(look, ())
        numbers = [microbatch_of(e) if look != "other" else None for e in events]
        texts = [e.name if n is None else str(n) for e, n in zip(events, numbers, strict=True)]
        rooms = [(e.end - e.start) * pixels_per_unit * 72 / style.DPI - 1 for e in events]
        widths = [width_points(text, 1.0, weight) if text else 0.0 for text in texts]
        fits = [room / width for room, width in zip(rooms, widths, strict=True) if width]
        size = min(9.0, max(6.0, min(fits, default=9.0)))
        kept = [i for i, width in enumerate(widths) if width and width * size <= rooms[i]]
        boxes = [_box(events[i], TOP, floor, chunks) for i in kept]
        shift = -0.03 if look == "weight" else 0.03
        at = [((b[0][0] + b[2][0]) / 2, (b[0][1] + b[2][1]) / 2 + shift) for b in boxes]
        add_labels(ax, look + " names", [texts[i] for i in kept], at, ink, size, weight)


def draw_blocks(
    ax: Axes, events: Sequence[Any], measured: Sequence[Any], end: float, width_pixels: float
) -> list[int]:
    """Draw the lanes without the ranks' names; time runs from 0 to `end` over `width_pixels`.

    Returns the ranks.
    """
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
        ax.set_yticks([])
        ax.tick_params(axis="both", length=0)
        for side in ax.spines.values():
            side.set_visible(False)
    return ranks


def draw_lanes(
    ax: Axes, events: Sequence[Any], measured: Sequence[Any], end: float, width_pixels: float
) -> None:
    """Draw the lanes of a timeline, with the ranks' names as the ticks of the y axis."""
    ranks = draw_blocks(ax, events, measured, end, width_pixels)
    with style.styled():
        ax.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
