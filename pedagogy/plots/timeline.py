"""The house figure: what every rank does over time, above what it holds in memory.

How to read it
--------------
- One lane per rank. A block is a span of compute; an empty lane is a bubble: the rank waits.
- Forward is light; backward is dark and wears a white bar. Both carry the number of their
  micro-batch, and the hue repeats the number. Where a backward is split, its half for the weights
  is pale with a dark bar. A forward that is recomputed is hatched; an update is a vertical mark.
- Where a rank holds several chunks of a model, the blocks of later chunks lie lower.
- Communication lies in the lower part of the lane, with a colour and a hatch for each kind, so
  that what runs at the same time as compute is seen under it. A send is a line that ends in a dot
  at its receiver.
- A thin row under a lane is the same lane again as it was *measured*, drawn alike.
- The strips below share the time axis and one scale. A dot marks the peak of a rank, and its
  value stands at the right.
- The figures that matter stand in the title line.

A picture is made of `Panel`s over one time axis and one memory scale, so that two schedules can
be compared at a glance. It draws from events alone: it does not know which technique made them,
and nothing in a technique knows that it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.labels import name_rows
from pedagogy.plots.lanes import draw_blocks
from pedagogy.plots.legend import draw_legend, legend_inches, memory_legend, timeline_legend
from pedagogy.plots.strips import Curve, draw_memory_strips, kinds_of, peak_of
from pedagogy.plots.time_axis import draw_grid, name_times

# Inches: beside the lanes (names of ranks, values of peaks), above them, below them.
LEFT, RIGHT, TITLE, STRIPS_LABEL, GAP, FOOT = 0.75, 0.95, 0.36, 0.3, 0.2, 0.5


class Panel(NamedTuple):
    """One timeline: its events, and what else belongs to them.

    events: anything with rank, kind, name, start, end, nbytes, peers (`pedagogy.ranks.Event`).
    facts: short texts for the right end of the title line, e.g. "bubble_fraction 0.273".
    measured: events of a real run, drawn as thin rows under the lanes.
    memory: rank -> curve, a list of (time, value), each value holding until the next; a value is
    a number, or a dict from a kind of memory to bytes.
    """

    events: Sequence[Any]
    title: str = ""
    facts: Sequence[str] = ()
    measured: Sequence[Any] = ()
    memory: Mapping[int, Curve] | None = None


def end_of(panels: Sequence[Panel]) -> float:
    """Return when the last event of any panel ends."""
    return max(event.end for panel in panels for event in [*panel.events, *panel.measured])


def _ranks_of(panel: Panel) -> list[int]:
    return sorted({event.rank for event in [*panel.events, *panel.measured]})


class Rows(NamedTuple):
    """Inches from rank to rank, of the lanes and of the strips; None: as suits the panel."""

    lane: float | None = None
    strip: float | None = None

    def of(self, panel: Panel) -> tuple[float, float]:
        """Return the heights of a panel's lanes and of its memory strips, in inches."""
        ranks = _ranks_of(panel)
        lanes = len(ranks) * (self.lane or (0.46 if len(ranks) <= 4 else 0.38))
        if not panel.memory:
            return lanes, 0.0
        strip = self.strip or (0.42 if kinds_of(panel.memory.values()) else 0.3)
        return lanes, (max(panel.memory) - min(panel.memory) + 1) * strip


class _Frame(NamedTuple):
    """What all panels of one figure share."""

    end: float
    scale: float
    time_label: str | None
    memory_label: str
    number: Callable[[float], str]
    paced: bool
    rows: Rows


def _draw_title(figure: Figure, panel: Panel, top: float, paced: bool) -> None:
    width, height = figure.get_size_inches()
    look = {"va": "bottom", "gid": "title"}
    figure.text(LEFT / width, top / height, panel.title, fontsize=12, fontweight="bold", **look)
    facts = (*panel.facts, "paced") if paced else panel.facts
    figure.text(
        1 - RIGHT / width,
        top / height,
        "  ·  ".join(facts),
        fontsize=10,
        color=style.MUTED,
        ha="right",
        **look,
    )


def _draw_panel(figure: Figure, panel: Panel, frame: _Frame, top: float, is_last: bool) -> float:
    """Draw one panel below `top` (inches) and return where the next one starts."""
    lanes_height, strips_height = frame.rows.of(panel)
    width = style.WIDTH - LEFT - RIGHT
    _draw_title(figure, panel, top - TITLE + 0.06, frame.paced)
    top -= TITLE + lanes_height
    lanes = style.add_axes(figure, LEFT, top, width, lanes_height)
    ranks = draw_blocks(lanes, panel.events, panel.measured, frame.end, width * style.DPI)
    name_rows(lanes, ranks)
    lowest = lanes
    if panel.memory:
        figure.text(
            LEFT / style.WIDTH,
            (top - 0.2) / figure.get_size_inches()[1],
            frame.memory_label,
            fontsize=9,
            color=style.MUTED,
        )
        corner = (style.WIDTH - RIGHT, top - 0.07)
        draw_legend(figure, memory_legend([panel]), "upper right", corner)
        top -= STRIPS_LABEL + strips_height
        lowest = style.add_axes(figure, LEFT, top, width, strips_height, sharex=lanes)
        draw_memory_strips(lowest, panel.memory, frame.end, frame.number, frame.scale)
    draw_grid([lanes] if lowest is lanes else [lanes, lowest])
    if is_last:
        name_times(lowest, frame.time_label)
    return top - GAP


def timeline_figure(
    panels: Panel | Sequence[Panel],
    finding: str,
    *,
    time_label: str | None = None,
    memory_label: str = "activations held, in micro-batches",
    number: Callable[[float], str] = "{:g}".format,
    paced: bool = False,
    end: float | None = None,
    height: float | None = None,
    rows: Rows = Rows(),  # noqa: B008
    counted: str = "micro-batch",
) -> Figure:
    """Return the house figure of one panel, or of several over one time axis and memory scale.

    finding: the sentence that the picture shows; it becomes the figure's label.
    time_label: None for seconds; otherwise what the events' time counts.
    number: writes a peak (`style.bytes_text` where memory is in bytes).
    paced: compute was padded to a fixed duration, and the picture says so.
    end, height, rows: fix the length of the time axis, the height in inches and the rows of it,
    for an explorer.
    counted: what the numbers in the blocks count.

    Raises: ValueError if a panel holds no event.
    """
    panels = [panels] if isinstance(panels, Panel) else list(panels)
    if not panels or any(not [*panel.events, *panel.measured] for panel in panels):
        raise ValueError("a timeline needs at least one event in each panel, got a panel with 0")
    end = end or end_of(panels) * 1.002
    scale = max((peak_of(c)[1] for p in panels for c in (p.memory or {}).values()), default=1.0)
    frame = _Frame(end, scale, time_label, memory_label, number, paced, rows)
    body = sum(TITLE + sum(rows.of(p)) + (STRIPS_LABEL if p.memory else 0) for p in panels)
    entries = timeline_legend(panels, counted)
    legend = legend_inches(entries)
    needed = body + GAP * (len(panels) - 1) + FOOT + 0.06 + legend
    figure = style.new_figure(style.WIDTH, height or needed)
    with style.styled():
        top = figure.get_size_inches()[1] - 0.06
        draw_legend(figure, entries, "upper left", (LEFT, top))
        top -= legend
        for panel in panels:
            top = _draw_panel(figure, panel, frame, top, panel is panels[-1])
    return style.finding(figure, finding)
