"""The synchronous schedules, each the one before with one idea more: naive, GPipe, 1F1B.

The problem
-----------
A model cut into p stages on p ranks is computed stage by stage. While one rank works, p - 1 wait:
`naive` uses 1/p of the machine. Cutting the batch into m micro-batches lets the stages work at the
same time, like an assembly line. What is left is the *bubble*: the line must fill and drain.

    gpipe(4, 4)            F forward, B backward; time runs to the right, a B takes two columns
    rank 0   F0 F1 F2 F3 .  .  .  .  .  .  .  .  .  B0-B0 B1-B1 B2-B2 B3-B3
    rank 3   .  .  .  F0 F1 F2 F3 B0-B0 B1-B1 B2-B2 B3-B3 .  .  .  .  .  .

What they cost
--------------
GPipe and 1F1B have the same bubble, (p - 1)(tF + tB), and give the same gradient: that of the whole
batch. They differ in memory. GPipe keeps all m micro-batches' activations until the backwards
start; 1F1B starts a backward as soon as it can, and stage s keeps at most p - s.

Every stage sees every micro-batch: micro-batches are not replicas.

What real systems do differently: the GPipe paper draws the backwards in reverse order, PyTorch and
PTD-P in the order of the forwards, as here. For even stages neither the time nor the peak differs.

Sources: Huang et al. 2019 (GPipe), section 2.2; Narayanan et al. 2021 (PipeDream-2BW), section 3.2
(1F1B with flush, "PipeDream-Flush"); Narayanan et al. 2021 (PTD-P), section 2.2.
"""

from __future__ import annotations

from pedagogy.pipeline.schedule import Action, Schedule, check_counts


def naive(num_stages: int, num_microbatches: int) -> Schedule:
    """One micro-batch passes forward and back through all stages before the next one starts.

    One rank works at any time: each is busy 1/num_stages of it.
    """
    check_counts(num_stages=num_stages, num_microbatches=num_microbatches)
    return [
        [Action(kind, stage, k) for k in range(num_microbatches) for kind in "FB"]
        for stage in range(num_stages)
    ]


def gpipe(num_stages: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards: every stage holds all micro-batches at once.

    Source: Huang et al. 2019, section 2.2 (Figure 2c).
    """
    check_counts(num_stages=num_stages, num_microbatches=num_microbatches)
    return [
        [Action(kind, stage, k) for kind in "FB" for k in range(num_microbatches)]
        for stage in range(num_stages)
    ]


def gpipe_recomputing(num_stages: int, num_microbatches: int) -> Schedule:
    """GPipe that keeps only the inputs of its stages, and recomputes before each backward.

    The recomputation R needs no gradient from the stage behind, so it runs while the rank would
    wait for one: inside the bubble. Source: Huang et al. 2019.
    """
    return [
        actions[:num_microbatches]
        + [Action(kind, stage, k) for k in range(num_microbatches) for kind in "RB"]
        for stage, actions in enumerate(gpipe(num_stages, num_microbatches))
    ]


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """Warm-up forwards, then one forward and one backward in turn, then the remaining backwards.

    Stage s warms up with p - 1 - s forwards, just enough to be busy until its first gradient
    arrives, and so holds at most min(m, p - s) micro-batches.
    Source: Narayanan et al. 2021 (PipeDream-2BW), section 3.2.
    """
    check_counts(num_stages=num_stages, num_microbatches=num_microbatches)
    schedule = []
    for stage in range(num_stages):
        warmup = min(num_stages - 1 - stage, num_microbatches)
        forwards = [Action("F", stage, k) for k in range(num_microbatches)]
        backwards = [Action("B", stage, k) for k in range(num_microbatches)]
        schedule.append(in_turn(forwards, backwards, warmup))
    return schedule


def in_turn(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """`warmup` forwards, then a forward and a backward in turn, then the remaining backwards."""
    steady = [a for pair in zip(forwards[warmup:], backwards, strict=False) for a in pair]
    return forwards[:warmup] + steady + backwards[len(forwards) - warmup :]
