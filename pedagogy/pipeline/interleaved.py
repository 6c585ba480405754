"""The interleaved schedule: each rank holds several chunks of the model, far apart.

The problem
-----------
The bubble of 1F1B is (p - 1)(tF + tB): the time a micro-batch needs to pass through the ranks once.
To make it shorter, make the pieces shorter.

How it works
------------
The model is cut into p v stages instead of p. Rank r holds stages r, p + r, 2p + r, ...: v chunks.
A micro-batch passes v times around the ranks, each visit takes 1/v of the time, and the line fills
and drains v times faster: the bubble shrinks to (p - 1)(tF + tB)/v.

Micro-batches go in rounds of p. A rank runs p micro-batches through its first chunk, the same p
through its second, ..., then the next round; backwards in the same pattern, last chunk first.

What it costs
-------------
v times the messages (each boundary between chunks is crossed by every micro-batch), and more in
flight: rank r warms up with 2(p - r - 1) + (v - 1)p chunk-forwards, where 1F1B needs p - r - 1.

What real systems do differently: Megatron demands that m is a multiple of p, as `interleaved` does.
PyTorch takes any m that splits into max(1, m // p) equal rounds: `interleaved_in_rounds`.

Source: Narayanan et al. 2021 (PTD-P), section 2.2.
"""

from __future__ import annotations

from pedagogy.costs.multiples import nearest_multiples
from pedagogy.pipeline.schedule import Action, Schedule, check_counts
from pedagogy.pipeline.schedules import in_turn, one_f_one_b


def interleaved(num_ranks: int, num_microbatches: int, num_chunks: int) -> Schedule:
    """1F1B over num_ranks * num_chunks stages; stage c * num_ranks + r is chunk c of rank r.

    With one chunk it is 1F1B itself.
    **Raises** ValueError unless num_microbatches is a multiple of num_ranks, and names the nearest.
    Source: Narayanan et al. 2021 (PTD-P), section 2.2.
    """
    check_counts(num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    if num_microbatches % num_ranks:
        raise ValueError(
            f"{num_microbatches} micro-batches on {num_ranks} ranks: the interleaved schedule "
            f"needs a multiple of {num_ranks}, for example "
            f"{nearest_multiples(num_microbatches, num_ranks)}"
        )
    if num_chunks == 1:
        return one_f_one_b(num_ranks, num_microbatches)
    return _rounds(num_ranks, num_microbatches, num_chunks, per_round=num_ranks)


def interleaved_in_rounds(num_ranks: int, num_microbatches: int, num_chunks: int) -> Schedule:
    """The interleaved schedule with max(1, m // p) rounds of equal size, which need not be p.

    A single round is all warm-up here, as in Megatron; PyTorch keeps its formula there.
    **Raises** ValueError where the rounds would be unequal, and names the nearest that fit.
    Source: PyTorch's torch.distributed.pipelining.ScheduleInterleaved1F1B.
    """
    check_counts(num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)

    def fits(count: int) -> bool:
        return count % max(1, count // num_ranks) == 0

    if not fits(num_microbatches):
        below = next(n for n in range(num_microbatches, 0, -1) if fits(n))
        above = next(n for n in range(num_microbatches, 2 * num_microbatches) if fits(n))
        raise ValueError(
            f"{num_microbatches} micro-batches on {num_ranks} ranks do not split into "
            f"{num_microbatches // num_ranks} equal rounds; {below} or {above} would"
        )
    per_round = num_microbatches // max(1, num_microbatches // num_ranks)
    return _rounds(num_ranks, num_microbatches, num_chunks, per_round)


def _rounds(p: int, m: int, v: int, per_round: int) -> Schedule:
    schedule = []
    for rank in range(p):
        visits = [  # (chunk, micro-batch), in the order of the forwards
            (chunk, k)
            for first in range(0, m, per_round)
            for chunk in range(v)
            for k in range(first, first + per_round)
        ]
        forwards = [Action("F", chunk * p + rank, k) for chunk, k in visits]
        backwards = [Action("B", (v - 1 - chunk) * p + rank, k) for chunk, k in visits]
        warmup = min(2 * (p - rank - 1) + (v - 1) * per_round, m * v)
        if m == per_round:  # a single round: nothing could be in turn
            warmup = m * v
        schedule.append(in_turn(forwards, backwards, warmup))
    return schedule
