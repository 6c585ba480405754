"""What overlaps when a device offloads: its compute, and the copies of both directions.

How to read it
--------------
One device has three lanes: what it computes, what is copied to it, what it copies to the host. The
number in a block is its layer. Where the first lane is empty compute waits: that is the stall, and
the title line says how long it is. A thin row under a lane is the same lane as it was measured.

Several depths of the prefetch are panels over one time axis, so that the shortest is seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels, width_points
from pedagogy.plots.lanes import (
    MEASURED,
    add_boxes,
    draw_compute,
    draw_empty_lanes,
    group_by_look,
    microbatch_of,
    write_names,
)
from pedagogy.plots.legend import draw_legend, legend_inches
from pedagogy.plots.time_axis import draw_grid, name_times

COMPUTE, TO_DEVICE, TO_HOST = range(3)  # lanes
LANES = ("compute", "to device", "to host")
COPIES = {TO_DEVICE: ("#E8E2F0", ""), TO_HOST: ("#8A6100", "//")}
LEFT, RIGHT, TITLE, LANE, GAP, FOOT = 0.95, 0.2, 0.34, 0.36, 0.14, 0.5  # inches
TOP, BOTTOM = -0.42, 0.34  # of a lane, as in `lanes`
NEXT = 0.002  # of the time axis: copies of one layer that lie closer are drawn as one


def as_step(events: Sequence[Any], layers: int) -> list[Any]:
    """Name 2 L uses in a row as a step: forward 0, 1, ..., L-1, then backward L-1, ..., 1, 0.

    For what `simulate_offload` makes of lists of 2 L seconds.
    **Raises** ValueError for a use beyond them.
    """
    named = []
    for event in events:
        use = int(event.name)
        if use >= 2 * layers:
            raise ValueError(f"use {use} of a step of {layers} layers: there are {2 * layers}")
        back = use >= layers
        kind = "B" if back and event.rank == COMPUTE else event.kind
        layer = 2 * layers - 1 - use if back else use
        named.append(event._replace(kind=kind, name=str(layer)))
    return named


def stall_of(events: Sequence[Any]) -> tuple[float, float]:
    """Seconds from the first event to the end of the last compute, and how long compute waits."""
    spans = [(event.start, event.end) for event in events if event.rank == COMPUTE]
    whole = max(end for _, end in spans) - min(event.start for event in events)
    return whole, whole - sum(end - start for start, end in spans)


def overlap_figure(
    runs: Mapping[str, Sequence[Any]],
    *,
    measured: Mapping[str, Sequence[Any]] | None = None,
    paced: bool = False,
    end: float | None = None,
    measured_stall: bool = True,
) -> Figure:
    """Draw what overlaps, one panel for each title: events on lanes 0 compute, 1 and 2 copies.

    runs: {title: events}; `as_step(simulate_offload(...).events, layers)`, or a trace. measured: by
    the same titles, `OffloadedModule.trace`. Clocks may start anywhere. paced: compute was padded
    to a fixed duration, and the picture says so. end: fixes the time axis. measured_stall: False
    where what was measured does not say when compute waits.
    **Raises** ValueError for no run, a run without compute, or measured titles that no run has.
    """
    runs = {title: _from_zero(trace) for title, trace in runs.items()}
    measured = {title: _from_zero(trace) for title, trace in (measured or {}).items()}
    _check(runs, measured)
    end = end or 1.01 * max(e.end for one in (*runs.values(), *measured.values()) for e in one)
    entries = _legend(runs, measured)
    lanes = {title: _lanes_of(runs[title], measured.get(title, ())) for title in runs}
    body = sum(TITLE + LANE * len(lanes[title]) for title in runs) + GAP * (len(runs) - 1)
    figure = style.new_figure(style.WIDTH, body + FOOT + legend_inches(entries) + 0.06)
    with style.styled():
        top = figure.get_size_inches()[1] - 0.06
        draw_legend(figure, entries, "upper left", (0.15, top))
        top -= legend_inches(entries)
        for title, events in runs.items():
            thin = measured.get(title, ())
            top -= TITLE + LANE * len(lanes[title])
            height = LANE * len(lanes[title])
            ax = style.add_axes(figure, LEFT, top, style.WIDTH - LEFT - RIGHT, height)
            _write_title(figure, top + height, title, _facts(events, thin, paced, measured_stall))
            _draw(ax, events, thin, lanes[title], end)
            top -= GAP
        name_times(ax, None)
    return style.finding(figure, _finding(runs, measured))


def _check(runs: Mapping[str, Sequence[Any]], measured: Mapping[str, Sequence[Any]]) -> None:
    for title, events in {**runs, **measured}.items():
        if not any(event.rank == COMPUTE for event in events):
            raise ValueError(f"{title!r} has no compute (lane {COMPUTE}) among its events")
    if not runs or set(measured) - set(runs):
        raise ValueError(f"measured {sorted(set(measured) - set(runs))}, but runs {sorted(runs)}")


def _from_zero(trace: Sequence[Any]) -> list[Any]:
    """The trace on a clock that starts with it."""
    first = min((event.start for event in trace), default=0.0)
    return [event._replace(start=event.start - first, end=event.end - first) for event in trace]


def _lanes_of(*traces: Sequence[Any]) -> list[int]:
    """Compute and copies to the device always; the third where anything is copied to the host."""
    return sorted({COMPUTE, TO_DEVICE, *(event.rank for trace in traces for event in trace)})


def _joined(events: Sequence[Any], lane: int, apart: float) -> list[Any]:
    """A layer's parameters are copied one by one: neighbours of one name become one block."""
    blocks: list[Any] = []
    for event in sorted((e for e in events if e.rank == lane), key=lambda e: e.start):
        last = blocks[-1] if blocks else None
        if last and last.name == event.name and event.start - last.end < apart:
            blocks[-1] = last._replace(end=max(last.end, event.end))
        else:
            blocks.append(event)
    return blocks


def _draw(
    ax: Axes, events: Sequence[Any], thin: Sequence[Any], lanes: Sequence[int], end: float
) -> None:
    """Draw lanes with what was predicted, and under each what was measured."""
    draw_empty_lanes(ax, lanes, end)
    pixels = (style.WIDTH - LEFT - RIGHT) * style.DPI / end
    compute = group_by_look([e for e in events if e.rank == COMPUTE])
    draw_compute(ax, compute, TOP, BOTTOM, "")
    write_names(ax, compute, pixels, BOTTOM)
    draw_compute(ax, group_by_look([e for e in thin if e.rank == COMPUTE]), *MEASURED, " measured")
    for lane in lanes[1:]:
        colour, hatch = COPIES[lane]
        look = {"edgecolors": style.INK if lane == TO_DEVICE else style.PAPER, "linewidths": 0.6}
        blocks = _joined(events, lane, NEXT * end)
        add_boxes(ax, LANES[lane], [_box(e, TOP, BOTTOM) for e in blocks], colour, hatch, **look)
        _number(ax, LANES[lane] + " names", blocks, pixels)
        boxes = [_box(e, *MEASURED) for e in _joined(thin, lane, NEXT * end)]
        add_boxes(ax, LANES[lane] + " measured", boxes, _thin_colour(lane), linewidths=0)
    ax.set_xlim(0, end)
    ax.set_ylim(max(lanes) + 0.5, -0.5)
    _name_lanes(ax, lanes)
    draw_grid([ax])


def _number(ax: Axes, gid: str, blocks: Sequence[Any], pixels: float) -> None:
    """Write the layer's number into the blocks that are wide enough for it."""
    numbers = [(event, microbatch_of(event)) for event in blocks]
    texts = [(event, str(number)) for event, number in numbers if number is not None]
    points = pixels * 72 / style.DPI  # for a second
    kept = [(e, text) for e, text in texts if (e.end - e.start) * points > width_points(text, 9)]
    at = [((e.start + e.end) / 2, e.rank + (TOP + BOTTOM) / 2) for e, _ in kept]
    add_labels(ax, gid, [text for _, text in kept], at, style.INK)


def _thin_colour(lane: int) -> str:
    return "#5B3A8C" if lane == TO_DEVICE else COPIES[lane][0]


def _box(event: Any, low: float, high: float) -> list[tuple[float, float]]:
    y0, y1 = event.rank + low, event.rank + high
    return [(event.start, y0), (event.start, y1), (event.end, y1), (event.end, y0)]


def _name_lanes(ax: Axes, lanes: Sequence[int]) -> None:
    inches = ax.get_figure().get_size_inches()[0] * ax.get_position().width
    rooms = [width_points(LANES[lane], 8.3) / 72 for lane in lanes]
    at = [(-(0.07 + room / 2) / inches, lane) for room, lane in zip(rooms, lanes, strict=True)]
    across = ax.get_yaxis_transform()
    add_labels(ax, "lanes", [LANES[lane] for lane in lanes], at, style.INK, 9.0, transform=across)


def _write_title(figure: Figure, above: float, title: str, facts: str) -> None:
    width, height = figure.get_size_inches()
    y, look = (above + 0.07) / height, {"va": "bottom", "gid": "title"}
    figure.text(LEFT / width, y, title, fontsize=11, fontweight="bold", **look)
    muted = {"color": style.MUTED, "ha": "right"}
    figure.text(1 - RIGHT / width, y, facts, fontsize=10, **muted, **look)


def _stall_text(events: Sequence[Any]) -> str:
    whole, stall = stall_of(events)
    return f"stall {style.seconds_text(stall)}, {stall / whole:.0%}"


def _facts(events: Sequence[Any], thin: Sequence[Any], paced: bool, stall: bool) -> str:
    facts = [style.seconds_text(stall_of(events)[0]), _stall_text(events)]
    if thin:
        waiting = f", {_stall_text(thin)}" if stall else ""
        facts.append(f"measured {style.seconds_text(stall_of(thin)[0])}{waiting}")
    return "  ·  ".join([*facts, *["paced"] * paced])


def _legend(runs: Mapping[str, Sequence[Any]], measured: Mapping[str, Sequence[Any]]) -> list:
    every = [event for one in (*runs.values(), *measured.values()) for event in one]
    kinds, lanes = {event.kind for event in every}, {event.rank for event in every}
    entries = [(Patch(facecolor=style.FORWARD[0]), "forward (number: layer)")]
    if kinds & {"B", "backward"}:
        entries.append((Patch(facecolor=style.BACKWARD[0]), "backward (white bar)"))
    if "R" in kinds:
        patch = Patch(facecolor=style.FORWARD[0], hatch="////", edgecolor=style.PAPER)
        entries.append((patch, "forward once more"))
    for lane in sorted(lanes & set(COPIES)):
        colour, hatch = COPIES[lane]
        edge = style.INK if lane == TO_DEVICE else style.PAPER
        entries.append(
            (Patch(facecolor=colour, hatch=hatch, edgecolor=edge), f"copy {LANES[lane]}")
        )
    entries.append((Patch(facecolor=style.LANE), "empty: idle"))
    if measured:
        entries.append((Rectangle((0, 0), 1, 0.3, facecolor=style.BACKWARD[0]), "thin: measured"))
    return entries


def _finding(runs: Mapping[str, Sequence[Any]], measured: Mapping[str, Sequence[Any]]) -> str:
    told = []
    for title, events in runs.items():
        text = f"{title}: {style.seconds_text(stall_of(events)[0])}, {_stall_text(events)}"
        if title in measured:
            text += f" (measured {style.seconds_text(stall_of(measured[title])[0])})"
        told.append(text)
    return "; ".join(told) + "."
