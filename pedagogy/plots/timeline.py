"""The house figure: what every rank does over time, above what it holds in memory.

How to read it
--------------
- One lane per rank. A block is a span of compute; an empty lane is a bubble: the rank waits.
- Forward is light; backward is dark and wears a white bar. Both carry the number of their
  micro-batch, and the hue repeats the number.
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

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter

from pedagogy.plots import style
from pedagogy.plots.lanes import (
    OTHER,
    WAIT_INK,
    communication_looks,
    draw_lanes,
    group_by_look,
    microbatch_of,
)
from pedagogy.plots.strips import Curve, draw_memory_strips, kinds_of, peak_of

# Inches: beside the lanes (names of ranks, values of peaks), above them, below them.
LEFT, RIGHT, TITLE, STRIPS_LABEL, GAP, FOOT = 0.75, 0.95, 0.36, 0.3, 0.2, 0.5
LEGEND_COLUMNS = 7


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


def _lane_height(panel: Panel) -> float:
    return 0.46 if len(_ranks_of(panel)) <= 4 else 0.38


def _panel_heights(panel: Panel) -> tuple[float, float]:
    """Return the heights of a panel's lanes and of its memory strips, in inches."""
    lanes = len(_ranks_of(panel)) * _lane_height(panel)
    if not panel.memory:
        return lanes, 0.0
    strip = 0.42 if kinds_of(panel.memory.values()) else 0.3
    return lanes, (max(panel.memory) - min(panel.memory) + 1) * strip


def _legend_entries(panels: Sequence[Panel]) -> list[tuple[Any, str]]:
    """Return what the picture uses, and only that, as (handle, text)."""
    events = [event for panel in panels for event in panel.events]
    groups = group_by_look(events or [e for panel in panels for e in panel.measured])
    numbered = any(microbatch_of(e) is not None for e in groups.get("forward", ()))
    entries: list[tuple[Any, str]] = []
    if "forward" in groups:
        text = "forward (number: micro-batch)" if numbered else "forward"
        entries.append((Patch(facecolor=style.FORWARD[0]), text))
    if "backward" in groups:
        entries.append((Patch(facecolor=style.BACKWARD[0]), "backward (white bar)"))
    if "other" in groups:
        text = ", ".join(sorted({event.kind for event in groups["other"]}))
        entries.append((Patch(facecolor=OTHER), text))
    if "wait" in groups:
        entries.append((Patch(facecolor=style.PAPER, hatch="////", edgecolor=WAIT_INK), "wait"))
    for look in communication_looks(groups):
        colour, hatch = style.communication_look(look)
        entries.append((Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER), look))
    if "forward" in groups or "backward" in groups:
        text = "empty: idle" if "wait" in groups else "empty: the rank waits"
        entries.append((Patch(facecolor=style.LANE), text))
    if any(panel.measured and panel.events for panel in panels):
        entries.append((Rectangle((0, 0), 1, 0.3, facecolor=style.BACKWARD[0]), "thin: measured"))
    return entries


def memory_legend(panels: Sequence[Panel]) -> list[tuple[Any, str]]:
    """Return (handle, text) for each kind of memory that the strips hold."""
    entries = []
    for kind in kinds_of([c for panel in panels if panel.memory for c in panel.memory.values()]):
        colour, hatch = style.memory_look(kind)
        patch = Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER)
        entries.append((patch, kind.replace("_", " ")))
    return entries


class _Frame(NamedTuple):
    """What all panels of one figure share."""

    end: float
    scale: float
    time_label: str | None
    memory_label: str
    number: Callable[[float], str]
    paced: bool


def _draw_legend(figure: Figure, entries: list, corner: str, at: tuple[float, float]) -> None:
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
            ncol=LEGEND_COLUMNS,
            handletextpad=0.5,
            borderaxespad=0,
            borderpad=0,
            **look,
        )


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


def _label_time(ax: Axes, end: float, time_label: str | None) -> None:
    """Write the time axis; seconds become milliseconds where the whole lasts under a second."""
    factor, text = (1e3, "time (ms)") if end < 1.0 else (1.0, "time (s)")
    if time_label is not None:
        factor, text = 1.0, time_label
    ax.xaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time * factor:g}"))
    ax.tick_params(axis="x", length=3, labelbottom=True)
    ax.set_xlabel(text, color=style.MUTED, labelpad=2)


def _draw_panel(figure: Figure, panel: Panel, frame: _Frame, top: float, is_last: bool) -> float:
    """Draw one panel below `top` (inches) and return where the next one starts."""
    lanes_height, strips_height = _panel_heights(panel)
    width = style.WIDTH - LEFT - RIGHT
    _draw_title(figure, panel, top - TITLE + 0.06, frame.paced)
    top -= TITLE + lanes_height
    lanes = style.add_axes(figure, LEFT, top, width, lanes_height)
    draw_lanes(lanes, panel.events, panel.measured, frame.end, width * style.DPI)
    lanes.tick_params(labelbottom=False)
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
        _draw_legend(figure, memory_legend([panel]), "upper right", corner)
        top -= STRIPS_LABEL + strips_height
        lowest = style.add_axes(figure, LEFT, top, width, strips_height, sharex=lanes)
        draw_memory_strips(lowest, panel.memory, frame.end, frame.number, frame.scale)
    lanes.grid(axis="x", zorder=0)
    lowest.grid(axis="x", zorder=0)
    if is_last:
        _label_time(lowest, frame.end, frame.time_label)
    else:
        lowest.tick_params(labelbottom=False)
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
) -> Figure:
    """Return the house figure of one panel, or of several over one time axis and memory scale.

    finding: the sentence that the picture shows; it becomes the figure's label.
    time_label: None for seconds; otherwise what the events' time counts.
    number: writes a peak (`style.bytes_text` where memory is in bytes).
    paced: compute was padded to a fixed duration, and the picture says so.
    end, height: fix the length of the time axis and the height in inches, for an explorer.

    Raises: ValueError if a panel holds no event.
    """
    panels = [panels] if isinstance(panels, Panel) else list(panels)
    if not panels or any(not [*panel.events, *panel.measured] for panel in panels):
        raise ValueError("a timeline needs at least one event in each panel, got a panel with 0")
    end = end or end_of(panels) * 1.002
    scale = max((peak_of(c)[1] for p in panels for c in (p.memory or {}).values()), default=1.0)
    frame = _Frame(end, scale, time_label, memory_label, number, paced)
    body = sum(TITLE + sum(_panel_heights(p)) + (STRIPS_LABEL if p.memory else 0) for p in panels)
    entries = _legend_entries(panels)
    rows = -(-len(entries) // LEGEND_COLUMNS)
    needed = body + GAP * (len(panels) - 1) + FOOT + 0.06 + 0.22 * rows
    figure = style.new_figure(style.WIDTH, height or needed)
    with style.styled():
        top = figure.get_size_inches()[1] - 0.06
        _draw_legend(figure, entries, "upper left", (LEFT, top))
        top -= 0.22 * rows
        for panel in panels:
            top = _draw_panel(figure, panel, frame, top, panel is panels[-1])
    return style.finding(figure, finding)
