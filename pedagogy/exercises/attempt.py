"""A function is tried on an exercise's cases, here or on ranks, whatever it does.

A learner's function may raise, return nothing, change its input, loop for ever or dead-lock. Each
of these is an outcome, not an accident: `attempt` returns it, with one line that says what
happened. In this process the function runs in a thread of its own, which is told to stop when its
time is over. On ranks a dead-lock ends by `launch`'s own timeout, and a rank that computes for ever
is interrupted by a watchdog.
"""

from __future__ import annotations

import copy
import ctypes
import dis
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from pedagogy.exercises.compare import difference
from pedagogy.exercises.failures import hang_text, is_of_a_stub, rank_text, signature, where

HERE_SECONDS = 10.0
WAIT_SECONDS = 5.0  # the longest wait of one communication, in an exercise on ranks
RANK_SECONDS = 30.0  # the longest run of all cases on a rank


class TimeIsOver(BaseException):
    """Raised inside a function that has used up its time; no `except Exception` catches it."""


class NotWritten(Exception):
    """Raised in place of the NotImplementedError that a stub raises itself."""


class Refused(Exception):
    """Raised by an exercise's `observe`: an answer that cannot be measured, and why."""


@dataclass(frozen=True)
class Outcome:
    """What a function did with all cases.

    `kind` is "value" (`value[rank][case]` holds what it returned), "blank" (a stub's own
    NotImplementedError), "raised", "refused" (by `observe`), "looped" (no end), "hung" (ranks
    waited in vain) or "changed" (an argument was changed in place). Two outcomes are the same if
    `kind` and `value` are; `detail` says in one line what happened.
    """

    kind: str
    value: Any = None
    detail: str = ""
    trace: Any = None


def attempt(
    function: Callable, cases: Sequence, ranks: int | None, observe: Callable | None
) -> Outcome:
    """The outcome of all cases: `function(*arguments)`, or on ranks `function(group, *arguments)`.

    `observe(function, *arguments)`, where there is one, makes the call and returns what counts.
    """
    if ranks is None:
        return _attempt_here(function, cases, observe)
    return _attempt_on_ranks(function, cases, ranks, observe)


def arguments_of(case: Any, rank: int = 0) -> tuple:
    """A fresh copy of a case's arguments: a tuple, or a function of the rank that makes one."""
    return case(rank) if callable(case) else copy.deepcopy(case)


def has_no_body(function: Callable) -> bool:
    """Whether the function's code does nothing but return None: a stub that nobody has filled."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    nothing = ("RESUME", "NOP", "COPY_FREE_VARS")
    steps = [(one.opname, one.argval) for one in dis.get_instructions(code)]
    steps = [step for step in steps if step[0] not in nothing]
    # Python 3.12 and 3.13 have one instruction for both
    return steps in ([("LOAD_CONST", None), ("RETURN_VALUE", None)], [("RETURN_CONST", None)])


def _attempt_here(function: Callable, cases: Sequence, observe: Callable | None) -> Outcome:
    box: list[Outcome] = []

    def work() -> None:
        try:
            box.append(_try_cases(function, cases, observe, (), 0))
        except TimeIsOver:
            pass
        except NotWritten:
            box.append(Outcome("blank"))
        except Refused as error:
            box.append(Outcome("refused", str(error), str(error)))
        except BaseException as error:
            box.append(Outcome("raised", signature(error), where(error, function)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HERE_SECONDS)
    if thread.is_alive():
        _interrupt(thread.ident)
        thread.join(2.0)
        if not box:
            still = " (it still runs: restart the kernel)" if thread.is_alive() else ""
            return Outcome("looped", None, f"no end after {HERE_SECONDS:.0f} s{still}")
    return box[0]


def _try_cases(
    function: Callable, cases: Sequence, observe: Callable | None, first: tuple, rank: int
) -> Outcome:
    call = function if observe is None else partial(observe, function)
    results, changed = [], None
    for case in cases:  # to the last case, so that ranks which wait for this one are not deserted
        arguments, before = arguments_of(case, rank), arguments_of(case, rank)
        try:
            results.append(call(*first, *arguments))
        except NotImplementedError as error:
            if is_of_a_stub(error, function):
                raise NotWritten from error
            raise
        if observe is not None:
            continue
        for index, (one, other) in enumerate(zip(arguments, before, strict=True)):
            if changed is None and _is_plain(other) and difference(one, other, 0.0):
                changed = index
    if changed is not None:
        name = _argument_name(function, changed + len(first))
        return Outcome("changed", changed, f"it changes its argument {name} in place")
    return Outcome("value", [results])


def _attempt_on_ranks(
    function: Callable, cases: Sequence, ranks: int, observe: Callable | None
) -> Outcome:
    from pedagogy.ranks import HangError, RankError, launch

    try:
        run = launch(
            _worker,
            ranks,
            function,
            cases,
            observe,
            RANK_SECONDS,
            device="cpu",
            timeout=WAIT_SECONDS,
        )
    except HangError as error:
        return Outcome("hung", [list(row[:3]) for row in error.table], hang_text(error))
    except RankError as error:
        if error.kind == TimeIsOver.__name__:
            text = f"no end after {RANK_SECONDS:.0f} s on rank {error.rank}"
            return Outcome("looped", None, text)
        if error.kind == NotWritten.__name__:
            return Outcome("blank")
        return Outcome("raised", str(error).splitlines()[0], rank_text(error, function))
    for outcome in run:
        if outcome.kind != "value":
            return outcome
    return Outcome("value", [outcome.value[0] for outcome in run], "", run.trace)


def _worker(
    group: Any, function: Callable, cases: Sequence, observe: Callable | None, seconds: float
) -> Outcome:
    with _watchdog(seconds):
        return _try_cases(function, cases, observe, (group,), group.rank)


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """After that time TimeIsOver is raised in the thread that entered."""
    timer = threading.Timer(seconds, _interrupt, [threading.get_ident()])
    timer.daemon, timer.name = True, "pedagogy-watchdog"
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _interrupt(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeIsOver))


def _is_plain(value: Any) -> bool:
    """Whether the value consists of numbers, strings, tensors, and lists and dicts of these."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (int, float, complex, str, torch.Tensor, np.ndarray, type(None)))


def _argument_name(function: Callable, index: int) -> str:
    try:
        return f"`{list(inspect.signature(function).parameters)[index]}`"
    except (ValueError, TypeError, IndexError):
        return f"number {index + 1}"
