"""Names beside points, so that none lies on another name, on a point, or outside the picture.

A legend makes the eye travel, and names at fixed offsets collide wherever points crowd. Here each
name tries places around its point, the nearest first, and takes the first that is free; points
with the fewest free places choose first. Places are best where no other point is nearer. A name
that had to go farther, or to where one is, is tied to its point by a thin line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from pedagogy.plots import style
from pedagogy.plots.labels import width_points

Box = tuple[float, float, float, float]  # left, bottom, right, top, in points
Spot = tuple[float, float]
LINE = 11.5  # points from one line of a name to the next
SMALL = 8.0  # size of the second line
RINGS = (9.0, 24.0, 42.0, 62.0)  # points from a point to its name
TIED = 20.0  # beyond this distance
WAYS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))


def name_beside(
    ax: Axes,
    names: Mapping[str, Spot],
    *,
    notes: Mapping[str, str] | None = None,
    avoid: Sequence[Spot] = (),
    lines: Sequence[tuple[Spot, Spot]] = (),
) -> dict[str, Box]:
    """Write each name beside its point, in data coordinates; the axes' limits must be final.

    notes: a second, smaller line under a name. avoid: further points that stay visible. lines: from
    point to point; names shun them where they can.
    Returns the boxes that the names take, in points from the lower left corner of the figure.
    """
    notes = notes or {}
    to_points = 72 / ax.get_figure().dpi
    spots = {name: tuple(ax.transData.transform(at) * to_points) for name, at in names.items()}
    dots = [*spots.values(), *(tuple(ax.transData.transform(at) * to_points) for at in avoid)]
    strokes = [stroke for line in lines for stroke in _along(ax, line, to_points)]
    left, bottom, right, top = (edge * to_points for edge in ax.bbox.extents)
    choices = {
        name: [
            box
            for box in _boxes(spots[name], *_size(name, notes.get(name, "")))
            if left <= box[0] and bottom <= box[1] and box[2] <= right and box[3] <= top
            if not any(_is_on(dot, box, 5.0) for dot in dots)
        ]
        for name in names
    }
    taken: dict[str, Box] = {}
    for name in sorted(names, key=lambda name: len(choices[name])):
        free = [b for b in choices[name] if not any(_overlap(b, t) for t in taken.values())]
        clear = [b for b in free if not any(_is_on(stroke, b, 1.0) for stroke in strokes)]
        own = [b for b in clear if not _strangers(spots[name], b, spots)]
        best = next(iter([*own[:1], *clear[:1], *free, *choices[name]]), None)
        taken[name] = best or next(_boxes(spots[name], *_size(name, notes.get(name, ""))))
    for name, box in taken.items():
        is_tied = _gap(spots[name], box) > TIED or _strangers(spots[name], box, spots)
        _write(ax, name, notes.get(name, ""), spots[name], box, is_tied)
    return taken


def _size(name: str, note: str) -> tuple[float, float]:
    """Width and height in points; letters are narrower than digits."""
    width = max(width_points(name, 8.6, "bold"), width_points(note, SMALL - 0.9))
    return width, LINE * (2 if note else 1)


def _boxes(spot: Spot, width: float, height: float):
    """Places around a point, the nearest first."""
    for ring in RINGS:
        for across, up in WAYS:
            away = ring if across == 0 or up == 0 else 0.75 * ring
            x = spot[0] + across * away + (-width, -width / 2, 0)[across + 1]
            y = spot[1] + up * away + (-height, -height / 2, 0)[up + 1]
            yield (x, y, x + width, y + height)


def _along(ax: Axes, line: tuple[Spot, Spot], to_points: float) -> list[Spot]:
    """Spots on a line, four points apart."""
    (x0, y0), (x1, y1) = (ax.transData.transform(at) * to_points for at in line)
    steps = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) / 4))
    return [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps + 1)]


def _is_on(spot: Spot, box: Box, room: float) -> bool:
    x, y = spot
    return box[0] - room < x < box[2] + room and box[1] - room < y < box[3] + room


def _nearest(spot: Spot, box: Box) -> Spot:
    """Where a box comes nearest to a spot."""
    return min(max(spot[0], box[0]), box[2]), min(max(spot[1], box[1]), box[3])


def _gap(spot: Spot, box: Box) -> float:
    x, y = _nearest(spot, box)
    return max(abs(x - spot[0]), abs(y - spot[1]))


def _strangers(spot: Spot, box: Box, spots: Mapping[str, Spot]) -> bool:
    """Whether another point is as near to the box."""
    return any(_gap(other, box) <= _gap(spot, box) for other in spots.values() if other != spot)


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def overlaps(boxes: Mapping[str, Box]) -> list[tuple[str, str]]:
    """The pairs of names that lie on each other: what should be empty."""
    names = list(boxes)
    return [
        (one, other)
        for i, one in enumerate(names)
        for other in names[i + 1 :]
        if _overlap(boxes[one], boxes[other])
    ]


def _write(ax: Axes, name: str, note: str, spot: Spot, box: Box, is_tied: bool) -> None:
    inch = 1 / 72
    figure = ax.get_figure()
    place = {"xycoords": figure.dpi_scale_trans, "annotation_clip": False, "gid": "name"}
    side = "left" if box[0] >= spot[0] else "right" if box[2] <= spot[0] else "center"
    x = {"left": box[0], "right": box[2], "center": (box[0] + box[2]) / 2}[side]
    paper = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.4}
    look = {"ha": side, "va": "top", "zorder": 4.5, "bbox": paper}
    with style.styled():
        at = (x * inch, box[3] * inch)
        ax.annotate(name, at, fontsize=9.5, fontweight="bold", color=style.INK, **place, **look)
        if note:
            at = (x * inch, (box[3] - LINE) * inch)
            place["gid"] = "note"
            ax.annotate(note, at, fontsize=SMALL, color=style.MUTED, **place, **look)
        if is_tied:
            ends = [tuple(one * inch for one in end) for end in (spot, _nearest(spot, box))]
            for (x0, y0), (x1, y1) in pairwise(ends):
                ax.plot(
                    *([x0, x1], [y0, y1]), transform=figure.dpi_scale_trans, clip_on=False,
                    color=style.MUTED, linewidth=0.7, zorder=2, gid="tie",
                )  # fmt: skip
