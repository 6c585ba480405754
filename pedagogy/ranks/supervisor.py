"""One launch, seen from the notebook's side: start the ranks, listen, judge, end them.

All of this runs on a thread of its own. Python delivers an interrupt to the main thread only, so
nothing here is ever torn in the middle: the main thread asks it to cancel, and it cleans up.

How a launch is judged
    While the ranks run, the supervisor asks each of them every half second what it does. Three
    things end a launch besides a result: a rank that raised or died, ranks whose needs can no
    longer be met (`watch` says how that follows from counts), and one wait longer than `timeout`.
    When several ranks report an error, a dead process comes first and then the earliest exception:
    the others are its consequences.
"""

from __future__ import annotations

import pickle
import threading
import time
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from pedagogy.ranks import pickling, report
from pedagogy.ranks.process import Failure, Job
from pedagogy.ranks.starting import end_all, start_rank
from pedagogy.ranks.watch import blocked_by

POLL = 0.1  # seconds between two looks at the cancel flag
ASK_EVERY = 0.5  # seconds between two rounds of questions
SETTLE = 0.3  # seconds in which other reports of the same failure may still arrive
START_SECONDS = 120.0  # in which all ranks must have joined the group


class Returned(NamedTuple):
    """What a rank sent when its worker had returned; `alone`: no thread of it goes on."""

    result: Any
    events: list
    counts: dict
    alone: bool


class Cancelled(Exception):
    """The main thread was interrupted."""


class Supervisor:
    """Runs one launch; `run` returns what each rank returned."""

    def __init__(self, jobs: list[Job], cancel: threading.Event) -> None:
        self.jobs, self.cancel = jobs, cancel
        self.size = len(jobs)
        self.processes: list = []
        self.results: dict[int, Returned] = {}
        self.ready: set[int] = set()
        self.failures: list[Failure] = []
        self.deaths: dict[int, int | None] = {}
        self.round: dict[int, dict] = {}
        self.previous: dict[int, dict] = {}
        self.asked = 0.0

    def run(self) -> list[Returned]:
        """Start, listen and end; whatever happens, no process is left."""
        try:
            self._start()
            while len(self.results) < self.size:
                self._listen()
                if self.failures or self.deaths:
                    self._settle()
                    raise self._verdict()
                self._watch_start()
                self._ask()
            self._release()
            return [self.results[rank] for rank in range(self.size)]
        finally:
            end_all(self.processes)

    def _start(self) -> None:
        for job in self.jobs:
            if self.cancel.is_set():
                raise Cancelled
            self.processes.append(start_rank(job.rank, job.folder))
        for job, process in zip(self.jobs, self.processes, strict=True):
            try:
                process.connection.send_bytes(pickle.dumps(job))
            except OSError:
                self._note_death(job.rank)
        self.started = time.monotonic()

    def _listen(self, seconds: float = POLL) -> None:
        """Take what the ranks say, for at most `seconds`."""
        if self.cancel.is_set():
            raise Cancelled
        open_ranks = {
            process.connection: rank
            for rank, process in enumerate(self.processes)
            if rank not in self.deaths
        }
        for connection in wait(list(open_ranks), seconds):
            rank = open_ranks[connection]
            try:
                kind, value = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                self._note_death(rank)
                continue
            if kind == "ready":
                self.ready.add(rank)
            elif kind == "status":
                self.round[rank] = value
            elif kind == "failure":
                self.failures.append(value)
            elif kind == "result":
                self.results[rank] = Returned(self._load(rank, value[0]), *value[1:])
        for rank, process in enumerate(self.processes):  # a child of its own may hold the line open
            if rank in self.results or rank in self.deaths or process.connection.poll():
                continue
            if process.exit_code() is not None:
                self._note_death(rank)

    def _load(self, rank: int, result: bytes) -> Any:
        try:
            return pickling.load(result)
        except Exception as error:
            raise report.RankError(
                f"what rank {rank} returned cannot be read back: {type(error).__name__}: {error}",
                rank,
            ) from error

    def _note_death(self, rank: int) -> None:
        """The connection of a rank closed: find out how its process ended."""
        deadline = time.monotonic() + 1.0
        while (code := self.processes[rank].exit_code()) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        self.deaths[rank] = code

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE
        while (left := deadline - time.monotonic()) > 0:
            self._listen(left)

    def _verdict(self) -> report.RankError:
        if self.deaths:
            killed = sorted(self.deaths, key=lambda rank: (self.deaths[rank] or 0, rank))
            return report.died(killed[0], self.deaths[killed[0]], self.size)
        return report.raised(min(self.failures, key=lambda failure: failure.when), self.size)

    def _watch_start(self) -> None:
        late = [rank for rank in range(self.size) if rank not in self.ready]
        if late and time.monotonic() - self.started > START_SECONDS:
            raise report.RankError(f"ranks {late} did not start within {START_SECONDS:.0f} s")

    def _ask(self) -> None:
        """Every half second: judge the round of answers that is complete, and ask again."""
        now = time.monotonic()
        if len(self.ready) < self.size or now - self.asked < ASK_EVERY:
            return
        running = [rank for rank in range(self.size) if rank not in self.results]
        complete = all(rank in self.round for rank in running)
        if self.round and (complete or now - self.asked > 4 * ASK_EVERY):
            self._judge(running)
            self.previous, self.round = self.round, {}
        elif self.asked and not complete and now - self.asked < 4 * ASK_EVERY:
            return
        self.asked = now
        for rank in running:
            try:
                self.processes[rank].connection.send("status")
            except OSError:
                self._note_death(rank)

    def _judge(self, running: list[int]) -> None:
        """**Raises** HangError where a wait cannot end, or has lasted too long."""
        answers = {rank: status for rank, status in self.round.items() if rank in running}
        counts = {rank: status["counts"] for rank, status in answers.items()}
        counts |= {rank: returned.counts for rank, returned in self.results.items()}
        waiting = {rank: status["wait"] for rank, status in answers.items() if status["wait"]}
        rows = report.hang_rows(answers, self.results, self.size)
        table = report.table_text(rows)
        for rank, waits in waiting.items():
            peers = blocked_by(waits, counts)
            gone = [peer for peer in peers if peer in self.results and self.results[peer].alone]
            if gone and (not waits.any_peer or len(gone) == len(waits.peers)):
                raise report.HangError(
                    f"rank {gone[0]} finished normally while rank {rank} was still communicating "
                    f"with it ({waits.kind}): its worker returned too early\n\n{table}",
                    gone[0], rows,
                )  # fmt: skip
        if self._all_stuck(running, answers, counts):
            ring = report.circle(answers, counts)
            path = f" ({' -> '.join(map(str, ring))})" if ring else ""
            raise report.HangError(
                f"a dead-lock: every rank waits for another{path}, and none can go on\n\n{table}",
                None, rows,
            )  # fmt: skip
        for rank, waits in waiting.items():
            limit = self.jobs[rank].timeout
            if answers[rank]["now"] - waits.start > limit:
                raise report.HangError(
                    f"rank {rank} has waited in {waits.kind} for more than {limit:g} s (timeout)"
                    f"\n\n{table}",
                    rank, rows,
                )  # fmt: skip

    def _all_stuck(self, running: list[int], answers: dict, counts: dict) -> bool:
        """Whether every running rank has a need that only a stuck rank could meet.

        Two rounds in a row must be the same: then no rank moved between them, and the answers,
        though taken one after the other, describe one moment.
        """
        for rank in running:
            status, before = answers.get(rank), self.previous.get(rank)
            if status is None or before is None or not status["alone"]:
                return False
            if status["wait"] is None or status["wait"] != before["wait"]:
                return False
            if status["counts"] != before["counts"] or not blocked_by(status["wait"], counts):
                return False
        return bool(running) and all(returned.alone for returned in self.results.values())

    def _release(self) -> None:
        """All workers returned: let the ranks leave together."""
        for process in self.processes:
            try:
                process.connection.send("release")
            except OSError:
                continue
        deadline = time.monotonic() + 5.0
        for process in self.processes:
            while process.exit_code() is None and time.monotonic() < deadline:
                wait([process.connection], 0.005)
                if self.cancel.is_set():
                    raise Cancelled
