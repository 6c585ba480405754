"""Swap, recompute, or both: what the device computes and what the link carries meanwhile.

An iteration has hundreds of operations, far too many to see. Neighbours of one layer become one
block with the layer's number: forward, backward, and, hatched before a layer's backward, what
forward does once more for it. Copies have the number of their tensor's layer. Lanes, thin measured
rows and the stall in the title line are those of `offload.overlap_figure`. (What was measured says
nothing of a stall: waiting is inside its blocks.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.offload import COMPUTE, overlap_figure, stall_of
from pedagogy.ranks import Event

NEXT = 1e-9  # seconds: what lies closer follows at once


def layer_of(name: str) -> str:
    """The first number in the name of a place: "blocks.3.attention softmax" is "3"; or ""."""
    place = name.rsplit(" ", 1)[0] if " " in name else ""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", place)
    return found.group(1) if found else ""


def merged(profile: Any, prediction: Any) -> list[Any]:
    """The events of a prediction by layer: what follows without a gap in one layer is one.

    Backward of a layer is what backward asked of its tensors; what is made again meanwhile comes
    as one block before it.
    profile, prediction: of `recompute`'s `profile` and `predict`.
    """
    compute, copies = [], []
    for event in prediction.events:
        if event.rank != COMPUTE:
            copies.append(event._replace(name=layer_of(event.name)))
        elif event.end > event.start:
            compute.append(event._replace(name=_layer(profile, event)))
    runs: list[list[Any]] = []
    for event in sorted(compute, key=lambda event: event.start):
        last = runs[-1][-1] if runs else None
        alike = last and (last.kind == "F", last.name) == (event.kind == "F", event.name)
        if alike and event.start - last.end < NEXT:
            runs[-1].append(event)
        else:
            runs.append([event])
    blocks = [block for run in runs for block in _blocks(run)]
    return sorted([*blocks, *copies], key=lambda event: event.start)


def _blocks(run: Sequence[Any]) -> list[Any]:
    """One block for each kind, recomputation first, together as long as the run."""
    found, clock = [], run[0].start
    for kind in "FRB":
        seconds = sum(event.end - event.start for event in run if event.kind == kind)
        if seconds:
            found.append(run[0]._replace(kind=kind, start=clock, end=clock + seconds))
            clock += seconds
    return found


def _layer(profile: Any, event: Any) -> str:
    if event.kind != "B":
        return layer_of(event.name)
    asked = max(0, int(event.name) - 1)  # the span up to an ask is the work of the one before
    return layer_of(profile.name(profile.asked[asked]))


def as_measured(copies: Sequence[Any], start: float, turn: float, end: float) -> list[Any]:
    """A run as events: one block of forward, one of backward, and the copies of a link's trace.

    start, turn, end: by the clock of the trace (`time.perf_counter`), before forward, between the
    two, after backward.
    **Raises** ValueError unless they follow each other.
    """
    if not start < turn < end:
        raise ValueError(f"forward from {start} to {turn}, backward to {end}: not in order")

    inside = [event for event in copies if event.rank != COMPUTE and start <= event.start < end]
    forward = Event(COMPUTE, "F", "", start, turn)
    return [forward, Event(COMPUTE, "B", "", turn, end), *inside]


def policies_timeline_figure(
    profile: Any,
    predictions: Mapping[str, Any],
    *,
    measured: Mapping[str, Sequence[Any]] | None = None,
    paced: bool = False,
    end: float | None = None,
) -> Figure:
    """Draw what was decided, one panel for each title, over one time axis; peaks in the titles.

    predictions: {title: `Decision.prediction`}. measured: by the same titles, `as_measured`.
    paced, end: as for `overlap_figure`. **Raises** as that.
    """
    titles = {
        title: f"{title}  ·  peak {style.bytes_text(prediction.peak)}"
        for title, prediction in predictions.items()
    }
    figure = overlap_figure(
        {titles[title]: merged(profile, one) for title, one in predictions.items()},
        measured={titles.get(title, title): events for title, events in (measured or {}).items()},
        paced=paced,
        end=end,
        measured_stall=False,
    )
    return style.finding(figure, _finding(predictions, measured or {}))


def _finding(predictions: Mapping[str, Any], measured: Mapping[str, Sequence[Any]]) -> str:
    told = []
    for title, one in predictions.items():
        text = (
            f"{title}: {style.seconds_text(one.seconds)}, of which "
            f"{style.seconds_text(one.extra_seconds)} forward once more and "
            f"{style.seconds_text(one.stall)} waiting, peak {style.bytes_text(one.peak)}"
        )
        if title in measured:
            text += f" (measured {style.seconds_text(stall_of(measured[title])[0])})"
        told.append(text)
    fastest = min(predictions, key=lambda title: predictions[title].seconds)
    return "; ".join(told) + f". The fastest is {fastest}."
