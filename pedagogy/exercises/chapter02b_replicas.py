"""Chapter 02b: the order of a pipeline whose stages are replicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pedagogy.exercises.attempt import Outcome
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.placed import legal_schedule
from pedagogy.exercises.registry import register
from pedagogy.pipeline import Schedule, Simulation, simulate


def round_robin_order(replicas: Sequence[int], num_minibatches: int) -> list[list[tuple]]:
    """1F1B-RR: for each rank its actions ("F" or "B", stage, minibatch); stage 0's ranks first.

    Stage s has replicas[s] ranks, which take the minibatches in turn.
    """
    schedule = []
    for stage, count in enumerate(replicas):
        in_flight = -(-sum(replicas[stage:]) // count)  # rounded up; for stage 0 this is NOAM
        for replica in range(count):
            mine = list(range(replica, num_minibatches, count))
            warmup = min(in_flight - 1, len(mine))
            order = [("F", stage, k) for k in mine[:warmup]]
            for place, k in enumerate(mine):
                order += [("F", stage, ahead) for ahead in mine[place + warmup :][:1]]
                order += [("B", stage, k)]
            schedule.append(order)
    return schedule


# --- mistakes: other minibatches, or another warm-up ----------------------------------------------


def _minibatches(replica: int, count: int, m: int) -> list[int]:
    return list(range(replica, m, count))


def _noam(replicas: Sequence[int], stage: int) -> int:
    return -(-sum(replicas[stage:]) // replicas[stage])


def _ordered(
    replicas: Sequence[int],
    m: int,
    of_replica: Callable = _minibatches,
    in_flight: Callable = _noam,
) -> list[list[tuple]]:
    schedule = []
    for stage, count in enumerate(replicas):
        for replica in range(count):
            mine = of_replica(replica, count, m)
            warmup = min(max(in_flight(replicas, stage) - 1, 0), len(mine))
            order = [("F", stage, k) for k in mine[:warmup]]
            for place, k in enumerate(mine):
                order += [("F", stage, ahead) for ahead in mine[place + warmup :][:1]]
                order += [("B", stage, k)]
            schedule.append(order)
    return schedule


def _in_blocks(replicas, num_minibatches):
    def of_replica(replica, count, m):
        return list(range(replica * m // count, (replica + 1) * m // count))

    return _ordered(replicas, num_minibatches, of_replica)


def _all_of_them(replicas, num_minibatches):
    return _ordered(replicas, num_minibatches, lambda replica, count, m: list(range(m)))


def _backward_elsewhere(replicas, num_minibatches):
    schedule, first = round_robin_order(replicas, num_minibatches), 0
    for count in replicas:
        ranks = schedule[first : first + count]
        for place, order in enumerate(ranks):
            others = [one for one in ranks[(place + 1) % count] if one[0] == "B"]
            forwards = [one for one in order if one[0] == "F"]
            schedule[first + place] = forwards + others
        first += count
    return schedule


def _as_if_single(replicas, num_minibatches):
    return _ordered(
        replicas, num_minibatches, in_flight=lambda replicas, stage: len(replicas) - stage
    )


def _not_divided(replicas, num_minibatches):
    return _ordered(
        replicas, num_minibatches, in_flight=lambda replicas, stage: sum(replicas[stage:])
    )


def _rounded_down(replicas, num_minibatches):
    return _ordered(
        replicas,
        num_minibatches,
        in_flight=lambda replicas, stage: sum(replicas[stage:]) // replicas[stage],
    )


def _noam_everywhere(replicas, num_minibatches):
    return _ordered(replicas, num_minibatches, in_flight=lambda replicas, stage: _noam(replicas, 0))


def _one_too_many(replicas, num_minibatches):
    return _ordered(
        replicas, num_minibatches, in_flight=lambda replicas, stage: _noam(replicas, stage) + 1
    )


def _no_warmup(replicas, num_minibatches):
    return _ordered(replicas, num_minibatches, in_flight=lambda replicas, stage: 1)


def _all_forwards_first(replicas, num_minibatches):
    return _ordered(
        replicas, num_minibatches, in_flight=lambda replicas, stage: num_minibatches + 1
    )


# --- what is checked ------------------------------------------------------------------------------


def _schedule(function: Callable, replicas: Sequence[int], num_minibatches: int) -> Schedule:
    return _legal(function(list(replicas), num_minibatches), replicas, num_minibatches)


def _legal(answer, replicas: Sequence[int], num_minibatches: int) -> Schedule:
    firsts = [sum(replicas[:stage]) for stage in range(len(replicas))]
    ranks = [list(range(one, one + n)) for one, n in zip(firsts, replicas, strict=True)]
    where = f"with replicas {list(replicas)} and {num_minibatches} minibatches"
    return legal_schedule(answer, ranks, num_minibatches, where)


def _who_takes_what(function: Callable, replicas: Sequence[int], num_minibatches: int) -> dict:
    answer = function(list(replicas), num_minibatches)
    if answer is None:
        return None
    schedule = _legal(answer, replicas, num_minibatches)
    return {
        f"the minibatches of rank {rank}": sorted({k for _, _, k in actions})
        for rank, actions in enumerate(schedule)
    }


def _simulated(schedule: Schedule, replicas: Sequence[int]) -> Simulation:
    """With stages that are the slower, the more replicas they have: no stage is a bottleneck."""
    return simulate(schedule, forward=list(replicas), backward=[2 * count for count in replicas])


def _in_flight(function: Callable, outcome: Outcome) -> str | None:
    """A target: no rank holds more minibatches at once than in the reference."""
    for case in _CASES:
        mine = simulate(_schedule(function, *case)).peak_in_flight
        enough = simulate(round_robin_order(*case)).peak_in_flight
        if any(held > most for held, most in zip(mine, enough, strict=True)):
            return (
                f"for {case} the ranks hold {', '.join(map(str, mine))} minibatches at once, and "
                f"{', '.join(map(str, enough))} are enough"
            )
    return None


def _as_fast(function: Callable, outcome: Outcome) -> str | None:
    """A target: the reference's makespan, where a stage of r replicas takes r times as long."""
    for case in _CASES:
        mine = _simulated(_schedule(function, *case), case[0]).makespan
        best = _simulated(round_robin_order(*case), case[0]).makespan
        if mine > best:
            return f"for {case} it takes {mine:g}, and {best:g} are enough"
    return None


_CASES = [([2, 1, 1], 8), ([2, 1], 6), ([1, 3], 6), ([1, 1, 1], 4)]
REPLICAS = Exercise(
    name="round_robin_order",
    title="A slow stage on several ranks",
    chapter="02b",
    reference=round_robin_order,
    cases=_CASES,
    labels=[f"replicas {replicas}, {m} minibatches" for replicas, m in _CASES],
    observe=_who_takes_what,
    targets=[_in_flight, _as_fast],
    mistakes=[
        (
            _in_blocks,
            "Blocks of minibatches keep one replica busy and the others idle: replica j takes the "
            "minibatches k with k mod r = j.",
        ),
        (
            _all_of_them,
            "Replicas share the minibatches of their stage: each minibatch visits one of them.",
        ),
        (
            _backward_elsewhere,
            "A minibatch comes back to another replica than it went forward on. Its activations "
            "and its weight version are where its forward was.",
        ),
        (
            _as_if_single,
            "The warm-up is that of single stages. Count ranks: a replica has in flight the ranks "
            "of its stage and all behind it, divided by the replicas of its stage.",
        ),
        (
            _not_divided,
            "All ranks from this stage on share the minibatches in flight among the replicas of "
            "the stage: divide by their number.",
        ),
        (
            _rounded_down,
            "NOAM is rounded up. Rounded down, a replica waits for its gradient.",
        ),
        (
            _noam_everywhere,
            "NOAM is for stage 0. A later stage has fewer ranks behind it, and needs fewer.",
        ),
        (
            _one_too_many,
            "One forward too many: NOAM minibatches in flight are NOAM - 1 in the warm-up, and the "
            "next forward.",
        ),
        (
            _no_warmup,
            "Without a warm-up, F B F B from the start, each replica has one minibatch in flight, "
            "and the ranks behind it wait.",
        ),
        (
            _all_forwards_first,
            "All forwards first is GPipe's order: each rank holds all of its minibatches at once. "
            "After the warm-up, F and B take turns.",
        ),
    ],
    hints=[
        "Replica j of a stage with r replicas takes minibatches j, j + r, j + 2r, ...: for F and "
        "for B.",
        "Each rank's list is 1F1B over its own minibatches: warm-up, in turn, the rest.",
        "A replica of stage s may have ceil(sum(replicas[s:]) / replicas[s]) minibatches in "
        "flight, so it warms up with one less.",
    ],
)

register(REPLICAS)
