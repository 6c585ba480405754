"""Explorers of chapter 01: the ring step by step, buckets against overlap, and scaling.

The ring's steps are those that `pedagogy.collectives.ring` executes, and every duration comes from
`pedagogy.costs.communication`: the pictures cannot disagree with the code they explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from pedagogy.costs import communication as costs
from pedagogy.plots import style
from pedagogy.plots.curves import draw_curves, name_curves, plain_log
from pedagogy.widgets.bucket_pictures import draw_buckets, draw_exposed
from pedagogy.widgets.collective_pictures import step_figure
from pedagogy.widgets.collective_states import all_reduce, sent_after
from pedagogy.widgets.controls import choice
from pedagogy.widgets.explorer import Explorer, Try


def ring_last_step(ranks: int) -> int:
    """Return how many steps the ring takes: 2 (N - 1)."""
    return len(all_reduce(ranks).steps)


def render_ring_all_reduce(ranks: int, step: int) -> Figure:
    """Draw one step of the ring all-reduce: partial sums before and after, and what was sent."""
    plan = all_reduce(ranks)
    last = len(plan.steps)
    step = min(step, last)
    bound = costs.ring_all_reduce_bytes(1, ranks)
    if step == 0:
        finding = (
            f"{ranks} ranks start with a tensor each and end with the sum; in {last} steps each "
            f"rank sends 2(N-1)/N = {bound:.3g} tensors, under 2 for any N."
        )
    else:
        phase = plan.steps[step - 1][0].phase
        sent = max(sent_after(plan, ranks, step))
        finding = (
            f"Step {step} of {last}, {phase}: each rank has sent {sent:.3g} times the tensor, "
            f"of the 2(N-1)/N = {bound:.3g} that it will send in all."
        )
    return step_figure(plan, ranks, step, finding)


def ring_all_reduce_explorer() -> Explorer:
    """Return the explorer that walks through the ring all-reduce."""
    return Explorer(
        render_ring_all_reduce,
        play="step",
        last=ring_last_step,
        ranks=(2, 8, 4),
        step=(0, 6, 0),
        try_this=(
            Try(
                "two ranks",
                "each rank sends exactly one tensor: half to add up, half to hand on",
                {"ranks": 2, "step": 2},
            ),
            Try(
                "half-way with 4",
                "each rank holds one finished chunk, another one on each rank",
                {"ranks": 4, "step": 3},
            ),
            Try(
                "eight ranks",
                "14 steps instead of 6, but 1.75 tensors sent instead of 1.5: still under 2",
                {"ranks": 8, "step": 14},
            ),
        ),
    )


class Overlap(NamedTuple):
    """Buckets laid over a backward pass; times in seconds from its start.

    layers: (start, end, bucket) of each piece of backward. buckets: (start, end) of each
    all_reduce. exposed: how long communication lasts beyond backward.
    """

    layers: list[tuple[float, float, int]]
    buckets: list[tuple[float, float]]
    exposed_seconds: float


PIECES, PIECE_BYTES, RANKS = 40, 10 * 10**6, 8  # a model of 100 million parameters in fp32


def overlap(
    bucket_bytes: int, bandwidth: float, latency_seconds: float, backward_seconds: float
) -> Overlap:
    """Return when each bucket is reduced, if it may start once full and the link is free.

    Backward makes `PIECES` gradients of `PIECE_BYTES` one after another; a bucket closes when it
    holds at least `bucket_bytes`; a ring of `RANKS` reduces the buckets in order.
    """
    piece_seconds = backward_seconds / PIECES
    layers, sizes = [], [0]
    for piece in range(PIECES):
        if sizes[-1] >= bucket_bytes:
            sizes.append(0)
        sizes[-1] += PIECE_BYTES
        bucket = len(sizes) - 1
        layers.append((piece * piece_seconds, (piece + 1) * piece_seconds, bucket))
    buckets: list[tuple[float, float]] = []
    free = 0.0
    for bucket, size in enumerate(sizes):
        ready = max(end for _, end, its_bucket in layers if its_bucket == bucket)
        start = max(ready, free)
        free = start + costs.all_reduce_seconds(size, RANKS, latency_seconds, 1 / bandwidth)
        buckets.append((start, free))
    return Overlap(layers, buckets, free - backward_seconds)


BUCKETS = [size * 10**6 for size in (10, 20, 30, 40, 50, 80, 100, 200, 400)]


def render_bucket_overlap(
    bucket_bytes: int, bandwidth_GB_s: float, latency_us: float, backward_ms: float
) -> Figure:
    """Draw backward over the buckets' all-reduces, and the exposed time for each bucket size."""
    link = (bandwidth_GB_s * 1e9, latency_us * 1e-6, backward_ms * 1e-3)
    chosen = overlap(bucket_bytes, *link)
    exposed = [overlap(size, *link).exposed_seconds for size in BUCKETS]
    figure = style.new_figure(style.WIDTH, 4.6)
    draw_buckets(style.add_axes(figure, 0.95, 2.95, 8.85, 1.2), chosen, backward_ms * 1e-3)
    lower = style.add_axes(figure, 0.95, 0.55, 8.85, 1.5)
    draw_exposed(lower, BUCKETS, exposed, BUCKETS.index(bucket_bytes))
    best = BUCKETS[min(range(len(BUCKETS)), key=exposed.__getitem__)]
    return style.finding(
        figure,
        f"Buckets of {style.bytes_text(bucket_bytes)} ({len(chosen.buckets)} in all) leave "
        f"{style.seconds_text(chosen.exposed_seconds)} of communication exposed after backward; "
        f"{style.bytes_text(best)} would be best here "
        f"({style.seconds_text(min(exposed))}).",
    )


def bucket_overlap_explorer() -> Explorer:
    """Return the explorer of bucket size against overlap."""
    plain = {"bandwidth_GB_s": 10.0, "latency_us": 20.0, "backward_ms": 100.0}
    sizes = [(style.bytes_text(size), size) for size in BUCKETS]
    return Explorer(
        render_bucket_overlap,
        bucket_bytes=choice(sizes, 30 * 10**6),
        bandwidth_GB_s=(1.0, 50.0, 10.0, 0.5),
        latency_us=(0.0, 500.0, 20.0, 5.0),
        backward_ms=(20.0, 300.0, 100.0, 5.0),
        try_this=(
            Try(
                "one bucket",
                "nothing overlaps: the whole all_reduce, 70 ms, comes after backward",
                {**plain, "bucket_bytes": 400 * 10**6, "latency_us": 0.0},
            ),
            Try(
                "slow messages",
                "small buckets lose: 40 latencies in a row end later than a few larger ones",
                {**plain, "bucket_bytes": 10 * 10**6, "latency_us": 300.0},
            ),
            Try(
                "a slow link",
                "communication outlasts backward: no bucket size can hide it",
                {**plain, "bucket_bytes": 30 * 10**6, "bandwidth_GB_s": 2.0},
            ),
        ),
    )


ALGORITHMS = {"ring": "ring", "tree": "tree", "parameter server": "parameter_server"}
WORKERS = [2**power for power in range(11)]
SIZES = [10**5, 10**6, 10**7, 10**8, 10**9]


def efficiencies(
    workers: Sequence[int], num_bytes: int, alpha: float, beta: float, compute_seconds: float
) -> dict[str, list[float]]:
    """Return the scaling efficiency at each number of workers by algorithm, nothing overlapped."""
    return {
        name: [
            costs.scaling_efficiency(
                number, compute_seconds, num_bytes, alpha, beta, algorithm=algorithm
            )
            for number in workers
        ]
        for name, algorithm in ALGORITHMS.items()
    }


def render_scaling(
    workers: int, gradient_bytes: int, alpha_us: float, bandwidth_GB_s: float, compute_ms: float
) -> Figure:
    """Draw efficiency against workers for a ring, a tree and a parameter server."""
    costs_of = (gradient_bytes, alpha_us * 1e-6, 1e-9 / bandwidth_GB_s, compute_ms * 1e-3)
    curves = efficiencies(WORKERS, *costs_of)
    here = {name: values[0] for name, values in efficiencies([workers], *costs_of).items()}
    figure = style.new_figure(style.WIDTH, 3.9)
    ax = style.add_axes(figure, 0.75, 0.6, 7.7, 2.9)
    draw_curves(ax, {name: (WORKERS, values) for name, values in curves.items()}, markers=True)
    with style.styled():
        plain_log(ax.xaxis, 2.0)
        ax.set_ylim(0, 1.05)
        ax.set_xlim(1, WORKERS[-1])
        ax.axvline(workers, color=style.ACCENT, linewidth=1.2, linestyle=(0, (4, 2)), gid="workers")
        ax.set_xlabel("workers, each with its own batch")
        ax.set_ylabel("efficiency")
        ax.set_title("Share of the time that computes (nothing overlapped)")
        name_curves(ax)
    best = max(here, key=here.__getitem__)
    parts = ", ".join(f"{name} {value:.0%}" for name, value in here.items())
    return style.finding(
        figure, f"With {workers} workers the efficiency is {parts}: best is the {best}."
    )


def scaling_explorer() -> Explorer:
    """Return the explorer of scaling efficiency."""
    sizes = [(style.bytes_text(size), size) for size in SIZES]
    plain = {"bandwidth_GB_s": 10.0, "compute_ms": 100.0}
    return Explorer(
        render_scaling,
        workers=choice(WORKERS[1:], 64),
        gradient_bytes=choice(sizes, 10**8),
        alpha_us=(0.0, 200.0, 10.0, 1.0),
        bandwidth_GB_s=(0.5, 50.0, 10.0, 0.5),
        compute_ms=(10.0, 500.0, 100.0, 5.0),
        try_this=(
            Try(
                "large gradients",
                "the ring stays above 75 % at 64 workers, the server falls below 10 %",
                {**plain, "workers": 64, "gradient_bytes": 10**8, "alpha_us": 10.0},
            ),
            Try(
                "small gradients",
                "latency decides: the tree beats the ring",
                {**plain, "workers": 1024, "gradient_bytes": 10**5, "alpha_us": 50.0},
            ),
            Try(
                "latency nearly free",
                "the ring's efficiency hardly falls from 64 to 1024 workers: traffic is bounded",
                {**plain, "workers": 1024, "gradient_bytes": 10**8, "alpha_us": 0.0},
            ),
        ),
    )
