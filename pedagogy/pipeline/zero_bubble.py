"""Zero-bubble schedules: the backward in two halves, one of which nobody waits for.

The problem
-----------
In the drain of 1F1B a rank waits for the gradient from the stage behind, which waits for its own.
But a backward computes two things: the gradient of its *input*, which the stage before waits for,
and the gradient of its *weights*, which is needed only at the update.

How it works
------------
B computes the first half and sends it on at once; W computes the second, whenever the rank has
nothing better to do. With p stages, stage s postpones its W by s micro-batches (H1) or by 2s (H2):
late stages have the longest drain of others to wait for, and W fills it.

    h1   warm-up as in 1F1B, so never more micro-batches than p; bubble (p - 1)(tF + tB - tW)
    h2   2(p - 1 - s) warm-up forwards; bubble (p - 1)(tF + tB - 2 tW), for up to 2p - 1 in flight

(here tB is the input half alone). With tF = tB = tW, H2's bubble is zero. Zero is meant for *each
rank's own span*, from its first action to its last: rank p - 1 still starts p - 1 forwards after
rank 0, and ends as much later. That skew helps all the same: where the optimizer need not wait for
all ranks, rank 0 begins the next iteration at once, and the skew is paid once for the whole run.

What it costs
-------------
A micro-batch is in flight until its W: between B and W a stage keeps the inputs of its linear
layers and the gradients of their outputs.

What real systems do differently: the paper's scheduler searches an order for the measured times;
these are its two hand-made schedules. To let the skew stand, it validates the global gradient norm
after the update and rolls back if it must.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", sections 2.1 and 2.2, Table 2.
"""

from __future__ import annotations

from pedagogy.pipeline.schedule import Action, Schedule, check_counts


def zero_bubble_h1(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B with each W postponed by as many micro-batches as its stage's number.

    Every stage holds at most min(m, p) micro-batches, those waiting for their W included.
    Source: Qi et al. 2023, section 2.1.
    """
    return _postponed(num_stages, num_microbatches, warmups=1, delays=1)


def zero_bubble_h2(num_stages: int, num_microbatches: int) -> Schedule:
    """H1 with twice the warm-up and twice the delay: no bubble between a rank's first and last.

    Every stage holds at most min(m, 2p - 1) micro-batches.
    Source: Qi et al. 2023, section 2.2.
    """
    return _postponed(num_stages, num_microbatches, warmups=2, delays=2)


def _postponed(num_stages: int, num_microbatches: int, warmups: int, delays: int) -> Schedule:
    check_counts(num_stages=num_stages, num_microbatches=num_microbatches)
    schedule = []
    for stage in range(num_stages):
        warmup = min(warmups * (num_stages - 1 - stage), num_microbatches)
        delay = delays * stage
        actions = [Action("F", stage, k) for k in range(warmup)]
        for k in range(num_microbatches):
            if warmup + k < num_microbatches:
                actions.append(Action("F", stage, warmup + k))
            actions.append(Action("B", stage, k))
            if k >= delay:
                actions.append(Action("W", stage, k - delay))
        for k in range(max(0, num_microbatches - delay), num_microbatches):
            actions.append(Action("W", stage, k))
        schedule.append(actions)
    return schedule
