"""What a schedule would take, exactly: when each action runs, who waits, and for what.

How it works
------------
Each rank works through its list. An action starts when its rank is free *and* everything it waits
for is there; a message between ranks arrives `communication` after the action that sends it, and
does not keep its sender busy. `replay` works through the lists and names the circle of a dead-lock.

That is all: no model of a network, no noise. It is therefore exact for uneven stages and for any
order, and where a real run differs, the difference is what the simulation leaves out.

Two bubbles
-----------
`bubble_fraction` is idle time over ranks x makespan; `bubble_ratio` is idle time over busy time.
Papers quote both, often as "the bubble": for p = 4 and m = 8 they are 0.27 and 0.375.

What it costs
-------------
About a microsecond an action. Times are computed with the numbers it is given: with
`fractions.Fraction` the result has no rounding at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple

from pedagogy.pipeline.replay import Cost, by_stage, durations_of, replay
from pedagogy.pipeline.schedule import Action, B, F, Layout, Schedule, W
from pedagogy.ranks import Event


class Wait(NamedTuple):
    """A bubble: the rank is idle from start to end, because `action` waits for `for_action`."""

    rank: int
    start: float
    end: float
    action: Action
    for_action: Action
    reason: str


class Times(Mapping):
    """A time for each action; made of numbers, so that a large schedule costs little."""

    def __init__(self, layout: Layout, times: list) -> None:
        self._layout, self._times = layout, times

    def __getitem__(self, action: Action) -> float:
        if action not in self._layout:
            raise KeyError(f"{tuple(action)} is not in the schedule")
        return self._times[self._layout.code(*action)]

    def __iter__(self) -> Iterator[Action]:
        return (self._layout.action(code) for code in chain.from_iterable(self._layout.codes))

    def __len__(self) -> int:
        return sum(map(len, self._layout.codes))


class Simulation:
    """When everything happens. Lists are by rank; times have the unit of the costs.

    `makespan`: the end of the last action. `busy`: time at work. `span`: from a rank's first start
    to its last end. `span_bubble`: the idle part of the span. `peak_in_flight`: the most chunks of
    micro-batches of which the F has started and the B (the W, where there is one) has not ended.
    """

    def __init__(self, layout: Layout, start: list, end: list, communication: list) -> None:
        self.layout = layout
        self.start, self.end = Times(layout, start), Times(layout, end)
        self._start, self._end, self._communication = start, end, communication
        codes = layout.codes
        self.makespan = max(end[mine[-1]] for mine in codes)
        self.busy = [sum(end[code] - start[code] for code in mine) for mine in codes]
        if sum(self.busy) <= 0:
            raise ValueError("no action takes any time: give at least one of them a cost above 0")
        self.span = [end[mine[-1]] - start[mine[0]] for mine in codes]
        self.span_bubble = [span - busy for span, busy in zip(self.span, self.busy, strict=True)]

    @property
    def bubble_fraction(self) -> float:
        """Idle time / (ranks x makespan)."""
        return 1 - sum(self.busy) / (self.layout.num_ranks * self.makespan)

    @property
    def bubble_ratio(self) -> float:
        """Idle time / busy time."""
        return self.layout.num_ranks * self.makespan / sum(self.busy) - 1

    @cached_property
    def peak_in_flight(self) -> list[int]:
        """The most micro-batch chunks in flight, by rank."""
        return [max(accumulate(self._changes(mine))) for mine in self.layout.codes]

    def in_flight(self, rank: int) -> list[tuple[float, int]]:
        """How many micro-batch chunks a rank holds, as (time, count from then on)."""
        mine = self.layout.codes[rank]
        curve = [(0, 0)]
        for code, change in zip(mine, self._changes(mine), strict=True):
            if change:
                time = self._start[code] if change > 0 else self._end[code]
                curve.append((time, curve[-1][1] + change))
        return curve

    def events(self) -> list[Event]:
        """Every action as an event named after its micro-batch ("F3"), and every message."""
        found = []
        for rank, mine in enumerate(self.layout.codes):
            for code in mine:
                kind, _, k = self.layout.action(code)
                start, end = self._start[code], self._end[code]
                found.append(Event(rank, kind, f"{kind}{k}", start, end))
                for needed, boundary in self.layout.needs(code):
                    if boundary >= 0 and self._communication[boundary]:
                        sender = self._rank_of(needed)
                        left = self._end[needed]
                        arrives = left + self._communication[boundary]
                        found.append(Event(sender, "send", "", left, arrives, 0, (rank,)))
        return found

    def waits(self, rank: int) -> list[Wait]:
        """The bubbles of a rank before and between its actions: what each waits for, and why."""
        found, free = [], 0
        for code in self.layout.codes[rank]:
            if self._start[code] > free:
                found.append(self._wait(rank, free, code))
            free = self._end[code]
        return found

    def _wait(self, rank: int, free: float, code: int) -> Wait:
        def arrival(need: tuple[int, int]) -> float:
            needed, boundary = need
            return self._end[needed] + (self._communication[boundary] if boundary >= 0 else 0)

        needed, boundary = max(self.layout.needs(code), key=arrival)
        action, other = self.layout.action(code), self.layout.action(needed)
        what = {"F": "activation", "B": "gradient"}.get(other.kind, "result")
        there = f"rank {self._rank_of(needed)}, which ends {other} at {float(self._end[needed]):g}"
        reason = f"{action} needs the {what} of {other} from {there}"
        if boundary >= 0 and self._communication[boundary]:
            reason += f"; the message takes {float(self._communication[boundary]):g}"
        return Wait(rank, free, self._start[code], action, other, reason + ".")

    def _rank_of(self, code: int) -> int:
        return self.layout.rank_of(*self.layout.action(code)[1:])

    def _changes(self, mine: list[int]) -> list[int]:
        """By action: +1 where a chunk gets in flight, -1 where it is done, else 0."""
        cells, present = self.layout.cells, self.layout.present

        def change(code: int) -> int:
            kind, cell = divmod(code, cells)
            if kind == F:
                return 1
            last = W if present[W * cells + cell] else B
            return -1 if kind == last else 0

        return [change(code) for code in mine]


def simulate(
    schedule: Schedule,
    forward: Cost = 1.0,
    backward: Cost = 2.0,
    weight: Cost = 1.0,
    communication: Cost = 0,
    recompute: Cost = 1.0,
) -> Simulation:
    """Every action of the schedule has a start and an end.

    Costs are numbers or lists, one number for each stage, and hold for all that a rank does with a
    micro-batch: with v chunks on the rank, a chunk takes 1/v of it. `backward` is the whole
    backward; where a micro-batch has a W, W takes `weight` and B the rest. U takes no time.
    `communication` is the time of one message between ranks, whatever the chunks; as a list, entry
    s is for the boundary between stages s and s + 1 (the last stage has none: its entry may be left
    out).

    **Raises** ValueError as `Layout` does; for costs of another length than there are stages, or
    below 0; for a weight above backward; and for a dead-lock, with the circle named.
    """
    layout = Layout(schedule)
    if hasattr(communication, "__len__") and len(communication) == layout.num_stages - 1:
        communication = [*communication, 0]  # the last stage has no boundary behind it
    sent = by_stage("communication", communication, layout)
    durations = durations_of(layout, forward, backward, weight, recompute)
    return Simulation(layout, *replay(layout, durations, sent), sent)
