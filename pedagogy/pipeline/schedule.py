"""A schedule is data: for each rank, the ordered list of what it does.

Why it exists
-------------
A pipeline is a model cut into stages, one behind the other, and a batch cut into micro-batches that
pass through them. *When* a rank runs which piece is the whole difference between GPipe, 1F1B,
PipeDream and zero-bubble. So that difference is written down as a list and nothing else: one object
is checked here, simulated in `simulate`, executed by `run_schedule` and drawn by the plots. What is
drawn cannot differ from what is run.

How it works
------------
An `Action(kind, stage, microbatch)` is one piece of work:

    F   forward of a micro-batch through a stage
    B   backward through it; of the input alone, where the schedule has a W
    W   backward of the weights, which no other stage waits for
    R   the forward once more, to get back activations that were not kept
    U   update of the stage's weights, in schedules that do not flush

A stage lives on the rank whose list holds its actions. A rank with two stages has two chunks; a
stage whose micro-batches lie on several ranks is replicated.

What an action waits for
------------------------
    F(s, k)   F(s-1, k)                   the activation from the stage before
    B(s, k)   B(s+1, k), and F(s, k)      the gradient from the stage behind, and its own activation
    W(s, k)   B(s, k)
    R(s, k)   F(s, k)
    U(s, k)   B or W(s, k); of a replicated stage, of all micro-batches of its round

and, always, for the action before it in its rank's list. Where these waits form a circle, no rank
of it can ever go on: a dead-lock. `check_schedule` finds it before any process starts.

Inside, an action is one whole number, its *code*: (kind * stages + stage) * micro-batches +
micro-batch. Tables of codes are plain lists, and 262,144 actions are simulated in half a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import NamedTuple

KINDS = ("F", "B", "W", "R", "U")
F, B, W, R, U = range(5)


class Action(NamedTuple):
    """One piece of work of a rank: kind ("F", "B", "W", "R", "U"), stage and micro-batch."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}@{self.stage}"


Schedule = list[list[Action]]


class Layout:
    """Who holds what in a schedule, and what each action waits for.

    `num_ranks`, `num_stages`, `num_microbatches`; by rank `chunks`, how many stages it holds; by
    stage `replicas`, how many ranks hold it; `codes`, the schedule as numbers, and `present[code]`,
    whether an action is there.

    **Raises** ValueError: no action at all, an unknown kind, an action twice or missing, an empty
    rank, a micro-batch with actions of one stage on two ranks.
    """

    def __init__(self, schedule: Schedule) -> None:
        actions = [action for actions in schedule for action in actions]
        if not actions or not all(schedule):
            empty = [rank for rank, actions in enumerate(schedule) if not actions] or "all"
            raise ValueError(f"no action on these ranks: {empty}; each rank needs at least one")
        self.num_ranks = len(schedule)
        self.num_stages = 1 + max(0, max(stage for _, stage, _ in actions))
        self.num_microbatches = 1 + max(0, max(k for _, _, k in actions))
        self.cells = self.num_stages * self.num_microbatches  # a stage and a micro-batch
        self._home = [-1] * self.cells
        self.present = bytearray(len(KINDS) * self.cells)
        self.codes = [self._enter(rank, actions) for rank, actions in enumerate(schedule)]
        self._check_complete()
        held = [{stage for _, stage, _ in actions} for actions in schedule]
        self.chunks = [len(stages) for stages in held]
        self.replicas = [
            sum(stage in stages for stages in held) for stage in range(self.num_stages)
        ]

    def code(self, kind: str, stage: int, microbatch: int) -> int:
        """The number of an action. **Raises** KeyError if the schedule has no room for it."""
        inside = 0 <= stage < self.num_stages and 0 <= microbatch < self.num_microbatches
        if kind not in KINDS or not inside:
            raise KeyError(Action(kind, stage, microbatch))
        return (KINDS.index(kind) * self.num_stages + stage) * self.num_microbatches + microbatch

    def action(self, code: int) -> Action:
        """The action of a number."""
        place, microbatch = divmod(code, self.num_microbatches)
        kind, stage = divmod(place, self.num_stages)
        return Action(KINDS[kind], stage, microbatch)

    def __contains__(self, action: Action) -> bool:
        try:
            return bool(self.present[self.code(*action)])
        except (KeyError, TypeError):
            return False

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that holds a micro-batch of a stage. **Raises** KeyError if there is none."""
        return self._home[self.code("F", stage, microbatch)]

    def needs(self, code: int) -> Iterator[tuple[int, int]]:
        """What an action waits for besides its rank: (code, boundary that the message crosses).

        Boundary s lies between stages s and s + 1; -1 says that nothing is sent.
        """
        cells, m = self.cells, self.num_microbatches
        kind, cell = divmod(code, cells)
        if kind == F:
            if cell >= m:
                crosses = self._home[cell] != self._home[cell - m]
                yield cell - m, cell // m - 1 if crosses else -1
            return
        if kind in (B, R):
            yield cell, -1  # its own forward
        if kind == B:
            if self.present[R * cells + cell]:
                yield R * cells + cell, -1
            if cell + m < cells:
                crosses = self._home[cell] != self._home[cell + m]
                yield code + m, cell // m if crosses else -1
        elif kind == W:
            yield B * cells + cell, -1
        elif kind == U:
            stage, k = divmod(cell, m)
            first = k - k % self.replicas[stage]
            last = W if self.present[W * cells + cell] else B
            for each in range(first, min(first + self.replicas[stage], m)):
                yield last * cells + stage * m + each, -1

    def _enter(self, rank: int, actions: list[Action]) -> list[int]:
        codes = []
        for kind, stage, k in actions:
            if kind not in KINDS or stage < 0 or k < 0:
                raise ValueError(
                    f"{(kind, stage, k)} is no action: the kinds are {', '.join(KINDS)}, and "
                    "stages and micro-batches count from 0"
                )
            code = (KINDS.index(kind) * self.num_stages + stage) * self.num_microbatches + k
            if self.present[code]:
                raise ValueError(f"{self.action(code)} stands in the schedule twice")
            self.present[code] = True
            cell = code % self.cells
            if self._home[cell] not in (-1, rank):
                raise ValueError(
                    f"{self.action(code)} stands on rank {rank}, but other actions of micro-batch "
                    f"{k} at stage {stage} on rank {self._home[cell]}: they belong together"
                )
            self._home[cell] = rank
            codes.append(code)
        return codes

    def _check_complete(self) -> None:
        missing = self.present.find(0, 0, 2 * self.cells)  # every F and every B
        if missing >= 0:
            raise ValueError(
                f"{self.action(missing)} is missing: with {self.num_stages} stages and "
                f"{self.num_microbatches} micro-batches, each stage needs an F and a B of each"
            )


def check_counts(**counts: int) -> None:
    """Raise ValueError unless every one of `counts`, given by name, is a whole number above 0."""
    for name, count in counts.items():
        if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} is {count!r}; it must be a whole number, 1 or more")


def schedule_text(schedule: Schedule) -> str:
    """The schedule as text, a line for each rank: "F0 F1 B0 B1"; with chunks "F0@2 F1@2"."""
    chunked = max(Layout(schedule).chunks) > 1
    return "\n".join(
        " ".join(str(Action(*a)) if chunked else f"{a[0]}{a[2]}" for a in actions)
        for actions in schedule
    )
