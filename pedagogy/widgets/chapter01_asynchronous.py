"""Explorer of chapter 01: a straggler, and three ways to live with it.

The timelines are those of `pedagogy.data_parallel.stragglers`, which decides as the servers of the
real runs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pedagogy.data_parallel.stragglers import (
    Simulation,
    simulate_asynchronous,
    simulate_backup_workers,
    simulate_synchronous,
)
from pedagogy.plots import style
from pedagogy.plots.lanes import BOTTOM as FLOOR
from pedagogy.plots.lanes import TOP, WAIT_INK, add_boxes, draw_lanes
from pedagogy.ranks import Event
from pedagogy.widgets.controls import choice
from pedagogy.widgets.explorer import Explorer, Try

END = 10.0  # units of time that are drawn
LONG = 120.0  # units over which rates are counted
HEIGHT, LEFT, RIGHT, BOTTOM = 5.6, 0.85, 0.2, 0.5
DROPPED = "#E3A6C8"
NO_BOUND = 99


def slowdowns(workers: int, slowdown: float) -> tuple[float, ...]:
    """Return the units a gradient takes on each worker: the last one is the straggler.

    The others differ by a hundredth, as no two workers are equally fast.
    """
    return (*(1 + 0.01 * worker for worker in range(workers - 1)), slowdown)


def simulations(
    workers: int, slowdown: float, backup_workers: int, staleness_bound: int, end: float
) -> dict[str, Simulation]:
    """Return the three ways by name; a bound of NO_BOUND is none."""
    units = slowdowns(workers, slowdown)
    backups = min(backup_workers, workers - 1)
    bound = None if staleness_bound == NO_BOUND else staleness_bound
    return {
        "synchronous": simulate_synchronous(units, end),
        f"first {workers - backups} of {workers}": simulate_backup_workers(units, backups, end),
        "asynchronous" + ("" if bound is None else f", bound {bound}"): simulate_asynchronous(
            units, bound, end
        ),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _facts(one: Simulation) -> str:
    staleness = _mean(one.staleness)
    return (
        f"updates {one.updates_per_unit(LONG):.2f}, gradients used "
        f"{one.gradients_per_unit(LONG):.2f} a unit  ·  staleness {staleness:.1f} (mean), "
        f"{max(one.staleness)} (max)"
    )


def render_stragglers(
    workers: int, slowdown: float, backup_workers: int, staleness_bound: int
) -> Figure:
    """Draw the same time under the three ways, with the rates that they reach."""
    chosen = (workers, slowdown, backup_workers, staleness_bound)
    long = simulations(*chosen, LONG)
    figure = style.new_figure(style.WIDTH, HEIGHT)
    _draw_legend(figure)
    _draw_lanes(figure, simulations(*chosen, END), list(map(_facts, long.values())), workers)
    rates = [one.gradients_per_unit(LONG) for one in long.values()]
    names, free = list(long), list(long.values())[2]
    return style.finding(
        figure,
        f"One of {workers} workers takes {slowdown:g} times as long: synchronous steps use "
        f"{rates[0]:.2f} gradients a unit of time, the {names[1]} {rates[1]:.2f}, asynchronous "
        f"updates {rates[2]:.2f}, with a staleness of up to {max(free.staleness)}.",
    )


def _draw_lanes(
    figure: Figure, ways: Mapping[str, Simulation], facts: Sequence[str], workers: int
) -> None:
    """All three ways on one pair of axes, a lane's room between them for their titles."""
    width = style.WIDTH - LEFT - RIGHT
    ax = style.add_axes(figure, LEFT, BOTTOM, width, HEIGHT - BOTTOM - 0.3)
    rows = workers + 1
    events = [
        event._replace(rank=event.rank + number * rows)
        for number, way in enumerate(ways.values())
        for event in way.events
    ]
    with style.styled():
        kept = [event for event in events if event.kind != "dropped"]
        draw_lanes(ax, kept, (), END, width * style.DPI)
        dropped = [_corners(event) for event in events if event.kind == "dropped"]
        if dropped:
            add_boxes(ax, "dropped", dropped, DROPPED, "xx")
        for number, (name, way) in enumerate(ways.items()):
            first = number * rows
            times = [update.time for update in way.updates]
            look = {"color": style.ACCENT, "linewidth": 1.1, "zorder": 5}
            ax.vlines(times, first + 0.5, first + rows - 0.6, gid=f"updates {number}", **look)
            ax.text(0, first + 0.2, name, fontsize=11, fontweight="bold", va="center")
            look = {"fontsize": 9.5, "color": style.MUTED, "ha": "right", "va": "center"}
            ax.text(END, first + 0.2, facts[number], **look)
        ax.set_ylim(3 * rows - 0.5, -0.3)
        lanes = [(n * rows + w, f"worker {w}") for n in range(3) for w in range(1, rows)]
        ax.set_yticks(*zip(*lanes, strict=True))
        ax.set_xlabel("time, in gradients of a worker that is not slow", color=style.MUTED)


def _corners(event: Event) -> list[tuple[float, float]]:
    low, high = event.rank + TOP, event.rank + FLOOR
    return [(event.start, low), (event.start, high), (event.end, high), (event.end, low)]


def _draw_legend(figure: Figure) -> None:
    entries = [
        (Patch(facecolor="#AEB6BF"), "gradient (number: version of the weights)"),
        (Patch(facecolor=style.PAPER, hatch="////", edgecolor=WAIT_INK), "waits"),
        (Patch(facecolor=DROPPED, hatch="xx", edgecolor=style.PAPER), "too late: dropped"),
        (Patch(facecolor=style.ACCENT), "line: an update"),
    ]
    handles, texts = zip(*entries, strict=True)
    with style.styled():
        figure.legend(
            handles, texts, loc="upper left", ncol=4, borderaxespad=0, borderpad=0,
            bbox_to_anchor=(LEFT / style.WIDTH, 1 - 0.06 / figure.get_size_inches()[1]),
        )  # fmt: skip


def straggler_explorer() -> Explorer:
    """Return the explorer of stragglers."""
    plain = {"workers": 4, "backup_workers": 1, "staleness_bound": NO_BOUND}
    bounds = [(str(bound), bound) for bound in (0, 1, 2, 4, 8)] + [("none", NO_BOUND)]
    return Explorer(
        render_stragglers,
        workers=(2, 6, 4),
        slowdown=(1.0, 6.0, 3.0, 0.5),
        backup_workers=(0, 2, 1),
        staleness_bound=choice(bounds, NO_BOUND),
        try_this=(
            Try(
                "nobody is slow",
                "asynchronous gains next to nothing, and the backup's work is thrown away",
                {**plain, "slowdown": 1.0},
            ),
            Try(
                "a straggler of 4x",
                "synchronous falls to a quarter; the first 3 of 4 lose nothing to it",
                {**plain, "slowdown": 4.0},
            ),
            Try(
                "a bound of 0",
                "the barrier is back: asynchronous waits as long as synchronous",
                {**plain, "slowdown": 4.0, "staleness_bound": 0},
            ),
        ),
    )
