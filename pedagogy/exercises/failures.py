"""What went wrong is told in one line, with the line of the learner's own code.

A traceback shows every frame, those of PyTorch and of this package too. A learner needs two things
of it: what the error says, and which of the lines that they wrote led to it. An error on a rank
comes as text, from another process, and is searched for the same two things.
"""

from __future__ import annotations

import dis
import linecache
import re
import traceback
from collections.abc import Callable
from typing import Any

from pedagogy.exercises.compare import shortened

ERROR_CHARACTERS = 400  # the most that is told of an error


def is_of_a_stub(error: NotImplementedError, function: Callable) -> bool:
    """Whether a `raise` in the learner's own code made it, and not an operation of PyTorch's."""
    place = error.__traceback__
    while place.tb_next is not None:
        place = place.tb_next
    code, own = place.tb_frame.f_code, getattr(function, "__code__", None)
    if own is None or code.co_filename != own.co_filename:
        return False
    return dis.opname[code.co_code[place.tb_lasti]] == "RAISE_VARARGS"


def signature(error: BaseException) -> str:
    """The class and the text of the error: two that agree in this are the same."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its __str__ fails
        return type(error).__name__


def where(error: BaseException, function: Callable) -> str:
    """The error, with the line of the learner's own code on which it was raised."""
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    text = shortened(f"it raises {signature(error)}", ERROR_CHARACTERS)
    if not own:
        return text
    line = own[-1].line or linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()
    return f"{text} (line {own[-1].lineno}: `{line}`)" if line else text


def hang_text(error: Any) -> str:
    """A HangError's finding and its table, in one line."""
    rows = []
    for rank, what, peers, _, line in error.table:
        to = "" if peers == "-" else f" (rank {peers})"
        at = "" if line in ("", "-") else f" at {line}"
        rows.append(f"rank {rank}: {what}{to}{at}")
    return f"{str(error).splitlines()[0]}; {'; '.join(rows)}"


def rank_text(error: Any, function: Callable) -> str:
    """What a RankError says in one line, with the line of the learner's own code if there is one.

    An error of several lines, such as a ValueError with a line for each rank, is joined.
    """
    message = str(error).split("\n\n", 1)[0].split("\n(the other ranks", 1)[0]
    head, *rows = [line.strip() for line in message.splitlines()]
    text = f"{head} {'; '.join(rows)}" if rows else head
    text = shortened(text, ERROR_CHARACTERS)
    code = getattr(function, "__code__", None)
    name = re.escape(code.co_name) if code is not None else "unknown"
    own = re.findall(rf"line (\d+), in {name}\n\s*(.+)", str(error))
    return f"{text} (line {own[-1][0]}: `{own[-1][1].strip()}`)" if own else text
