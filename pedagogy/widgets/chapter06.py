"""Explorer of chapter 06: memory, seconds and communication of a batch in k micro-batches.

All is computed, by `pedagogy.costs.accumulation`, for the small GPT (2 layers of 64, 64 tokens,
256 of vocabulary) in fp32 with Adam. The batch, k, and the ranks are powers of two, so that every
k up to the batch divides it. An all_reduce is a ring with 10 us a message and 10 GB/s.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from pedagogy.costs.accumulation import (
    best_num_microbatches,
    divisors,
    gpt_peak_bytes,
    sent_bytes,
    window_seconds,
)
from pedagogy.costs.communication import all_reduce_seconds
from pedagogy.costs.memory import gpt_parameters
from pedagogy.plots import style
from pedagogy.plots.accumulation import accumulation_figure
from pedagogy.widgets.controls import choice
from pedagogy.widgets.explorer import Explorer, Try

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 64}
VOCABULARY = 256
ALPHA, BETA = 1e-5, 1e-10  # seconds a message, seconds a byte
GRADIENT_BYTES = 4 * gpt_parameters(2, 64, VOCABULARY, 64)
BATCHES = [8, 16, 32, 64, 128]
KS = [1, 2, 4, 8, 16, 32, 64, 128]
RANKS = [1, 2, 4, 8, 16, 64]
LAUNCH = [0.0, 0.5e-3, 1e-3, 2e-3, 5e-3, 10e-3]
PER_SEQUENCE = [0.1e-3, 0.2e-3, 0.5e-3, 1e-3, 2e-3]
LIMITS = [2e6, 3e6, 4e6, 6e6, 10e6, 20e6, 40e6, 80e6]


def peak(batch: int, k: int) -> dict[str, int]:
    """Bytes by kind at the peak of a window of the small GPT."""
    return gpt_peak_bytes(**SIZES, batch=batch, num_microbatches=k, vocabulary=VOCABULARY)


def costs(batch: int, ranks: int, t0: float, t1: float) -> tuple[list[int], dict, list, dict]:
    """All k, peak bytes by kind, seconds of a window, and bytes sent by way, each for all k.

    `batch` is that of one rank.
    """
    ks = divisors(batch)
    peaks = [peak(batch, k) for k in ks]
    memory = {kind: [one[kind] for one in peaks] for kind in peaks[0]}
    wait = all_reduce_seconds(GRADIENT_BYTES, ranks, ALPHA, BETA)
    seconds = [window_seconds(batch, k, t0, t1, communication_seconds=wait) for k in ks]
    each = [sent_bytes(GRADIENT_BYTES, k, ranks) for k in ks]
    return ks, memory, seconds, {way: [one[way] for one in each] for way in each[0]}


def render_accumulation(
    batch: int, k: int, ranks: int, t0: float, t1: float, limit: float
) -> Figure:
    """Draw the costs against k; a k above the batch is the batch: one sequence at a time."""
    ks, memory, seconds, sent = costs(batch, ranks, t0, t1)
    chosen = min(k, batch)
    title = (
        f"{batch} sequences a rank in {chosen} micro-batches of {batch // chosen}, ranks: {ranks}"
    )
    figure = accumulation_figure(ks, memory, seconds, sent, limit=limit, chosen=chosen, title=title)
    told = figure.get_label()
    if min(sum(peak(batch, one).values()) for one in ks) <= limit:
        best = best_num_microbatches(batch, limit, lambda one: sum(peak(batch, one).values()))
        told += f" The smallest k that fits {style.bytes_text(limit)} is {best}."
    if chosen != k:
        told += f" k is {chosen}, not {k}: a batch of {batch} has no more pieces."
    return style.finding(figure, told)


def accumulation_explorer() -> Explorer:
    """Return the explorer of memory, seconds and bytes against k.

    Try this: with k = 1 nothing waits but the activations, and they are nearly all. With one
    sequence at a time the floor is left, which no k lowers. Without a cost of launching, k costs no
    time at all.
    """
    plain = {"batch": 64, "k": 1, "ranks": 4, "t0": 2e-3, "t1": 0.5e-3, "limit": 10e6}
    seconds = style.seconds_text
    return Explorer(
        render_accumulation,
        batch=choice(BATCHES, plain["batch"]),
        k=choice(KS, 8),
        ranks=choice(RANKS, plain["ranks"]),
        t0=choice([(seconds(one) if one else "0", one) for one in LAUNCH], plain["t0"]),
        t1=choice([(seconds(one), one) for one in PER_SEQUENCE], plain["t1"]),
        limit=choice([(style.bytes_text(one), one) for one in LIMITS], plain["limit"]),
        try_this=(
            Try(
                "all at once",
                "98 % of the peak are activations: k has something to cut",
                plain,
            ),
            Try(
                "the floor",
                "one sequence at a time: parameters, gradients and states are 68 % of what is "
                "left, and no k lowers them",
                {**plain, "k": 64},
            ),
            Try(
                "free launches",
                "t0 = 0: k = 64 takes as long as k = 1, for the FLOPs are the same",
                {**plain, "k": 64, "t0": 0.0},
            ),
        ),
    )
