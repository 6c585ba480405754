"""`pedagogy bench`: this package beside PyTorch's own, on the same work, pair by pair.

The problem: on a shared machine the same work takes 1.0 s now and 1.3 s a minute later, so two runs
one after the other compare the minutes, not the programs. Here both programs live on the same ranks
in one launch and take turns; each pair gives one ratio, and the median of the ratios is printed. In
every second pair the twin goes first.

    ratio           the twin's seconds / our seconds: 1.0 is equal speed, above it we are faster
    bytes sent      what one step of all ranks put on this machine's loopback interface, both
                    programs measured by the same counters (Linux with gloo; elsewhere n/a)
    peak bytes      the most that was live during a step, per rank, by `memory_meter`

The rows stand in `rows.py`, `rows_pipeline.py`, `rows_tensor.py`, `rows_moe.py`,
`rows_precision.py`, `rows_accumulation.py`, `rows_recompute.py`, `rows_compression.py` and
`rows_optimizers.py`. A row's two functions each take a group and return the step to time: models
and buffers are made once, outside the measurement.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pedagogy.cli.chapters import CommandError

Step = Callable[[], Any]
WARM_UP_PAIRS = 3


@dataclass(frozen=True)
class Row:
    """One comparison: `ours(group)` and `twin(group)` return steps that do the same work."""

    name: str
    ours: Callable[[Any], Step]
    twin: Callable[[Any], Step]
    world_size: int = 2
    says: str = ""


@dataclass(frozen=True)
class Measured:
    """What one row gave, as medians over the pairs; seconds are those of the slowest rank."""

    name: str
    ratio: float
    ours_seconds: float
    twin_seconds: float
    ours_sent_bytes: int | None
    twin_sent_bytes: int | None
    ours_peak_bytes: int
    twin_peak_bytes: int


def training_step(model: Any, optimizer: Any, batch: Sequence[Any]) -> Step:
    """Forward, backward and update, for a batch that stays the same."""

    def step() -> None:
        model.loss(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def rows(names: Sequence[str] = ()) -> list[Row]:
    """The rows of these names, in the order of the chapters; all of them without a name.

    Raises: CommandError that lists the names there are.
    """
    from pedagogy.cli import rows as data_parallel
    from pedagogy.cli import rows_accumulation as accumulation
    from pedagogy.cli import rows_compression as compression
    from pedagogy.cli import rows_moe as moe
    from pedagogy.cli import rows_optimizers as optimizers
    from pedagogy.cli import rows_pipeline as pipeline
    from pedagogy.cli import rows_precision as precision
    from pedagogy.cli import rows_recompute as recompute
    from pedagogy.cli import rows_tensor as tensor

    parallel = (data_parallel, pipeline, tensor, moe)
    one_device = (precision, accumulation, recompute, compression, optimizers)
    there = [row for chapter in (*parallel, *one_device) for row in chapter.ROWS]
    unknown = set(names) - {row.name for row in there}
    if unknown:
        known = ", ".join(row.name for row in there) or "none"
        raise CommandError(f"no row is called {', '.join(sorted(unknown))}; there are: {known}")
    return [row for row in there if not names or row.name in names]


def measure(row: Row, pairs: int) -> Measured:
    """The row has run `pairs` times on its ranks, in one launch.

    Raises: CommandError if `pairs` is below 1.
    """
    if pairs < 1:
        raise CommandError(f"{pairs} pairs were asked for; at least 1 is needed")
    from pedagogy.ranks import launch

    run = list(launch(_worker, row.world_size, row.ours, row.twin, pairs, timeout=120.0))
    by_pair = zip(*(one["times"] for one in run), strict=True)  # each: (ours, twin) by rank
    slowest = [tuple(max(times) for times in zip(*ranks, strict=True)) for ranks in by_pair]
    ours, twin = zip(*slowest, strict=True)
    ratios = [theirs / mine for mine, theirs in slowest]
    return Measured(
        name=row.name,
        ratio=statistics.median(ratios),
        ours_seconds=statistics.median(ours),
        twin_seconds=statistics.median(twin),
        ours_sent_bytes=run[0]["sent"][0],
        twin_sent_bytes=run[0]["sent"][1],
        ours_peak_bytes=max(one["peaks"][0] for one in run),
        twin_peak_bytes=max(one["peaks"][1] for one in run),
    )


def print_list() -> None:
    """The rows' names, one a line."""
    for row in rows():
        print(f"{row.name}: {row.says or 'ours against PyTorch'} ({row.world_size} ranks)")


def print_table(names: Sequence[str], pairs: int) -> None:
    """Each row is measured and printed as soon as it is known."""
    chosen = rows(names)
    width = max((len(row.name) for row in chosen), default=3)
    head = f"{'row':{width}}  ranks   ratio  ours ms  twin ms   sent MB (ours/twin)"
    print(f"{head}   peak MB (ours/twin)")
    for row in chosen:
        one = measure(row, pairs)
        sent = f"{_megabytes(one.ours_sent_bytes)} / {_megabytes(one.twin_sent_bytes)}"
        peak = f"{_megabytes(one.ours_peak_bytes)} / {_megabytes(one.twin_peak_bytes)}"
        print(
            f"{row.name:{width}}  {row.world_size:5d}  {one.ratio:6.2f}  "
            f"{one.ours_seconds * 1e3:7.1f}  {one.twin_seconds * 1e3:7.1f}  {sent:>20}  {peak:>20}",
            flush=True,
        )


def _worker(group: Any, ours: Callable, twin: Callable, pairs: int) -> dict[str, Any]:
    steps = (ours(group), twin(group))
    peaks = [_peak_bytes(step) for step in steps]
    for _ in range(WARM_UP_PAIRS):
        for step in steps:
            step()
    times, sent = [], ([], [])
    for pair in range(pairs):
        seconds = [0.0, 0.0]
        for which in ((0, 1), (1, 0))[pair % 2]:
            group.barrier()
            before, start = _loopback_bytes(), time.perf_counter()
            steps[which]()
            seconds[which] = time.perf_counter() - start
            group.barrier()
            after = _loopback_bytes()
            if before is not None and after is not None:
                sent[which].append(after - before)
        times.append(tuple(seconds))
    medians = [int(statistics.median(one)) if one else None for one in sent]
    return {"times": times, "sent": medians, "peaks": peaks}


def _peak_bytes(step: Step) -> int:
    from pedagogy.measure import memory_meter

    with memory_meter() as meter:
        step()
    return meter.peak


def _loopback_bytes() -> int | None:
    """Bytes sent so far over the loopback interface, by all processes; None where unknown."""
    counter = Path("/sys/class/net/lo/statistics/tx_bytes")
    try:
        return int(counter.read_text())
    except (OSError, ValueError):
        return None


def _megabytes(num_bytes: int | None) -> str:
    return "n/a" if num_bytes is None else f"{num_bytes / 1e6:.2f}"
