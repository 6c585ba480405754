"""Where a router sends the tokens, character by character, and what becomes of those it drops.

How to read it
--------------
A routed passage is written out in its order. Under each character stands a box for each of its
choices, in the expert's colour and with its number. A choice that found no room is hatched, and the
character is grey if none of its choices found any. Below, a column of greys is what the gate said
about the character, one row for each expert. The bars count the choices: full is kept, hatched is
dropped, a dashed line is the capacity and a dotted one the even share.

Colours repeat what numbers say, so that nothing is lost in print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.tensor import inches_axes

if TYPE_CHECKING:
    from pedagogy.moe.routing import Routing

COLUMNS, CELL, LEFT = 48, 0.186, 0.9  # characters a line, inches a character, left margin
CHOICE, HEAT, LINE = 0.38, 0.62, 1.4  # heights in inches: the choices, the greys, a line
BARS = 1.8  # inches that the bars take at the bottom
GREYS = LinearSegmentedColormap.from_list("probability", [style.PAPER, style.INK])
PALE, LOST = "#E3B5A8", "#7B8590"  # of hatches with a number on them, of characters without room
SHOWN = {" ": "\u2423", "\n": "\u21b5", "\t": "\u21e5"}


def expert_colour(expert: int) -> str:
    """The colour of an expert: light enough for a number on it."""
    return style.FORWARD[expert % len(style.FORWARD)]


def routing_figure(
    tokens: Sequence[str], routing: Routing, capacity: int | None, title: str = ""
) -> Figure:
    """A passage with the experts of each character, the gate's probabilities, and the loads.

    `tokens` are single characters, `capacity` is an expert's room (None for no limit). The size
    depends on the number of tokens alone.
    **Raises** ValueError for a routing of another number of tokens, or of none.
    """
    if len(tokens) != len(routing.experts) or not tokens:
        raise ValueError(
            f"{len(tokens)} tokens, and a routing of {len(routing.experts)}: must be the same "
            "number, 1 or more"
        )
    lines = -(-len(tokens) // COLUMNS)
    height = 0.5 + lines * LINE + BARS
    figure = style.new_figure(style.WIDTH, height)
    ax = inches_axes(figure)
    tops = [height - 0.5 - line * LINE for line in range(lines)]
    at = [(LEFT + (i % COLUMNS + 0.5) * CELL, tops[i // COLUMNS]) for i in range(len(tokens))]
    _draw_choices(ax, tokens, routing, at)
    _draw_greys(ax, routing, tops)
    _draw_loads(style.add_axes(figure, LEFT, 0.42, 6.6, BARS - 0.72), routing, capacity)
    _draw_key(figure, title or "Where the tokens go", blackest(routing))
    return style.finding(figure, routing_finding(routing, capacity))


def routing_finding(routing: Routing, capacity: int | None) -> str:
    """How many choices are dropped, and which expert is the fullest."""
    counts = routing.counts.tolist()
    total, most = sum(counts), max(counts)
    room = "without a limit" if capacity is None else f"with room for {capacity} in each expert"
    return (
        f"{routing.num_dropped} of {total} choices are dropped ({routing.num_dropped / total:.0%}) "
        f"{room}; the fullest of {len(counts)} experts is {counts.index(most)}, with {most}: "
        f"{most * len(counts) / total:.2g} times its share."
    )


def _draw_choices(ax: Axes, tokens: Sequence[str], routing: Routing, at: list) -> None:
    """Write each character, and under it a box for each choice; hatch what is dropped."""
    boxes: dict[tuple[int, bool], list] = {}
    marks, written = [], {True: [], False: []}
    high = CHOICE / routing.experts.size(1)
    pairs = zip(tokens, routing.experts.tolist(), routing.kept.tolist(), at, strict=True)
    for token, experts, kept, (x, y) in pairs:
        written[any(kept)].append((SHOWN.get(token, token), (x, y)))
        for place, (expert, stays) in enumerate(zip(experts, kept, strict=True)):
            middle = y - 0.14 - (place + 0.5) * high
            box = _box(x, middle, CELL / 2 - 0.006, high / 2 - 0.006)
            boxes.setdefault((expert, stays), []).append(box)
            marks.append((str(expert), (x, middle)))
    for (expert, stays), drawn in sorted(boxes.items()):
        gid = f"expert {expert}" if stays else f"dropped by {expert}"
        hatched = {"hatch": "////", "edgecolors": PALE, "linewidths": 0.5}
        look = {"linewidths": 0} if stays else hatched
        add_boxes(ax, gid, drawn, expert_colour(expert) if stays else style.PAPER, **look)
    add_labels(ax, "experts", *zip(*marks, strict=True), style.INK, 7.0)
    for found, gid, ink in ((True, "characters", style.INK), (False, "lost", LOST)):
        if written[found]:
            add_labels(ax, gid, *zip(*written[found], strict=True), ink, 10.5)


def _draw_greys(ax: Axes, routing: Routing, tops: list[float]) -> None:
    """Draw what the gate said about each character, under its choices: a row for each expert."""
    seen = numbers(routing.probabilities).T  # (experts, tokens)
    across, up = ax.get_xlim(), ax.get_ylim()
    names, parts = [], []
    for line, top in enumerate(tops):
        part = seen[:, line * COLUMNS : (line + 1) * COLUMNS]
        high = top - 0.2 - CHOICE
        sides = (LEFT, LEFT + CELL * part.shape[1], high - HEAT, high)
        look = {"cmap": GREYS, "vmin": 0, "vmax": blackest(routing), "interpolation": "none"}
        ax.imshow(part, extent=sides, gid=f"probabilities {line}", aspect="auto", **look)
        frame = [_box((sides[0] + sides[1]) / 2, high - HEAT / 2, (sides[1] - LEFT) / 2, HEAT / 2)]
        add_boxes(ax, "frame", frame, "none", edgecolors=style.MUTED, linewidths=0.6)
        rows = [high - HEAT * (e + 0.5) / len(seen) for e in range(len(seen))]
        names += [(str(e), (LEFT - 0.08, row)) for e, row in enumerate(rows) if len(seen) <= 8]
        parts += [("choice", (0.42, top - 0.14 - CHOICE / 2)), ("gate", (0.42, high - HEAT / 2))]
    ax.set_xlim(across)
    ax.set_ylim(up)
    if names:
        add_labels(ax, "rows", *zip(*names, strict=True), style.MUTED, 6.0)
    add_labels(ax, "parts", *zip(*parts, strict=True), style.MUTED, 8.5)


def _draw_loads(ax: Axes, routing: Routing, capacity: int | None) -> None:
    """Draw the choices of each expert as a bar, those that found no room hatched."""
    counts = routing.counts.tolist()
    kept = np.bincount(numbers(routing.experts[routing.kept]).astype(int), minlength=len(counts))
    even = sum(counts) / len(counts)
    end = 1.16 * max([*counts, even, capacity or 0])
    texts, at = [], []
    for expert, (count, stay) in enumerate(zip(counts, kept.tolist(), strict=True)):
        bar = [(0, expert - 0.36), (0, expert + 0.36), (stay, expert + 0.36), (stay, expert - 0.36)]
        add_boxes(ax, f"kept {expert}", [bar], expert_colour(expert), linewidths=0)
        rest = [(stay if x == 0 else count, y) for x, y in bar]
        look = {"hatch": "////", "edgecolors": style.ACCENT}
        add_boxes(ax, f"lost {expert}", [rest] * (count > stay), style.PAPER, **look)
        texts.append(f"{count}, {count - stay} dropped" if count > stay else str(count))
        at.append((count + end * (0.009 + 0.0052 * len(texts[-1])), expert))
    add_labels(ax, "counts", texts, at, style.INK, 8.0 if len(counts) <= 8 else 6.0)
    with style.styled():
        ax.axvline(even, color=style.MUTED, linestyle=":", linewidth=1.4, gid="even", zorder=4)
        note = {"xycoords": ("data", "axes fraction"), "ha": "center", "fontsize": 8.5}
        ax.annotate(f"even share {even:.3g}", (even, -0.17), color=style.MUTED, **note)
        if capacity is not None:
            look = {"color": style.ACCENT, "linestyle": "--", "linewidth": 1.4, "zorder": 4}
            ax.axvline(capacity, gid="capacity", **look)
            ax.annotate(f"capacity {capacity}", (capacity, 1.03), color=style.ACCENT, **note)
        ax.set_yticks(range(len(counts)), [str(expert) for expert in range(len(counts))])
        ax.set_ylabel("expert")
        ax.set_xlim(0, end)
        ax.set_ylim(len(counts) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0, labelsize=9 if len(counts) <= 8 else 6)
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)


def _draw_key(figure: Figure, title: str, black: float) -> None:
    """Write the title, and at the right of the bars what a hatch and a grey say."""
    height = figure.get_size_inches()[1]
    with style.styled():
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.26 / height, title, **look)
        told = ("grey, hatched: dropped", "gate: probability of an expert")
        for text, y in zip(told, (0.98, 0.68), strict=True):
            figure.text(0.79, y / height, text, color=style.INK, fontsize=8.5, va="center")
    ramp = style.add_axes(figure, 7.9, 0.42, 1.4, 0.13)
    with style.styled():
        ramp.imshow([np.linspace(0, 1, 32)], cmap=GREYS, aspect="auto", extent=(0, black, 0, 1))
        ramp.set_xticks([0, black], ["0", f"{black:.1f}"])
        ramp.set_yticks([])


def blackest(routing: Routing) -> float:
    """The probability that is drawn black: the largest of all, rounded up to a tenth."""
    return float(np.ceil(numbers(routing.probabilities).max() * 10 - 1e-6) / 10)


def numbers(values: Any) -> np.ndarray:
    """A tensor (with a gradient or not), array or list as an array of floats."""
    return np.array(values.tolist() if hasattr(values, "tolist") else values, dtype=float)


def _box(x: float, y: float, half_width: float, half_height: float) -> list[tuple[float, float]]:
    left, right, low, high = x - half_width, x + half_width, y - half_height, y + half_height
    return [(left, low), (left, high), (right, high), (right, low)]
