"""How many micro-batches to cut a batch into: the bubble against the cost of small pieces.

Why it exists
-------------
The bubble formula says: cut as finely as you can. But a micro-batch of b samples does not take
t1 b seconds. It takes t0 + t1 b: each piece also pays for its kernel launches, its messages and
its Python, however small it is. A batch of N samples in m pieces on p stages then needs

    (m + p - 1) (t0 + t1 N/m) = m t0 + t1 N + (p - 1) t0 + (p - 1) t1 N/m

seconds: the first term grows with m and the last falls. The best m is finite,
sqrt((p - 1) t1 N / t0); with t0 = 0 there would be no bound but N.

At a fixed batch, a larger micro-batch makes m smaller and the bubble *larger*; what it buys is
efficiency within a piece. Both are in the formula.

Sources: Narayanan et al. 2021 (PTD-P), section 3.4, has the same trade with a measured time for
each b instead of t0 + t1 b; Huang et al. 2019 (GPipe) for the bound on the speed-up.
"""

from __future__ import annotations


def step_seconds(
    num_stages: int,
    batch: int,
    num_microbatches: int,
    fixed_seconds: float,
    seconds_per_sample: float,
) -> float:
    """Seconds of one GPipe or 1F1B step: (m + p - 1)(t0 + t1 batch/m).

    t0 and t1 are for one stage, forward and backward together; stages are even.
    **Raises** ValueError for a batch that does not split evenly, or a negative time.
    """
    _check(num_stages, batch, fixed_seconds, seconds_per_sample)
    if num_microbatches < 1 or batch % num_microbatches:
        raise ValueError(
            f"a batch of {batch} in {num_microbatches} micro-batches: choose one of "
            f"{', '.join(map(str, _divisors(batch)))}"
        )
    microbatch = batch // num_microbatches
    return (num_microbatches + num_stages - 1) * (fixed_seconds + seconds_per_sample * microbatch)


def best_num_microbatches(
    num_stages: int, batch: int, fixed_seconds: float, seconds_per_sample: float
) -> int:
    """The divisor of `batch` with the shortest step, the smallest of equals.

    Without the demand for a divisor it would be sqrt((p - 1) t1 batch / t0), where the derivative
    of `step_seconds` in m, t0 - (p - 1) t1 batch/m^2, is zero.
    **Raises** ValueError for no sample, no stage, or a negative time.
    """
    _check(num_stages, batch, fixed_seconds, seconds_per_sample)

    def seconds(count: int) -> float:
        return step_seconds(num_stages, batch, count, fixed_seconds, seconds_per_sample)

    return min(_divisors(batch), key=seconds)  # min keeps the first of equals


def gpipe_speedup_bound(num_stages: int, num_microbatches: int) -> float:
    """Throughput of K stages over that of K = 2, M = 1, by the bubble alone: K M/(M + K - 1).

    With one micro-batch it is 1 for any K. A bound where everything but the bubble is ideal and
    the batch is the same; a changed batch can exceed it.
    **Raises** ValueError for less than 1. **Source** derived from Huang et al. 2019.
    """
    if min(num_stages, num_microbatches) < 1:
        raise ValueError(
            f"{num_stages} stages, {num_microbatches} micro-batches: each must be 1 or more"
        )
    return num_stages * num_microbatches / (num_microbatches + num_stages - 1)


def _divisors(batch: int) -> list[int]:
    return [count for count in range(1, batch + 1) if batch % count == 0]


def _check(num_stages: int, batch: int, fixed_seconds: float, seconds_per_sample: float) -> None:
    if min(num_stages, batch) < 1:
        raise ValueError(f"{num_stages} stages, batch {batch}: each must be 1 or more")
    if min(fixed_seconds, seconds_per_sample) < 0:
        raise ValueError(
            f"{fixed_seconds} s fixed and {seconds_per_sample} s a sample: must be 0 or more"
        )
