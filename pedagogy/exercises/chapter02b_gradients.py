"""Chapter 02b: which gradients of a recorded run are gradients of no function."""

from __future__ import annotations

from collections.abc import Sequence

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register
from pedagogy.pipeline import Schedule, one_f_one_b, pipedream, pipedream_2bw, simulate

Record = tuple[str, int, int]  # kind ("F", "B", "U"), stage, minibatch


def find_wrong_gradient(records: Sequence[Record]) -> dict[tuple[int, int], int]:
    """(stage, minibatch) -> by how many updates its backward's weights are newer; not those by 0.

    `records` is what happened, in order, in a run without stashing.
    """
    version, in_forward, newer = {}, {}, {}
    for kind, stage, minibatch in records:
        now = version.get(stage, 0)
        if kind == "F":
            in_forward[stage, minibatch] = now
        elif kind == "B" and now > in_forward[stage, minibatch]:
            newer[stage, minibatch] = now - in_forward[stage, minibatch]
        elif kind == "U":
            version[stage] = now + 1
    return newer


def _of_any_stage(records):
    updates, in_forward, newer = 0, {}, {}
    for kind, stage, minibatch in records:
        if kind == "F":
            in_forward[stage, minibatch] = updates
        elif kind == "B" and updates > in_forward[stage, minibatch]:
            newer[stage, minibatch] = updates - in_forward[stage, minibatch]
        elif kind == "U":
            updates += 1
    return newer


def _own_update_too(records):
    version, in_forward, newer = {}, {}, {}
    for kind, stage, minibatch in records:
        if kind == "F":
            in_forward[stage, minibatch] = version.get(stage, 0)
        elif kind == "U":
            version[stage] = version.get(stage, 0) + 1
            if (stage, minibatch) in in_forward:
                newer[stage, minibatch] = version[stage] - in_forward[stage, minibatch]
    return newer


def _the_right_ones_too(records):
    backwards = {(stage, k): 0 for kind, stage, k in records if kind == "B"}
    return backwards | find_wrong_gradient(records)


def _the_minibatches_alone(records):
    newer = {}
    for (_, minibatch), by in find_wrong_gradient(records).items():
        newer[minibatch] = max(by, newer.get(minibatch, 0))
    return newer


def _keys_swapped(records):
    return {(k, stage): by for (stage, k), by in find_wrong_gradient(records).items()}


def _named_after_minibatches(records, at_first=-1):
    """A version goes by the number of the minibatch that made it."""
    version, in_forward, newer = {}, {}, {}
    for kind, stage, minibatch in records:
        now = version.get(stage, at_first)
        if kind == "F":
            in_forward[stage, minibatch] = now
        elif kind == "B" and now > in_forward[stage, minibatch]:
            newer[stage, minibatch] = now - in_forward[stage, minibatch]
        elif kind == "U":
            version[stage] = minibatch
    return newer


def _named_after_minibatches_from_0(records):
    return _named_after_minibatches(records, at_first=0)


def _minibatches_in_flight(records):
    flying, newer = {}, {}
    for kind, stage, minibatch in records:
        flying.setdefault(stage, set())
        if kind == "F":
            flying[stage].add(minibatch)
        elif kind == "B":
            flying[stage].discard(minibatch)
            if flying[stage]:
                newer[stage, minibatch] = len(flying[stage])
    return newer


def _the_version_itself(records):
    version, newer = {}, {}
    for kind, stage, minibatch in records:
        if kind == "B" and version.get(stage):
            newer[stage, minibatch] = version[stage]
        elif kind == "U":
            version[stage] = version.get(stage, 0) + 1
    return newer


def recorded(schedule: Schedule) -> list[Record]:
    """The actions of a schedule in the order in which they start."""
    start = simulate(schedule).start
    return [tuple(action) for action in sorted(start, key=start.__getitem__)]


def _flushed() -> Schedule:
    whole = one_f_one_b(3, 3)
    return [[*actions, actions[-1]._replace(kind="U")] for actions in whole]


WRONG = Exercise(
    name="find_wrong_gradient",
    title="Find the gradients of no function",
    chapter="02b",
    reference=find_wrong_gradient,
    cases=[
        (recorded(pipedream(4, 6)),),
        (recorded(pipedream_2bw(3, 3, 3)),),
        (recorded(_flushed()),),
    ],
    labels=[
        "PipeDream, 4 stages, 6 minibatches",
        "one update for each 3 micro-batches, 3 stages",
        "a flush before the update, 3 stages",
    ],
    mistakes=[
        (
            _of_any_stage,
            "This counts the updates of all stages. The question is which weights *this* stage's "
            "backward used.",
        ),
        (
            _own_update_too,
            "This counts the update that a gradient itself makes; it comes after the backward.",
        ),
        (
            _the_right_ones_too,
            "Where forward and backward met the same weights, the gradient is right: leave it out.",
        ),
        (
            _the_minibatches_alone,
            "A minibatch can be right in one stage and wrong in another: the keys are pairs of "
            "stage and minibatch.",
        ),
        (_keys_swapped, "A key is (stage, minibatch), in this order."),
        *(
            (
                named_after,
                "This takes the number of the last updating minibatch for a version. A version is "
                "how many updates its stage has made.",
            )
            for named_after in (_named_after_minibatches, _named_after_minibatches_from_0)
        ),
        (
            _minibatches_in_flight,
            "Minibatches in flight do no harm by themselves. Count the updates between F and B.",
        ),
        (
            _the_version_itself,
            "This is the number of updates before the backward. Subtract those before the forward.",
        ),
    ],
    hints=[
        "Keep for each stage how many updates it has made: its version.",
        "At F write down the version under (stage, minibatch). At B compare it with the version "
        "now.",
        "If they differ, the backward multiplied by weights that the forward never saw; the "
        "difference is the answer for this pair.",
    ],
)

register(WRONG)
