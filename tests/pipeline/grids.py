"""What the tests of schedules compare with: typed grids, and a second, slow simulator.

A grid is what a reader draws: a line for each rank, a cell for each unit of time. `F0` is a forward
of micro-batch 0 (`F0@2` through stage 2, where a rank has several stages), `.` is a bubble, and `*`
marks a cell at whose end the rank updates its weights.

The slow simulator knows nothing of `Layout` or of codes. It has the rules as a dictionary, "what
each action waits for", and sweeps over all actions until a sweep finds nothing more to do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

from hypothesis import strategies as st

from pedagogy.pipeline import (
    Action,
    Schedule,
    Simulation,
    gpipe,
    gpipe_recomputing,
    interleaved,
    interleaved_in_rounds,
    naive,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    pipedream_replicated,
    zero_bubble_h1,
    zero_bubble_h2,
)

Times = dict[tuple, Fraction]

NAMED = [
    naive(3, 3),
    gpipe(4, 5),
    gpipe_recomputing(3, 4),
    one_f_one_b(4, 6),
    one_f_one_b(4, 2),
    interleaved(2, 4, 2),
    interleaved(2, 2, 2),
    interleaved_in_rounds(2, 3, 2),
    zero_bubble_h1(4, 6),
    zero_bubble_h2(3, 6),
    pipedream(4, 5),
    pipedream_2bw(2, 2, 3),
    pipedream_replicated([2, 1], 6),
    pipedream_replicated([2, 1, 1], 4),
    pipedream_replicated([1, 3, 2], 6),
]


def typed(grid: str) -> list[list[str]]:
    """The cells of a typed grid, by rank."""
    return [line.split() for line in grid.strip().splitlines()]


def drawn(simulation: Simulation) -> list[list[str]]:
    """The cells of a simulation whose times are whole numbers, by rank."""
    length = int(simulation.makespan)
    chunked = max(simulation.layout.chunks) > 1
    lines = [["."] * length for _ in range(simulation.layout.num_ranks)]
    for action, start in simulation.start.items():
        cells = lines[simulation.layout.rank_of(action.stage, action.microbatch)]
        end = simulation.end[action]
        assert start == int(start)
        assert end == int(end)
        if action.kind == "U":
            cells[int(end) - 1] += "*"
        for unit in range(int(start), int(end)):
            assert cells[unit] == ".", "a rank does one thing at a time"
            cells[unit] = str(action) if chunked else str(action).split("@")[0]
    return lines


@dataclass(frozen=True)
class Costs:
    """What `simulate` takes, each as a list with a number for each stage."""

    forward: list[Fraction]
    backward: list[Fraction]
    weight: list[Fraction]
    communication: list[Fraction]
    recompute: list[Fraction]

    def duration(self, action: tuple, present: set, chunks: int) -> Fraction:
        """How long an action takes on a rank with so many stages."""
        kind, stage, k = action
        if kind == "B" and ("W", stage, k) in present:
            return (self.backward[stage] - self.weight[stage]) / chunks
        whole = {
            "F": self.forward,
            "B": self.backward,
            "W": self.weight,
            "R": self.recompute,
            "U": [Fraction(0)] * len(self.forward),
        }
        return whole[kind][stage] / chunks


def home_of(schedule: Schedule) -> dict[tuple, int]:
    """The rank of each (stage, micro-batch)."""
    return {(s, k): rank for rank, actions in enumerate(schedule) for _, s, k in actions}


def needs_of(schedule: Schedule) -> dict[tuple, list[tuple]]:
    """By action: what it waits for besides its own rank."""
    present = {tuple(action) for actions in schedule for action in actions}
    replicas = [
        len({rank for (s, _), rank in home_of(schedule).items() if s == stage})
        for stage in range(1 + max(s for _, s, _ in present))
    ]

    def last(s: int, k: int) -> str:
        return "W" if ("W", s, k) in present else "B"

    def needs(kind: str, s: int, k: int) -> list[tuple]:
        rounds = [n for _, t, n in present if t == s and n // replicas[s] == k // replicas[s]]
        wanted = {
            "F": [("F", s - 1, k)] if s > 0 else [],
            "R": [("F", s, k)],
            "B": [("F", s, k)] + [a for a in [("B", s + 1, k), ("R", s, k)] if a in present],
            "W": [("B", s, k)],
            "U": sorted({(last(s, n), s, n) for n in rounds}),
        }
        return wanted[kind]

    return {action: needs(*action) for action in present}


def slow_times(schedule: Schedule, costs: Costs) -> tuple[Times, Times]:
    """Start and end of every action that can ever run."""
    needs, home = needs_of(schedule), home_of(schedule)
    chunks = [len({stage for _, stage, _ in actions}) for actions in schedule]
    start: Times = {}
    end: Times = {}
    while True:
        before = len(end)
        for rank, actions in enumerate(schedule):
            for position, action in enumerate(actions):
                first = position == 0
                if tuple(action) in end or not (first or tuple(actions[position - 1]) in end):
                    continue
                if all(need in end for need in needs[tuple(action)]):
                    there = [Fraction(0) if first else end[tuple(actions[position - 1])]]
                    for need in needs[tuple(action)]:
                        there.append(end[need] + message(need, tuple(action), home, costs))
                    start[tuple(action)] = max(there)
                    lasts = costs.duration(tuple(action), set(needs), chunks[rank])
                    end[tuple(action)] = max(there) + lasts
        if len(end) == before:
            return start, end


def message(need: tuple, action: tuple, home: dict[tuple, int], costs: Costs) -> Fraction:
    """The time from the end of `need` until its result is where `action` runs."""
    stays = home[need[1:]] == home[action[1:]] or need[1] == action[1]
    return Fraction(0) if stays else costs.communication[min(need[1], action[1])]


def cost_lists(num_stages: int, idle_wire: bool = False) -> st.SearchStrategy[Costs]:
    """Costs in thirds and quarters, other ones for each stage; backward more than weight."""
    some = st.builds(Fraction, st.integers(1, 12), st.sampled_from([1, 3, 4]))
    stages = st.lists(some, min_size=num_stages, max_size=num_stages)
    wire = st.just([Fraction(0)] * num_stages) if idle_wire else stages
    return st.builds(
        lambda f, b, w, c, r: Costs(f, [x + y for x, y in zip(b, w, strict=True)], w, c, r),
        *(stages, stages, stages, wire, stages),
    )


@st.composite
def random_schedules(draw) -> Schedule:
    """Any order on any ranks that can be run: with replicas, chunks, W, R and U here and there."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    replicas = [draw(st.integers(1, min(m, 2))) for _ in range(p)]
    if draw(st.booleans()):
        home = {(s, k): sum(replicas[:s]) + k % replicas[s] for s in range(p) for k in range(m)}
    else:
        ranks = draw(st.integers(1, p))
        stage_rank = [*range(ranks), *(rng.randrange(ranks) for _ in range(p - ranks))]
        rng.shuffle(stage_rank)
        home = {(s, k): stage_rank[s] for s in range(p) for k in range(m)}
    split = [draw(st.booleans()) for _ in range(p)]
    schedule: Schedule = [[] for _ in range(1 + max(home.values()))]
    for (s, k), rank in home.items():
        maybe = [kind for kind in "RU" if rng.random() < 0.3] + ["W"] * split[s]
        schedule[rank] += [Action(kind, s, k) for kind in ["F", "B", *maybe]]
    return in_possible_order(schedule, rng)


def in_possible_order(schedule: Schedule, rng: random.Random) -> Schedule:
    """The same actions, each behind all that it waits for, otherwise at random."""
    needs, home = needs_of(schedule), home_of(schedule)
    ordered: Schedule = [[] for _ in schedule]
    while needs:
        ready = sorted(a for a, wanted in needs.items() if not any(w in needs for w in wanted))
        action = rng.choice(ready)
        ordered[home[action[1:]]].append(Action(*action))
        del needs[action]
    return ordered


def swapped(schedule: Schedule, rng: random.Random, swaps: int) -> Schedule:
    """The schedule with some neighbours exchanged: it may or may not be possible to run it."""
    changed = [list(actions) for actions in schedule]
    for _ in range(swaps):
        actions = rng.choice([a for a in changed if len(a) > 1])
        i = rng.randrange(len(actions) - 1)
        actions[i], actions[i + 1] = actions[i + 1], actions[i]
    return changed
