"""Schedules and simulators as they are got wrong: the checks notice every one of them."""

from __future__ import annotations

import sys
from fractions import Fraction
from unittest.mock import patch

import pytest

from pedagogy.costs import pipeline as cost
from pedagogy.pipeline import (
    Action,
    Layout,
    Simulation,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    simulate,
    zero_bubble_h1,
    zero_bubble_h2,
)
from pedagogy.pipeline.schedules import in_turn
from tests.pipeline.grids import NAMED, Costs, slow_times

# --- schedules --------------------------------------------------------------------------------


def wrong_in(name, make, p, m, v=1):
    """What is wrong with a schedule by its name: "runs", "order", "time", "held"."""
    try:
        schedule = make(p, m, v) if name == "interleaved" else make(p, m)
        found = simulate(schedule)
    except ValueError:
        return {"runs"}
    wrong = set()
    for stage in range(p * v):
        mine = [a for a in schedule[stage % p] if a.stage == stage]
        for kind in "FB":
            if [a.microbatch for a in mine if a.kind == kind] != [*range(m)]:
                wrong.add("order")
    if found.makespan != pytest.approx(cost.makespan(name, p, m, v)):
        wrong.add("time")
    if found.peak_in_flight != [cost.in_flight(name, rank, p, m, v) for rank in range(p)]:
        wrong.add("held")
    return wrong


def warms_up(extra):
    """1F1B with another number of forwards first."""

    def schedule(p, m):
        return [
            in_turn(
                [a for a in actions if a.kind == "F"],
                [a for a in actions if a.kind == "B"],
                max(0, min(p - 1 - stage + extra, m)),
            )
            for stage, actions in enumerate(one_f_one_b(p, m))
        ]

    return schedule


def turns_one_rank_round(p, m):
    """Rank 1 meets the gradients from the last micro-batch to the first."""
    schedule = gpipe(p, m)
    schedule[1][m:] = schedule[1][: m - 1 : -1]
    return schedule


def forgets_the_last_backward(p, m):
    """The remaining backwards are one too few."""
    return [actions[:-1] for actions in one_f_one_b(p, m)]


def interleaves_with(warmup, last_chunk_first=True):
    """The interleaved schedule with warm-up forwards as a function of (p, v, rank)."""

    def schedule(p, m, v):
        result = []
        for rank, actions in enumerate(interleaved(p, m, v)):
            forwards = [a for a in actions if a.kind == "F"]
            backwards = [a for a in actions if a.kind == "B"]
            if not last_chunk_first:
                backwards = [Action("B", a.stage, a.microbatch) for a in forwards]
            result.append(in_turn(forwards, backwards, min(warmup(p, v, rank), m * v)))
        return result

    return schedule


def postpones_nothing(make):
    """Each W straight after its B."""

    def straight(actions):
        for action in actions:
            if action.kind != "W":
                yield action
            if action.kind == "B":
                yield action._replace(kind="W")

    return lambda p, m: [list(straight(actions)) for actions in make(p, m)]


def right_warmup(p, v, rank):
    """As PTD-P has it."""
    return 2 * (p - rank - 1) + (v - 1) * p


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("naive", naive),
        ("gpipe", gpipe),
        ("one_f_one_b", one_f_one_b),
        ("one_f_one_b", warms_up(0)),
        ("interleaved", interleaved),
        ("interleaved", interleaves_with(right_warmup)),
        ("zero_bubble_h1", zero_bubble_h1),
        ("zero_bubble_h2", zero_bubble_h2),
    ],
)
def test_nothing_is_wrong_with_the_schedules_as_they_are(name, make):
    assert wrong_in(name, make, 4, 8, 2 if name == "interleaved" else 1) == set()


@pytest.mark.parametrize(
    ("name", "mutant", "noticed"),
    [
        ("one_f_one_b", warms_up(-1), {"time", "held"}),
        ("one_f_one_b", warms_up(1), {"held"}),  # no faster, and one more in flight
        ("one_f_one_b", gpipe, {"held"}),
        ("one_f_one_b", forgets_the_last_backward, {"runs"}),
        ("gpipe", naive, {"time", "held"}),
        ("gpipe", turns_one_rank_round, {"order", "time"}),
        ("interleaved", interleaves_with(lambda p, v, rank: (p - rank - 1) * v), {"runs"}),
        ("interleaved", interleaves_with(lambda *a: right_warmup(*a) - 1), {"runs"}),
        ("interleaved", interleaves_with(lambda *a: right_warmup(*a) + 1), {"held"}),
        ("interleaved", interleaves_with(right_warmup, last_chunk_first=False), {"runs"}),
        ("zero_bubble_h1", postpones_nothing(zero_bubble_h1), {"time", "held"}),
        ("zero_bubble_h2", postpones_nothing(zero_bubble_h2), {"time", "held"}),
        ("zero_bubble_h2", zero_bubble_h1, {"held"}),
    ],
)
def test_a_schedule_that_is_wrong_is_noticed(name, mutant, noticed):
    assert wrong_in(name, mutant, 4, 8, 2 if name == "interleaved" else 1) == noticed


# --- simulators -------------------------------------------------------------------------------

needs, durations_of = Layout.needs, sys.modules["pedagogy.pipeline.replay"].durations_of


def on_one_stage(layout, code):
    """No stage waits for another."""
    stage = layout.action(code).stage
    return [each for each in needs(layout, code) if layout.action(each[0]).stage == stage]


def chunks_take_all(layout, *costs):
    """A chunk takes as long as the whole rank."""
    duration = durations_of(layout, *costs)
    chunks = max(layout.chunks)
    return lambda code: duration(code) * chunks


def until_b(simulation, mine):
    """A micro-batch is done with its B, though its W is still to come."""
    kinds = [simulation.layout.action(code).kind for code in mine]
    return [{"F": 1, "B": -1}.get(kind, 0) for kind in kinds]


def replicas_update_alone(layout, code):
    """An update waits for its own micro-batch only."""
    found = needs(layout, code)
    if layout.action(code).kind != "U":
        return found
    return [each for each in found if each[0] % layout.cells == code % layout.cells]


SIMULATOR = sys.modules["pedagogy.pipeline.simulate"]
MUTANTS = {
    "nothing waits": (Layout, "needs", lambda self, code: []),
    "no stage waits for another": (Layout, "needs", on_one_stage),
    "messages take no time": (Layout, "needs", lambda s, c: [(n, -1) for n, _ in needs(s, c)]),
    "replicas update alone": (Layout, "needs", replicas_update_alone),
    "a chunk takes all of the time": (SIMULATOR, "durations_of", chunks_take_all),
    "the fraction is the ratio": (Simulation, "bubble_fraction", Simulation.bubble_ratio),
    "done with B": (Simulation, "_changes", until_b),
}


def differs_from_the_slow_simulator() -> bool:
    """Whether any time, peak or fraction of the named schedules does."""
    for schedule in NAMED:
        num_stages = 1 + max(a.stage for actions in schedule for a in actions)
        costs = Costs(*([Fraction(n + s % 2) for s in range(num_stages)] for n in (2, 5, 1, 3, 4)))
        start, end = slow_times(schedule, costs)
        found = simulate(schedule, **vars(costs))
        work = sum(end[a] - start[a] for a in end)
        if dict(found.start) != start or dict(found.end) != end:
            return True
        if found.bubble_fraction != 1 - work / (len(schedule) * max(end.values())):
            return True
        for rank, actions in enumerate(schedule):
            ends = {(s, k): end.get(("W", s, k), end["B", s, k]) for _, s, k in actions}
            begun = {(s, k): start["F", s, k] for s, k in ends}
            held = [sum(begun[c] <= t < ends[c] for c in ends) for t in begun.values()]
            if found.peak_in_flight[rank] != max(held):
                return True
    return False


def test_the_simulator_as_it_is_differs_nowhere():
    assert not differs_from_the_slow_simulator()


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_simulator_that_is_wrong_is_noticed(mutant):
    with patch.object(*mutant):
        assert differs_from_the_slow_simulator()
