"""The errors of a launch, written for the person who has to find the mistake.

A failure names the rank that failed first and shows that rank's own traceback, with the lines of
the notebook's cell. A hang names, for each rank, what it waits for, from whom, since when, and on
which line of the worker; where the ranks wait for each other in a circle, it names the circle.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from pedagogy.ranks.process import Failure
from pedagogy.ranks.watch import Wait, blocked_by


class RankError(RuntimeError):
    """A rank failed. `rank` is its number (None where no single rank is to blame)."""

    def __init__(self, message: str, rank: int | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.kind = kind  # the name of the exception's class


class HangError(RankError):
    """Ranks waited for something that did not come. `table` has one row for each rank."""

    def __init__(self, message: str, rank: int | None = None, table: Sequence = ()) -> None:
        super().__init__(message, rank)
        self.table = list(table)


def raised(failure: Failure, world_size: int) -> RankError:
    """The error for a worker that raised."""
    first = f"rank {failure.rank} raised {failure.kind}: {failure.message}".rstrip(": ")
    stopped = (
        f"\n(the other ranks, {world_size - 1} of them, were stopped)" if world_size > 1 else ""
    )
    return RankError(
        f"{first}{stopped}\n\nOn rank {failure.rank}:\n{failure.trace}", failure.rank, failure.kind
    )


def died(rank: int, code: int | None, world_size: int) -> RankError:
    """The error for a process that ended before its worker returned."""
    if code is not None and code < 0:
        known = -code in iter(signal.Signals)  # real-time signals have no name
        name = signal.Signals(-code).name if known else "no name"
        cause = {
            "SIGKILL": "usually the system ended it because memory ran out, or somebody killed it",
            "SIGSEGV": "native code touched memory that was not its own",
            "SIGABRT": "native code gave up; its last words are in the output above, if any",
            "SIGBUS": "usually shared memory (/dev/shm) is full",
            "SIGTERM": "somebody asked it to end",
        }.get(name, "see `man 7 signal`")
        how = f"was killed by signal {-code} ({name}): {cause}"
    else:
        how = f"ended by itself before its worker returned (exit code {code})"
    stopped = (
        f" (the other ranks, {world_size - 1} of them, were stopped)" if world_size > 1 else ""
    )
    return RankError(f"rank {rank} {how}{stopped}", rank)


Row = tuple[str, str, str, str, str]


def hang_rows(
    statuses: Mapping[int, dict], done: Mapping[int, object], world_size: int
) -> list[Row]:
    """For each rank: rank, what it does, for whom it waits, for how long, on which line."""
    rows = []
    for rank in range(world_size):
        if rank in done:
            rows.append((str(rank), "has returned", "-", "-", "-"))
            continue
        status = statuses.get(rank)
        if status is None:
            rows.append((str(rank), "does not answer", "-", "-", "-"))
            continue
        wait: Wait | None = status["wait"]
        if wait is None:
            rows.append((str(rank), "computes", "-", "-", status["line"]))
            continue
        peers = ", ".join(map(str, wait.peers)) or "-"
        rows.append(
            (str(rank), wait.kind, peers, f"{status['now'] - wait.start:.1f} s", status["line"])
        )
    return rows


def table_text(rows: Sequence[Row]) -> str:
    """Rows under their headings, in columns."""
    lines = [("rank", "waits in", "for rank", "since", "line of the worker"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[4]]
        ).rstrip()
        for line in lines
    )


def circle(statuses: Mapping[int, dict], counts: Mapping[int, dict]) -> list[int]:
    """Ranks of which each waits for the next and the last for the first; empty if none do."""
    waits_for = {
        rank: blocked_by(status["wait"], dict(counts))
        for rank, status in statuses.items()
        if status["wait"] is not None
    }
    for start in sorted(waits_for):
        path = [start]
        while waits_for.get(path[-1]):
            following = waits_for[path[-1]][0]
            if following in path:
                return [*path[path.index(following) :], following]
            path.append(following)
    return []
