"""PipeDream's schedules: 1F1B that never drains, because each backward is followed by an update.

The problem
-----------
A flush empties the pipeline once per batch, and the bubble is paid once per batch. PipeDream does
not flush: the next minibatch is already in the pipeline when this one's gradient comes back. In the
steady state no rank waits.

What it costs
-------------
Stage s starts the forward of minibatch k + 1 .. k + p - 1 - s before the backward of k, so weights
change between a minibatch's forward and its backward. A gradient computed with other weights than
its forward is the gradient of no function. `weight_versions` shows the three cures.

    pipedream            an update after each backward; up to p - s weight versions at stage s
    pipedream_2bw        an update after each m-th backward; two versions are enough
    pipedream_replicated a slow stage gets several ranks, which take the minibatches in turn

Replicated stages, 1F1B-RR
--------------------------
Replica j of a stage with r replicas takes the minibatches k with k mod r = j, for the forward *and*
the backward: the activations and the weight version are there. After each round of r minibatches
the replicas average their gradients and update together. How many minibatches a replica may have in
flight is NOAM of the part of the pipeline that begins with its stage:

    ceil(ranks of this stage and all behind it / replicas of this stage)

For the first stage this is NOAM, the number of optimal active minibatches, per input replica.

Sources: Harlap et al. 2018 (PipeDream, arXiv:1806.03377); Narayanan et al. 2021 (PipeDream-2BW),
section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import lcm

from pedagogy.costs.multiples import nearest_multiples
from pedagogy.pipeline.schedule import Action, Schedule, check_counts
from pedagogy.pipeline.schedules import in_turn, one_f_one_b


def pipedream(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B without a flush: every backward is followed by its stage's update.

    Source: Harlap et al. 2018.
    """
    return with_updates(one_f_one_b(num_stages, num_microbatches), every=1)


def pipedream_2bw(num_stages: int, num_batches: int, microbatches_per_batch: int) -> Schedule:
    """1F1B without a flush, with one update per batch of several micro-batches.

    **Raises** ValueError where a batch has fewer micro-batches than there are stages: the paper
    asks for as many, so that two weight versions are enough.
    Source: Narayanan et al. 2021 (PipeDream-2BW), section 3.1.
    """
    check_counts(num_batches=num_batches, microbatches_per_batch=microbatches_per_batch)
    check_counts(num_stages=num_stages)
    if microbatches_per_batch < num_stages:
        raise ValueError(
            f"{microbatches_per_batch} micro-batches a batch in {num_stages} stages: with two "
            f"weight versions a batch needs at least {num_stages}, one for each stage"
        )
    flushed_once = one_f_one_b(num_stages, num_batches * microbatches_per_batch)
    return with_updates(flushed_once, every=microbatches_per_batch)


def with_updates(schedule: Schedule, every: int) -> Schedule:
    """The schedule with a U after each backward whose number ends a batch of `every`."""
    updated: Schedule = []
    for actions in schedule:
        updated.append([])
        for action in actions:
            updated[-1].append(action)
            if action.kind == "B" and action.microbatch % every == every - 1:
                updated[-1].append(Action("U", action.stage, action.microbatch))
    return updated


def noam(replicas: Sequence[int]) -> int:
    """The number of optimal active minibatches: how many each replica of stage 0 admits at first.

    Source: Harlap et al. 2018: ceil(machines / machines in the input stage).
    """
    check_counts(num_stages=len(replicas))
    check_counts(**{f"replicas of stage {s}": r for s, r in enumerate(replicas)})
    return -(-sum(replicas) // replicas[0])


def pipedream_replicated(replicas: Sequence[int], num_microbatches: int) -> Schedule:
    """1F1B-RR: stage s on `replicas[s]` ranks, which take the minibatches in turn.

    The ranks of stage 0 come first, then those of stage 1, and so on.
    **Raises** ValueError unless every stage's replicas get equally many minibatches.
    Source: Harlap et al. 2018.
    """
    noam(replicas)
    check_counts(num_microbatches=num_microbatches)
    each = lcm(*replicas)
    if num_microbatches % each:
        raise ValueError(
            f"{num_microbatches} minibatches over {list(replicas)} replicas: each round of updates "
            f"needs one from each replica; {nearest_multiples(num_microbatches, each)} would do"
        )
    behind = list(accumulate(reversed(replicas)))[::-1]  # ranks of this stage and all behind it
    schedule = []
    for stage, count in enumerate(replicas):
        in_flight = -(-behind[stage] // count)
        for replica in range(count):
            mine = range(replica, num_microbatches, count)
            forwards = [Action("F", stage, k) for k in mine]
            backwards = [Action("B", stage, k) for k in mine]
            schedule.append(in_turn(forwards, backwards, min(in_flight - 1, len(mine))))
    return with_updates(schedule, every=1)
