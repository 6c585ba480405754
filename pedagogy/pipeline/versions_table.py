"""Which weight version each forward and backward meets: read off a schedule, without running it.

How it works
------------
Each U of a stage makes a new version: a stage's versions are counted by walking down its rank's
list of actions. Which of them a minibatch meets is the policy's choice:

    no stashing     F and B each take the newest: they differ where an update came between
    stashing        F takes the newest, and B the same
    vertical sync   every stage takes the version that the first stage had newest at its F
    2BW             the version before the batch's own: one update per batch, all its micro-batches
                    alike

A version is kept as long as a minibatch in flight was computed with it, the stage's next forward
will ask for it, or it is the newest. Real stages (`weight_versions`) must agree with this table.

Sources: Harlap et al. 2018 (PipeDream, arXiv:1806.03377); Narayanan et al. 2021
(PipeDream-2BW), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pedagogy.pipeline.schedule import Action, Layout, Schedule

Cell = tuple[int, int]  # stage, micro-batch


class VersionTable(NamedTuple):
    """`used[stage, microbatch]` is (version in F, version in B).

    `kept[rank]` is a list of (action, number of versions kept after it); before the first action
    there is one, version 0. `peak[rank]` is the most that a rank ever keeps.
    """

    used: dict[Cell, tuple[int, int]]
    kept: list[list[tuple[Action, int]]]
    peak: list[int]


def versions_used(schedule: Schedule, policy: str) -> VersionTable:
    """The versions that every F and B of the schedule meets under a policy.

    For schedules with one stage per rank, and updates U.
    **Raises** ValueError for an unknown policy, or several stages or replicas.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
    layout = Layout(schedule)
    if max(layout.chunks) > 1 or max(layout.replicas) > 1:
        raise ValueError(
            f"stages by rank: {layout.chunks}, ranks by stage: {layout.replicas}; each must be 1"
        )
    newest = newest_versions(schedule)
    choose = POLICIES[policy]
    used, kept = {}, []
    for actions in schedule:
        stage = actions[0].stage
        version_of = {
            k: choose(schedule, newest, stage, k) for kind, _, k in actions if kind == "F"
        }
        for k, version in version_of.items():
            overwritten = newest[Action("B", stage, k)]
            used[stage, k] = (version, overwritten if policy == UNSTASHED else version)
        kept.append(_kept(actions, version_of, policy))
    return VersionTable(used, kept, [max(count for _, count in curve) for curve in kept])


def newest_versions(schedule: Schedule) -> dict[Action, int]:
    """The stage's newest version when an action starts: the number of its U's before."""
    newest = {}
    for actions in schedule:
        count = 0
        for action in actions:
            newest[action] = count
            count += action.kind == "U"
    return newest


def _of_the_forward(schedule: Schedule, newest: dict, stage: int, k: int) -> int:
    return newest[Action("F", stage, k)]


def _of_the_first_stage(schedule: Schedule, newest: dict, stage: int, k: int) -> int:
    return newest[Action("F", 0, k)]


def _before_its_batch(schedule: Schedule, newest: dict, stage: int, k: int) -> int:
    ends = [j for actions in schedule for kind, s, j in actions if (kind, s) == ("U", stage)]
    batch = sum(end < k for end in ends)  # U is named after the last micro-batch of its batch
    return max(batch - 1, 0)


UNSTASHED = "no stashing"
POLICIES: dict[str, Callable[[Schedule, dict, int, int], int]] = {
    UNSTASHED: _of_the_forward,
    "stashing": _of_the_forward,
    "vertical sync": _of_the_first_stage,
    "2BW": _before_its_batch,
}


def _kept(
    actions: list[Action], version_of: dict[int, int], policy: str
) -> list[tuple[Action, int]]:
    """How many versions are kept after each action; without stashing, one."""
    forwards = [k for kind, _, k in actions if kind == "F"]
    newest, in_flight, curve = 0, set(), []
    for action in actions:
        kind, _, k = action
        if kind == "F":
            in_flight.add(k)
            forwards.remove(k)
        elif kind == "B":
            in_flight.remove(k)
        newest += kind == "U"
        needed = {version_of[j] for j in in_flight} | {version_of[j] for j in forwards[:1]}
        oldest = min(needed | {newest})
        curve.append((action, 1 if policy == UNSTASHED else newest - oldest + 1))
    return curve
