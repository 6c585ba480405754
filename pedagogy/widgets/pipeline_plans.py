"""The schedules of chapter 02's explorers by name, and what a choice of them amounts to.

Everything is computed by `pedagogy.pipeline`: the explorers draw the objects that the chapter runs.

The batch is fixed
------------------
Cutting it more finely makes the pieces smaller: a micro-batch is 1/m of the batch, and its forward
on a rank takes v t0 + 8/m. The unit of time is the forward of an eighth of the batch on one rank;
t0 is what each piece takes however small it is, so that a finer cut does not only shrink the
bubble.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from pedagogy import pipeline
from pedagogy.pipeline import Schedule, Simulation, Wait
from pedagogy.plots.pipeline import default_facts, schedule_panel
from pedagogy.plots.timeline import Panel
from pedagogy.widgets.coupled import Bounds

INTERLEAVED = "interleaved 1F1B"
RECOMPUTING = "GPipe, recomputing"
SCHEDULES: dict[str, Callable[[int, int, int], Schedule]] = {
    "naive": lambda p, m, v: pipeline.naive(p, m),
    "GPipe": lambda p, m, v: pipeline.gpipe(p, m),
    RECOMPUTING: lambda p, m, v: pipeline.gpipe_recomputing(p, m),
    "1F1B": lambda p, m, v: pipeline.one_f_one_b(p, m),
    INTERLEAVED: pipeline.interleaved,
    "Zero bubble H1": lambda p, m, v: pipeline.zero_bubble_h1(p, m),
    "Zero bubble H2": lambda p, m, v: pipeline.zero_bubble_h2(p, m),
    "PipeDream (no flush)": lambda p, m, v: pipeline.pipedream(p, m),
}
BATCH = 8.0  # forward of the whole batch on one rank
MAX_MICROBATCHES = 32


class Setting(NamedTuple):
    """What is chosen: a schedule by name, p, m, v, and the times."""

    schedule: str
    ranks: int
    microbatches: int
    chunks: int
    backward: float
    fixed_time: float
    message_time: float

    @property
    def forward(self) -> float:
        """The forward of one micro-batch through all chunks of a rank."""
        return self.chunks_held * self.fixed_time + BATCH / self.microbatches

    @property
    def chunks_held(self) -> int:
        """v where the schedule has chunks, else 1."""
        return self.chunks if self.schedule == INTERLEAVED else 1


@lru_cache(maxsize=64)
def simulated(setting: Setting) -> Simulation:
    """Return what the setting takes; half of a backward is for the weights."""
    schedule = SCHEDULES[setting.schedule](setting.ranks, setting.microbatches, setting.chunks_held)
    forward = setting.forward
    return pipeline.simulate(
        schedule,
        forward=forward,
        backward=setting.backward * forward,
        weight=setting.backward * forward / 2,
        communication=setting.message_time,
        recompute=forward,
    )


@lru_cache(maxsize=64)
def panel(setting: Setting) -> Panel:
    """Return the setting as a panel of the house figure."""
    name = setting.schedule[0].upper() + setting.schedule[1:]
    title = f"{name}, v = {setting.chunks}" if setting.schedule == INTERLEAVED else name
    facts = None
    if setting.schedule == RECOMPUTING:
        *facts, _ = default_facts(simulated(setting))
        facts.append(f"peak {max(simulated(setting).peak_in_flight)} inputs kept")
    return schedule_panel(simulated(setting), title, facts)


@lru_cache(maxsize=64)
def moments(setting: Setting) -> list[float]:
    """Return the times at which something starts, and the end: the steps of the player."""
    starts = {round(event.start, 9) for event in panel(setting).events if event.kind != "send"}
    return sorted((starts - {0.0}) | {simulated(setting).makespan})


@lru_cache(maxsize=64)
def bubbles(setting: Setting) -> list[Wait]:
    """Return all bubbles by rank and time, rounding errors left out."""
    simulation = simulated(setting)
    found = [wait for rank in range(setting.ranks) for wait in simulation.waits(rank)]
    return [wait for wait in found if wait.end - wait.start > 1e-9 * simulation.makespan]


@lru_cache(maxsize=64)
def num_bubbles(setting: Setting) -> int:
    """Return how many `bubbles` there are, without asking for their reasons."""
    least = 1e-9 * simulated(setting).makespan
    free = [0.0] * setting.ranks
    count = 0
    for rank, kind, _, start, end, *_ in panel(setting).events:
        if kind != "send":
            count += start - free[rank] > least
            free[rank] = end
    return count


def microbatch_bounds(bubble: int, step: int, **values: Any) -> Bounds:
    """Return what m may be: a multiple of p where the schedule is interleaved."""
    if values["schedule"] != INTERLEAVED:
        return Bounds(1, MAX_MICROBATCHES)
    p = values["ranks"]
    why = f"the interleaved schedule takes multiples of p = {p} alone"
    return Bounds(p, MAX_MICROBATCHES // p * p, p, why=why)


def chunk_bounds(bubble: int, step: int, **values: Any) -> Bounds:
    """Return what v may be; other schedules have no chunks."""
    return Bounds(1, 4, disabled=values["schedule"] != INTERLEAVED)


def bubble_bounds(bubble: int, step: int, **values: Any) -> Bounds:
    """Return which bubbles there are; 0 chooses none."""
    count = num_bubbles(Setting(**values))
    return Bounds(0, max(count, 1), disabled=count == 0)


def last_step(bubble: int, **values: Any) -> int:
    """Return the last step of the player."""
    return len(moments(Setting(**values)))


BOUNDS = {"microbatches": microbatch_bounds, "chunks": chunk_bounds, "bubble": bubble_bounds}
