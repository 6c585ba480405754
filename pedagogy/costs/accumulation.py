"""What a batch in k pieces costs: bytes, seconds and communication against k.

Memory
------
The activations of one micro-batch live at a time, B/k of the batch's. The rest does not shrink:

    parameters + optimizer state + gradients + activations of B/k sequences

and there is one thing that grows: a single large batch starts its backward without gradients, while
every micro-batch after the first finds those of the others already there. So k = 2 saves half of
the activations and adds the gradients, 4 bytes a parameter: with few tokens it may need *more*.

Time
----
The FLOPs are the same. But a forward and backward of b sequences takes about t0 + t1 b seconds: t0
is what it costs to launch its operations, and what small products leave unused. For a window,

    k (t0 + t1 B/k) + update + communication = k t0 + t1 B + update + communication

Communication
-------------
With N ranks one all_reduce of the gradients a window, where k windows of their own would have k.
A ring sends 2 (N-1)/N of the gradients' bytes from each rank.

As seconds only grow with k, the best k is the smallest that fits.

Not modelled: buffers, scratch within an operation, micro-batches of unequal size, an all_reduce
that overlaps with the last backward.
Source: the arithmetic is elementary; tests hold it to the memory meter and to counted bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pedagogy.costs.communication import ring_all_reduce_bytes
from pedagogy.costs.memory import gpt_activation_bytes, gpt_parameters, model_states
from pedagogy.costs.multiples import nearest_multiples

_SCALARS = 4 + 8  # `accumulate`: the loss over the number of items, and the float64 mean


def gpt_peak_bytes(
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    num_microbatches: int,
    vocabulary: int = 256,
    optimizer: str = "adam",
) -> dict[str, int]:
    """Bytes by kind of our GPT at the peak of a window in fp32, from the second window on.

    Either the start of the last micro-batch's backward (its activations, two tensors of s b V, and
    the gradients of those before, if there are any), or the update. The first is exact where no
    operation makes more scratch than those 2 s b V; Adam's step counters are counted.
    **Raises** ValueError where the micro-batches do not divide the batch.
    """
    each = microbatch_size(batch, num_microbatches)
    count = gpt_parameters(layers, hidden, vocabulary, sequence)
    held = model_states(count, "fp32", optimizer)
    held["optimizer_state"] += 4 * (16 * layers + 4) if optimizer == "adam" else 0
    kept = gpt_activation_bytes(layers, hidden, heads, sequence, each, vocabulary)
    kept += 2 * 4 * sequence * each * vocabulary + _SCALARS
    waiting = held["gradients"] if num_microbatches > 1 else 0
    if waiting + kept > held["gradients"]:
        return {**held, "gradients": waiting, "activations": kept}
    return {**held, "activations": 0}


def microbatch_size(batch: int, num_microbatches: int) -> int:
    """Sequences in each micro-batch. **Raises** ValueError where they are not whole."""
    if batch < 1 or num_microbatches < 1 or batch % num_microbatches:
        near = nearest_multiples(batch, num_microbatches) if num_microbatches > 0 else "1 or more"
        raise ValueError(
            f"a batch of {batch} in {num_microbatches} micro-batches: must be a multiple of them, "
            f"such as {near}"
        )
    return batch // num_microbatches


def divisors(batch: int) -> list[int]:
    """The numbers of equal micro-batches that there can be, from 1 to one for each sequence."""
    return [k for k in range(1, batch + 1) if batch % k == 0]


def window_seconds(
    batch: int,
    num_microbatches: int,
    launch_seconds: float,
    seconds_per_sequence: float,
    update_seconds: float = 0.0,
    communication_seconds: float = 0.0,
) -> float:
    """k (t0 + t1 B/k) + update + communication.

    **Raises** ValueError where the micro-batches do not divide the batch, or for negative seconds.
    """
    parts = (launch_seconds, seconds_per_sequence, update_seconds, communication_seconds)
    if min(parts) < 0:
        raise ValueError(f"seconds {parts}: must be 0 or more")
    each = microbatch_size(batch, num_microbatches)
    computing = num_microbatches * (launch_seconds + seconds_per_sequence * each)
    return computing + update_seconds + communication_seconds


def fit_launch(sequences: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """t0 and t1 of the straight line t0 + t1 b through measured seconds, by least squares.

    Neither is below 0: the noise of a busy machine may say so, time cannot.
    **Shapes** as many seconds as sizes. **Raises** ValueError for fewer than two different sizes.
    """
    if len(set(sequences)) < 2 or len(sequences) != len(seconds):
        raise ValueError(
            f"sizes {list(sequences)} with {len(seconds)} times: at least two sizes must differ, "
            "each with its time"
        )
    mean_size, mean_seconds = sum(sequences) / len(sequences), sum(seconds) / len(seconds)
    apart = [size - mean_size for size in sequences]
    slope = sum(d * t for d, t in zip(apart, seconds, strict=True)) / sum(d * d for d in apart)
    if slope < 0:
        return mean_seconds, 0.0
    if slope * mean_size > mean_seconds:  # the line through 0 that fits best
        products = sum(size * t for size, t in zip(sequences, seconds, strict=True))
        return 0.0, products / sum(size * size for size in sequences)
    return mean_seconds - slope * mean_size, slope


def sent_bytes(gradient_bytes: int, num_microbatches: int, ranks: int) -> dict[str, float]:
    """Bytes that each rank of a ring sends for k micro-batches, with one all_reduce and with k.

    **Raises** ValueError as `ring_all_reduce_bytes` does, or for no micro-batch.
    """
    if num_microbatches < 1:
        raise ValueError(f"{num_microbatches} micro-batches: must be 1 or more")
    once = ring_all_reduce_bytes(gradient_bytes, ranks)
    return {"once a window": once, "for each micro-batch": num_microbatches * once}


def best_num_microbatches(batch: int, limit_bytes: int, peak_bytes: Callable[[int], int]) -> int:
    """The smallest number of equal micro-batches whose peak fits: the fastest that does.

    `peak_bytes(k)` is the peak with k of them.
    **Raises** ValueError that names the smallest peak, if none fits.
    """
    peaks = {k: peak_bytes(k) for k in divisors(batch)}
    for k, peak in peaks.items():
        if peak <= limit_bytes:
            return k
    k = min(peaks, key=peaks.get)
    raise ValueError(
        f"no number of micro-batches fits {limit_bytes} bytes: the least is {peaks[k]}, with {k}"
    )
