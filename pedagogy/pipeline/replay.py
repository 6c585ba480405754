"""Work through a schedule, list by list, until every rank is done or none can go on.

Each rank goes through its list as far as it can. An action can start when its rank is free and
everything that it waits for has ended; if something is missing, the rank steps aside and is called
again when that has ended. When no rank can go on and some are not done, they wait for each other in
a circle: the schedule would hang on real ranks, too.

Sources: none; this is what "a list for each rank" means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real

from pedagogy.pipeline.schedule import KINDS, B, F, Layout, R, Schedule, W

Cost = float | Sequence[float]


def check_schedule(schedule: Schedule) -> Layout:
    """The schedule is complete and can be run: no action waits, in a circle, for itself.

    **Raises** ValueError as `Layout` does; and for a dead-lock, with the circle named.
    """
    layout = Layout(schedule)
    replay(layout, lambda code: 0, [0] * layout.num_stages)
    return layout


def durations_of(
    layout: Layout,
    forward: Cost = 1.0,
    backward: Cost = 2.0,
    weight: Cost = 1.0,
    recompute: Cost = 1.0,
) -> Callable[[int], float]:
    """How long each action takes, as a function of its code (see `simulate`)."""
    named = {"forward": forward, "backward": backward, "weight": weight, "recompute": recompute}
    whole = {name: by_stage(name, cost, layout) for name, cost in named.items()}
    m, cells, present = layout.num_microbatches, layout.cells, layout.present
    table = [[0] * layout.num_stages for _ in KINDS]
    input_half = [0] * layout.num_stages
    for stage in range(layout.num_stages):
        chunks = layout.chunks[layout.rank_of(stage, 0)]
        for kind, name in ((F, "forward"), (B, "backward"), (W, "weight"), (R, "recompute")):
            table[kind][stage] = whole[name][stage] / chunks
        input_half[stage] = table[B][stage] - table[W][stage]
        if input_half[stage] < 0 and any(
            present[W * cells + stage * m : W * cells + stage * m + m]
        ):
            raise ValueError(
                f"stage {stage}: weight is {whole['weight'][stage]}, more than the whole backward, "
                f"{whole['backward'][stage]}, of which it is a part"
            )

    def duration(code: int) -> float:
        kind, cell = divmod(code, cells)
        if kind == B and present[W * cells + cell]:
            return input_half[cell // m]
        return table[kind][cell // m]

    return duration


def by_stage(name: str, cost: Cost, layout: Layout) -> list:
    """`cost` as a list, one number for each stage. **Raises** ValueError that uses its `name`."""
    if isinstance(cost, str) or not isinstance(cost, Real | Iterable):
        raise ValueError(f"{name} is {cost!r}; give a number, or one for each stage")
    costs = [cost] * layout.num_stages if isinstance(cost, Real) else list(cost)
    if len(costs) != layout.num_stages:
        raise ValueError(
            f"{name} has {len(costs)} numbers; give one number, or one for each of the "
            f"{layout.num_stages} stages"
        )
    if any(not 0 <= each < math.inf for each in costs):
        raise ValueError(f"{name} is {cost}; a time is finite, and not below 0")
    return costs


def replay(layout: Layout, duration: Callable, sent: Sequence) -> tuple[list, list]:
    """Start and end of each code; visits the ranks until none can go on."""
    start, end = [None] * (len(KINDS) * layout.cells), [None] * (len(KINDS) * layout.cells)
    free, place = [0] * layout.num_ranks, [0] * layout.num_ranks
    waiting: dict[int, list[int]] = {}  # code -> ranks that wait for it
    ready = list(range(layout.num_ranks))
    needs = layout.needs
    while ready:
        rank = ready.pop()
        mine, now = layout.codes[rank], free[rank]
        for i in range(place[rank], len(mine)):
            code = mine[i]
            for needed, boundary in needs(code):
                there = end[needed]
                if there is None:
                    waiting.setdefault(needed, []).append(rank)
                    break
                if boundary >= 0:
                    there += sent[boundary]
                if there > now:
                    now = there
            else:
                start[code] = now
                now = end[code] = now + duration(code)
                if code in waiting:
                    ready += waiting.pop(code)
                continue
            break
        else:
            i = len(mine)
        free[rank], place[rank] = now, i
    stuck = {rank: at for rank, at in enumerate(place) if at < len(layout.codes[rank])}
    if stuck:
        raise ValueError(_circle(layout, stuck, end))
    return start, end


def _circle(layout: Layout, stuck: dict[int, int], end: list) -> str:
    """Which ranks wait for each other, followed from one stuck rank until one comes up again."""
    rank, seen, lines = next(iter(stuck)), [], []
    while rank not in seen:
        seen.append(rank)
        code = layout.codes[rank][stuck[rank]]
        missing = next(needed for needed, _ in layout.needs(code) if end[needed] is None)
        other = layout.action(missing)
        if other not in layout:
            return f"{layout.action(code)} on rank {rank} waits for {other}, which is nowhere"
        to = layout.rank_of(*other[1:])
        lines.append(
            f"rank {rank} stands at {layout.action(code)} and waits for {other} of rank {to}"
        )
        rank = to
    circle = "; ".join(lines[seen.index(rank) :])
    return f"the schedule dead-locks, these ranks wait for each other in a circle: {circle}"
