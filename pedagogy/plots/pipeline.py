"""Pictures of pipeline schedules: the house figure of a simulation, its bubbles, its versions.

A simulation is anything with the attributes of `pedagogy.pipeline.Simulation`: `events()`, `start`
and `end` (mappings of actions), `layout.chunks` by rank, `in_flight(rank)`, `makespan`,
`bubble_fraction`, `peak_in_flight`. Plots do not import it; they draw what it says.

A bubble's cause is drawn as what it is: the empty span is outlined, so is the action that it waits
for, and a line leads from the end of the one to the end of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import BOTTOM, FLOOR, TOP, add_boxes, chunks_of
from pedagogy.plots.timeline import Panel, timeline_figure

FORWARD_IS_1 = "time (forward of one micro-batch on one rank = 1)"
IN_FLIGHT = "micro-batches in flight"
CHUNKS_IN_FLIGHT = "micro-batch chunks in flight"


class Block(NamedTuple):
    """An event of a schedule that also knows which of its rank's chunks it belongs to."""

    rank: int
    kind: str
    name: str
    start: float
    end: float
    nbytes: int = 0
    peers: tuple[int, ...] = ()
    chunk: int = 0


def schedule_blocks(simulation: Any) -> list[Any]:
    """Return the events of a simulation, those that are actions with their chunk."""
    events = simulation.events()
    if max(simulation.layout.chunks) == 1:
        return events
    actions = iter(simulation.start)
    paired = [(e, None if e.kind == "send" else next(actions)) for e in events]
    stages: dict[int, set[int]] = {}
    for event, action in paired:
        if action is not None:
            stages.setdefault(event.rank, set()).add(action.stage)
    place = {
        (rank, stage): i for rank, held in stages.items() for i, stage in enumerate(sorted(held))
    }
    return [
        event if action is None else Block(*event[:7], place[event.rank, action.stage])
        for event, action in paired
    ]


def default_facts(simulation: Any) -> list[str]:
    """Return what matters in a schedule: makespan, bubble with its denominator, peak."""
    peak = max(simulation.peak_in_flight)
    return [
        f"makespan {float(simulation.makespan):.4g}",
        f"bubble_fraction {float(simulation.bubble_fraction):.3f} of the total",
        f"peak {peak} in flight",
    ]


def schedule_panel(
    simulation: Any,
    title: str,
    facts: Sequence[str] | None = None,
    measured: Sequence[Any] = (),
    memory: bool = True,
) -> Panel:
    """Return the panel of a schedule: blocks, title line, and what each rank has in flight.

    facts: None for `default_facts`. measured: events of a real run of the same schedule, in the
    simulation's unit of time.
    """
    facts = default_facts(simulation) if facts is None else facts
    ranks = range(len(simulation.peak_in_flight))
    curves = {rank: simulation.in_flight(rank) for rank in ranks} if memory else None
    return Panel(schedule_blocks(simulation), title, facts, measured, curves)


def schedule_figure(
    simulations: Mapping[str, Any],
    finding: str,
    *,
    memory: bool = True,
    time_label: str = FORWARD_IS_1,
    **options: Any,
) -> Figure:
    """Return one panel for each {title: simulation}, over one time axis and one memory scale.

    options: those of `timeline_figure`.

    Raises: ValueError if there is no simulation.
    """
    panels = [schedule_panel(sim, title, memory=memory) for title, sim in simulations.items()]
    chunked = any(chunks_of(panel.events) > 1 for panel in panels)
    options = {"memory_label": CHUNKS_IN_FLIGHT if chunked else IN_FLIGHT} | options
    return timeline_figure(panels, finding, time_label=time_label, **options)


def mark_wait(ax: Axes, wait: Any, span: tuple[float, float], rank: int) -> None:
    """Outline a bubble, and the action that it waits for: its (start, end), and its rank.

    wait: `pedagogy.pipeline.Wait`, with rank, start and end.
    """
    floor = FLOOR if any(c.get_gid() == "send" for c in ax.collections) else BOTTOM
    look = {"edgecolor": style.ACCENT, "linewidth": 2.0, "zorder": 8}
    for gid, (start, end), lane, more in (
        ("bubble", (wait.start, wait.end), wait.rank, {"facecolor": "#FBE9DD", "hatch": "//"}),
        ("cause", span, rank, {"facecolor": "none"}),
    ):
        corner = (start, lane + TOP)
        ax.add_patch(Rectangle(corner, end - start, floor - TOP, gid=gid, **look, **more))
    line = {"color": style.ACCENT, "linewidth": 1.6, "zorder": 9, "gid": "waits for"}
    middle = (TOP + floor) / 2
    ax.plot([span[1], wait.end], [rank + middle, wait.rank + middle], marker="o", ms=4, **line)


def hide_after(figure: Figure, now: float, num_ranks: int) -> None:
    """Cover what a schedule's figure shows after `now`, and leave its lanes empty."""
    for ax in figure.axes:
        end, (low, high) = ax.get_xlim()[1], ax.get_ylim()
        look = {"facecolor": style.PAPER, "zorder": 10, "gid": "curtain"}
        ax.add_patch(Rectangle((now, high), end - now, low - high, **look))
        ax.axvline(now, color=style.ACCENT, linewidth=1.2, zorder=11, gid="now")
        for artist in ax.artists:
            artist.set_visible(artist.get_gid() != "peaks")
    lanes = [_corners(rank, now, end, TOP, BOTTOM) for rank in range(num_ranks)]
    add_boxes(figure.axes[0], "hidden", lanes, style.LANE, zorder=10, linewidths=0)


def versions_figure(
    simulation: Any,
    used: Mapping[tuple[int, int], tuple[int, int]],
    kept: Mapping[int, Sequence[tuple[float, int]]],
    finding: str,
    *,
    title: str = "",
    facts: Sequence[str] = (),
    chosen: int | None = None,
    **options: Any,
) -> Figure:
    """Return the house figure with weight versions for numbers: same hue, same weights.

    used: (stage, minibatch) -> (version in F, version in B). kept: rank -> curve of how many
    versions it keeps. The small numbers are the minibatches; the blocks of `chosen` are framed,
    and so are, with a bar, backwards with other weights than their forward's.
    """
    blocks, small, frames, mixed = [], [], [], []
    for event, action in zip(simulation.events(), simulation.start, strict=True):
        versions = used[action.stage, action.microbatch]
        version = "" if event.kind == "U" else str(versions[event.kind == "B"])
        blocks.append(Block(event.rank, event.kind, version, event.start, event.end))
        small.append((event, action.microbatch))
        if event.kind == "B" and versions[0] != versions[1]:
            mixed.append(event)
        if event.kind != "U" and action.microbatch == chosen:
            frames.append(event)
    panel = Panel(blocks, title, facts, memory=kept)
    options = {"memory_label": "weight versions kept", "time_label": FORWARD_IS_1} | options
    counted = "weight version, below it: minibatch"
    figure = timeline_figure(panel, finding, counted=counted, **options)
    with style.styled():
        _name_microbatches(figure.axes[0], small)
        bars = [_corners(e.rank, e.start, e.end, BOTTOM - 0.02, BOTTOM + 0.09) for e in mixed]
        add_boxes(figure.axes[0], "mixed", bars, style.ACCENT, zorder=8)
        outlines = [_corners(e.rank, e.start, e.end, TOP, BOTTOM) for e in frames]
        add_boxes(
            figure.axes[0], "chosen", outlines, "none", edgecolors=style.INK, linewidths=2, zorder=8
        )
    return figure


def _corners(rank: int, start: float, end: float, low: float, high: float) -> list:
    return [(start, rank + low), (start, rank + high), (end, rank + high), (end, rank + low)]


def _name_microbatches(ax: Axes, events: Sequence[tuple[Any, int]]) -> None:
    """Write the number of each block's micro-batch, small, at its lower edge."""
    for kind, ink in (("F", style.INK), ("B", style.PAPER)):
        mine = [(event, k) for event, k in events if event.kind == kind]
        at = [((e.start + e.end) / 2, e.rank + BOTTOM - 0.12) for e, _ in mine]
        add_labels(ax, f"{kind} micro-batches", [str(k) for _, k in mine], at, ink, 6.0)
