"""Many short texts as one artist.

A matplotlib Text costs about half a millisecond to draw, and a pipeline's timeline has hundreds
of numbers: an explorer would miss its tenth of a second. Here each text becomes an outline once
(cached), and one `Labels` artist stamps all of
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D, Bbox, IdentityTransform, Transform

from pedagogy.plots import style


@lru_cache(maxsize=4096)
def _glyphs(text: str, weight: str) -> Path:
    """Return the outline of a text of size 1 point, centred on the origin."""
    font = FontProperties(family="DejaVu Sans", weight=weight)
    path = TextPath((0, 0), text, size=100, prop=font)
    box = path.get_extents()
    middle = 36.5  # half the height of a digit, so that all texts share one baseline
    move = Affine2D().translate(-(box.x0 + box.x1) / 2, -middle).scale(0.01)
    return move.transform_path(path)


def width_points(text: str, size: float, weight: str = "normal") -> float:
    """Return the room that a text needs, in points; all digits need the same."""
    return len(text) * size * (0.70 if weight == "bold" else 0.64)


class Labels(Artist):
    """Texts centred on points: `.texts` and `.at` say what stands where.

    The points are in the coordinates of `transform`; the size is in points, whatever the zoom.
    """

    zorder = 7

    def __init__(
        self,
        texts: Sequence[str],
        at: Sequence[tuple[float, float]],
        colour: str,
        size: float,
        weight: str,
        transform: Transform,
    ) -> None:
        super().__init__()
        self.texts, self.at = list(texts), [tuple(point) for point in at]
        self.colour, self.size, self.weight = colour, size, weight
        self.set_transform(transform)

    def _scale(self) -> Affine2D:
        return Affine2D().scale(self.size / 72 * self.get_figure().dpi)

    def draw(self, renderer: Any) -> None:
        if not self.get_visible():
            return
        places = defaultdict(list)  # equal texts are stamped together
        for text, point in zip(self.texts, self.get_transform().transform(self.at), strict=True):
            places[text].append(point)
        pen = renderer.new_gc()
        pen.set_linewidth(0)
        ink, still = to_rgba(self.colour), IdentityTransform()
        renderer.open_group("labels", self.get_gid())
        for text, points in places.items():
            glyphs = _glyphs(text, self.weight)
            renderer.draw_markers(pen, glyphs, self._scale(), Path(points), still, ink)
        renderer.close_group("labels")
        pen.restore()

    def get_window_extent(self, renderer: Any = None) -> Bbox:
        points = self.get_transform().transform(self.at)
        boxes = [
            _glyphs(text, self.weight).get_extents(self._scale()).translated(*point)
            for text, point in zip(self.texts, points, strict=True)
        ]
        return Bbox.union(boxes)


def add_labels(
    ax: Axes,
    gid: str,
    texts: Sequence[str],
    at: Sequence[tuple[float, float]],
    colour: str,
    size: float = 9.0,
    weight: str = "normal",
    transform: Transform | None = None,
) -> None:
    """Write texts centred on points of the axes, as one artist that `labels_of` finds by gid."""
    if texts:
        labels = Labels(texts, at, colour, size, weight, transform or ax.transData)
        labels.set_gid(gid)
        ax.add_artist(labels)


def name_rows(ax: Axes, ranks: Sequence[int], below: float = 0.0) -> None:
    """Write "rank 0", "rank 1", ... left of the axes, each at y = rank + below."""
    inches = ax.get_figure().get_size_inches()[0] * ax.get_position().width
    names = [f"rank {rank}" for rank in ranks]
    rooms = [width_points(name, 8.3) / 72 for name in names]  # letters are narrower than digits
    at = [(-(0.07 + room / 2) / inches, r + below) for room, r in zip(rooms, ranks, strict=True)]
    add_labels(ax, "ranks", names, at, style.INK, 9.0, transform=ax.get_yaxis_transform())


def labels_of(ax: Axes, gid: str) -> list[tuple[str, tuple[float, float]]]:
    """Return the texts written under a gid, each with its point."""
    return [
        pair
        for artist in ax.artists
        if isinstance(artist, Labels) and artist.get_gid() == gid
        for pair in zip(artist.texts, artist.at, strict=True)
    ]
