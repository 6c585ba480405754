"""What a pipeline schedule costs in time and in activations held, in closed form.

Why it exists
-------------
A simulation gives the cost of one schedule; a formula says why, and what to change. Here are the
formulas of the papers, each with the domain on which it is exact. For even stages and no time on
the wire, with p ranks, m micro-batches, v chunks per rank, F seconds of forward and B of backward:

| schedule | makespan | micro-batches in flight on rank s |
|---|---|---|
| naive | m p (F + B) | 1 |
| gpipe | (m + p - 1)(F + B) | m |
| one_f_one_b, pipedream | the same | min(m, p - s) |
| interleaved | m (F + B) + (p - 1)(F + B)/v | chunks: warm-up + 1, at most m v |
| zero_bubble_h1 | (m + p - 1)(F + B - W) + max(1, m - p + 1) W | min(m, p) |
| zero_bubble_h2 | m (F + B) + (p - 1) max(F, F + B - 3W) | min(m, 2p - 1) |

`pipedream` never flushes: its figures are those of one run over m micro-batches, updates free.

One bubble, two names
---------------------
The idle time of a rank can be compared with the whole makespan (`bubble_fraction`) or with the
rank's work (`bubble_ratio`): the same bubble, and for p = 4 and m = 8 once 0.27 and once 0.375. Say
which. It goes away slowly: with many stages it is almost a half of the makespan at m = p, and
almost a fifth at m = 4p.

Two meanings of B
-----------------
`backward` is everywhere the whole backward, and `weight` the part of it that computes weight
gradients. The zero-bubble paper's T_B is the first part alone, B - W: its (p - 1)(T_F + T_B - T_W)
is (p - 1)(F + B - 2W) here, and in DualPipe's README.

Sources: Huang et al. 2019 (GPipe); Narayanan et al. 2021 (PTD-P), section 2.2; Qi et al. 2023
(Zero Bubble), section 2. What is in no paper is derived in its docstring.
"""

from __future__ import annotations

from collections.abc import Sequence

from pedagogy.costs.multiples import nearest_multiples

SCHEDULES = (
    "naive",
    "gpipe",
    "one_f_one_b",
    "interleaved",
    "pipedream",
    "zero_bubble_h1",
    "zero_bubble_h2",
)


def bubble_fraction(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> float:
    """Idle time / (ranks x makespan) of GPipe and 1F1B: ((p-1)/v) / (m + (p-1)/v).

    Independent of F and B. With chunks: the interleaved schedule, m a multiple of p.
    **Raises** ValueError outside that. **Source** Narayanan et al. 2021 (PTD-P), section 2.2.
    """
    ratio = bubble_ratio(num_stages, num_microbatches, num_chunks)
    return ratio / (1 + ratio)


def bubble_ratio(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> float:
    """Idle time / busy time of GPipe and 1F1B: (p-1)/(v m).

    **Raises** ValueError as `bubble_fraction`. **Source** Narayanan et al. 2021 (PTD-P), 2.2.
    """
    _check(num_stages, num_microbatches, num_chunks)
    if num_chunks > 1:
        _check_rounds(num_stages, num_microbatches)
    return (num_stages - 1) / (num_chunks * num_microbatches)


def makespan(
    schedule: str,
    num_stages: int,
    num_microbatches: int,
    num_chunks: int = 1,
    forward: float = 1.0,
    backward: float = 2.0,
    weight: float = 1.0,
) -> float:
    """Time from the first start to the last end, by the table above; times of one whole rank.

    Exact for even stages without communication. H1 needs W <= F and W <= B - W. H2 needs
    m >= 2p - 1, W <= F and 3W <= F + B. The two were derived from the order of the actions.
    **Raises** ValueError outside that, and for chunks where there are none.
    """
    p, m, v = num_stages, num_microbatches, num_chunks
    _check_schedule(schedule, p, m, v)
    both = forward + backward
    if schedule == "naive":
        return m * p * both
    if schedule == "interleaved":
        return (m + (p - 1) / v) * both
    if schedule == "zero_bubble_h1":
        if weight > min(forward, backward - weight):
            raise ValueError(
                f"weight {weight}, forward {forward}, backward {backward}: H1's formula needs a "
                f"weight of at most {min(forward, backward / 2)}, forward or half of backward"
            )
        return (m + p - 1) * (both - weight) + max(1, m - p + 1) * weight
    if schedule == "zero_bubble_h2":
        if m < 2 * p - 1:
            raise ValueError(f"{m} micro-batches: H2 on {p} stages needs at least {2 * p - 1}")
        span_bubble = zero_bubble_h2_bubble(p, forward, backward, weight)
        return m * both + max((p - 1) * forward, span_bubble)
    return (m + p - 1) * both


def uneven_gpipe_makespan(
    forward: Sequence[float], backward: Sequence[float], num_microbatches: int
) -> float:
    """Makespan of GPipe with a time for each stage: sum + (m - 1) max, for F and for B.

    Exact for GPipe; 1F1B was never found to need longer.
    **Raises** ValueError if the two name different numbers of stages.
    """
    _check(len(forward), num_microbatches, 1)
    if len(forward) != len(backward):
        raise ValueError(f"{len(forward)} forward times and {len(backward)} backward times")
    return sum(sum(times) + (num_microbatches - 1) * max(times) for times in (forward, backward))


def zero_bubble_h1_bubble(
    num_stages: int, forward: float = 1.0, backward: float = 2.0, weight: float = 1.0
) -> float:
    """Idle time of each rank in H1: (p-1)(F + B - 2W), the paper's (p-1)(T_F + T_B - T_W).

    Exact for m >= p, W <= F and W <= B - W; a third of 1F1B's where F = B - W = W.
    **Raises** ValueError where it would be negative. **Source** Qi et al. 2023, Table 2.
    """
    return _zero_bubble(num_stages, forward, backward, weight, halves=2)


def zero_bubble_h2_bubble(
    num_stages: int, forward: float = 1.0, backward: float = 2.0, weight: float = 1.0
) -> float:
    """The largest idle time within a rank's own span in H2: (p-1)(F + B - 3W).

    The paper's (p-1)(T_F + T_B - 2T_W); needs m >= 2p - 1 and W <= F. Zero where F = B - W = W,
    while the makespan keeps the skew of the starts, (p-1) F.
    **Raises** ValueError for W > F, and where it would be negative.
    **Source** Qi et al. 2023, Table 2.
    """
    if weight > forward:
        raise ValueError(f"weight {weight}: H2's formula needs at most {forward}, the forward")
    return _zero_bubble(num_stages, forward, backward, weight, halves=3)


def gpipe_recomputing_bubble_fraction(
    num_stages: int,
    num_microbatches: int,
    forward: float = 1.0,
    backward: float = 2.0,
    recompute: float = 1.0,
) -> float:
    """Idle time / (ranks x makespan) of GPipe that recomputes before the gradient arrives.

    A rank works m (F + R + B). The last rank does so without a pause, after p - 1 forwards; then
    the last gradient passes p - 1 stages that have recomputed already: the bubble is (p-1)(F + B).
    Late recomputation waits for each gradient: (p-1)(F + R + B), which is `bubble_fraction`.
    **Source** Huang et al. 2019 (in words).
    """
    _check(num_stages, num_microbatches, 1)
    idle = (num_stages - 1) * (forward + backward)
    return idle / (idle + num_microbatches * (forward + recompute + backward))


def warmup_forwards(
    schedule: str, rank: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
) -> int:
    """Forwards (of chunks) that a rank runs before it takes forwards and backwards in turn.

    1F1B p - 1 - rank; H2 twice that; interleaved 2(p - rank - 1) + (v - 1)p, or all m v if m = p,
    but with one chunk it is 1F1B; naive none; GPipe all; never more than there are.
    **Raises** ValueError for an unknown schedule, rank, or number of micro-batches.
    **Source** Narayanan et al. 2021 (PTD-P), section 2.2, and Megatron-LM's schedules.
    """
    p, m, v = num_stages, num_microbatches, num_chunks
    _check_schedule(schedule, p, m, v)
    if not 0 <= rank < p:
        raise ValueError(f"rank {rank} of {p}: choose one from 0 to {p - 1}")
    to_the_end = p - 1 - rank
    if schedule == "interleaved" and v > 1:
        return m * v if m == p else min(2 * to_the_end + (v - 1) * p, m * v)
    wanted = {"naive": 0, "gpipe": m, "zero_bubble_h2": 2 * to_the_end}
    return min(wanted.get(schedule, to_the_end), m)


def in_flight(
    schedule: str, stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
) -> int:
    """The most micro-batches whose activations a stage holds at once, from start of F to end of B.

    In the interleaved schedule `stage` is the rank, and chunks of 1/v are counted; with a W,
    a micro-batch is in flight until W ends, on every stage as many.
    **Raises** ValueError as `warmup_forwards`.
    **Source** Narayanan et al. 2021 (PTD-P), section 2.2; Qi et al. 2023, Table 2.
    """
    p, m, v = num_stages, num_microbatches, num_chunks
    warmup = warmup_forwards(schedule, stage, p, m, v)
    if schedule == "zero_bubble_h1":
        return min(m, p)
    if schedule == "zero_bubble_h2":
        return min(m, 2 * p - 1)
    return min(warmup + 1, m * v)


def _zero_bubble(p: int, forward: float, backward: float, weight: float, halves: int) -> float:
    _check(p, 1, 1)
    if forward + backward < halves * weight:
        raise ValueError(
            f"weight {weight} with forward {forward} and backward {backward}: "
            f"at most {(forward + backward) / halves} fits the formula"
        )
    return (p - 1) * (forward + backward - halves * weight)


def _check_schedule(schedule: str, p: int, m: int, v: int) -> None:
    if schedule not in SCHEDULES:
        choices = ", ".join(map(repr, SCHEDULES))
        raise ValueError(f"unknown schedule {schedule!r}: choose one of {choices}")
    _check(p, m, v)
    if schedule == "interleaved":
        _check_rounds(p, m)
    elif v != 1:
        raise ValueError(f"{v} chunks in {schedule!r}: only 'interleaved' has more than 1")


def _check_rounds(p: int, m: int) -> None:
    if m % p:
        raise ValueError(
            f"{m} micro-batches on {p} ranks: the interleaved schedule needs a multiple of {p}, "
            f"for example {nearest_multiples(m, p)}"
        )


def _check(p: int, m: int, v: int) -> None:
    if min(p, m, v) < 1:
        raise ValueError(f"{p} stages, {m} micro-batches, {v} chunks: each must be 1 or more")
