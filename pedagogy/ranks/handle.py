"""A communication under way: what the asynchronous forms of `Group` return.

A started communication runs on a thread (gloo) or a stream (NCCL) of its own, while the rank goes
on computing. Its event reaches from the start to the moment it ended, not to the moment somebody
waited: the difference is what overlap hides. The tensors involved are kept alive until `wait`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from pedagogy.ranks.trace import Event
from pedagogy.ranks.watch import Log, Need


def use_counts(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How many owners each tensor has, the transport's threads included."""
    return [tensor._use_count() for tensor in tensors]


def let_go(tensors: Sequence[torch.Tensor], counts: Sequence[int], seconds: float = 0.05) -> None:
    """Return when the transport owns no more of `tensors` than before (`counts`).

    gloo's thread reports that it is done a moment before it drops its references. A tensor that
    the worker drops in that moment would live on, and the memory meter would see it.
    """
    deadline = time.perf_counter() + seconds
    for tensor, count in zip(tensors, counts, strict=False):  # messages have no counts
        while tensor._use_count() > count and time.perf_counter() < deadline:
            time.sleep(0)


class Handle:
    """`wait()` returns when the communication is done and its tensors may be used."""

    def __init__(
        self,
        log: Log,
        work: dist.Work,
        kind: str,
        nbytes: int,
        peers: tuple[int, ...],
        needs: tuple[Need, ...],
        finish: Callable[[], object] | None = None,
        keep: Sequence[torch.Tensor] = (),
        counts: Sequence[int] = (),
        device: torch.device | None = None,
    ) -> None:
        self._log, self._work, self._finish, self._keep = log, work, finish, keep
        self._kind, self._nbytes, self._peers, self._needs = kind, nbytes, peers, needs
        self._device, self._counts = device, counts
        self._start, self._end = log.now(), None
        self._done = False
        log.under_way.add(self)
        if kind == "all_reduce":  # gloo's messages have no future
            work.get_future().add_done_callback(self._note_end)

    def _note_end(self, _: object) -> None:
        self._end = self._log.now()

    def wait(self) -> None:
        """Return when the communication is done. A second call returns at once."""
        if self._done:
            return
        with self._log.waiting(self._kind, self._peers, self._needs):
            self._work.wait()
        self._work = None
        let_go(self._keep, self._counts)
        if self._finish is not None:
            self._finish()
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        end = self._log.now() if self._end is None else self._end
        self._log.events.append(
            Event(self._log.rank, self._kind, "", self._start, end, self._nbytes, self._peers)
        )
        self._done, self._keep = True, ()
        self._log.under_way.discard(self)


class _Finished:
    def wait(self) -> None:
        """Nothing was started: nothing to wait for."""


def finished() -> Handle:
    """A handle of a communication that had nothing to do."""
    return _Finished()  # type: ignore[return-value]
