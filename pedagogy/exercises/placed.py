"""A schedule that a learner wrote: refused with the reason, or measured and drawn.

It must be complete and without dead-lock before a makespan means anything, so what cannot run is
refused first, by the first rule that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.compare import brief
from pedagogy.pipeline import Action, Schedule, check_schedule, simulate
from pedagogy.plots.pipeline import schedule_figure


def legal_schedule(
    answer: Any, ranks_of_stage: Sequence[Sequence[int]], num_microbatches: int, where: str
) -> Schedule:
    """The answer as actions, which can run: every F and B once, on its stage's ranks, no circle.

    **Raises** Refused, in a sentence that begins with `where`.
    """
    num_ranks = 1 + max(rank for ranks in ranks_of_stage for rank in ranks)
    if not isinstance(answer, (list, tuple)) or len(answer) != num_ranks:
        what = f"{len(answer)} of them" if isinstance(answer, (list, tuple)) else brief(answer)
        raise Refused(f"{where}: a list is wanted for each of the {num_ranks} ranks, not {what}")
    schedule = []
    for rank, actions in enumerate(answer):
        if not isinstance(actions, (list, tuple)):
            raise Refused(f"{where}: rank {rank} has {brief(actions)}; a list is wanted")
        schedule.append([_action(one, rank, where) for one in actions])
        _check_place(schedule[-1], rank, ranks_of_stage, num_microbatches, where)
    try:
        layout = check_schedule(schedule)
    except ValueError as error:
        raise Refused(f"{where}: {error}") from None
    if layout.num_stages < len(ranks_of_stage) or layout.num_microbatches < num_microbatches:
        raise Refused(
            f"{where}: there are {layout.num_stages} stages and {layout.num_microbatches} "
            "micro-batches in the answer"
        )
    return schedule


def beside_reference(mine: Schedule, reference: Schedule, **costs: Any) -> Figure:
    """Both schedules, drawn over one time axis; `costs` are those of `simulate`."""
    both = {"Yours": simulate(mine, **costs), "Reference": simulate(reference, **costs)}
    yours, ours = (simulation.makespan for simulation in both.values())
    return schedule_figure(both, f"Your schedule takes {yours:g}, the reference {ours:g}.")


def peak_within(
    limits: Callable[..., Sequence[int]], schedule_of: Callable, arguments: Sequence[tuple]
) -> Callable:
    """A target: no rank holds more micro-batches at once than `limits(*arguments)` says.

    `schedule_of(function, *arguments)` is the learner's schedule.
    """

    def target(function: Callable, outcome: Any) -> str | None:
        for case in arguments:
            peaks = simulate(schedule_of(function, *case)).peak_in_flight
            for rank, (peak, most) in enumerate(zip(peaks, limits(*case), strict=True)):
                if peak > most:
                    return (
                        f"for {case} rank {rank} holds {peak} micro-batches at once, and {most} "
                        "are enough"
                    )
        return None

    return target


def _action(one: Any, rank: int, where: str) -> Action:
    if not isinstance(one, (list, tuple)) or len(one) != 3 or one[0] not in ("F", "B"):
        raise Refused(
            f"{where}: rank {rank} has {brief(one)}; an action is (kind, stage, micro-batch) with "
            'the kind "F" or "B"'
        )
    if not all(type(number) is int and number >= 0 for number in one[1:]):
        raise Refused(f"{where}: rank {rank} has {brief(one)}; stage and micro-batch count from 0")
    return Action(*one)


def _check_place(
    actions: list[Action],
    rank: int,
    ranks_of_stage: Sequence[Sequence[int]],
    num_microbatches: int,
    where: str,
) -> None:
    seen = set()
    for action in actions:
        kind, stage, k = action
        if k >= num_microbatches:
            last = num_microbatches - 1
            raise Refused(f"{where}: {action} on rank {rank}, but the last micro-batch is {last}")
        if stage >= len(ranks_of_stage) or rank not in ranks_of_stage[stage]:
            own = [s for s, ranks in enumerate(ranks_of_stage) if rank in ranks]
            raise Refused(f"{where}: {action} stands on rank {rank}, which holds stage {own[0]}")
        if kind == "B" and ("F", stage, k) not in seen:
            raise Refused(
                f"{where}: {action} stands on rank {rank} without F{k}@{stage} before it; backward "
                "needs the activations of its own forward"
            )
        seen.add(action)
