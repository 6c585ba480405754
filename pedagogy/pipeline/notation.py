"""A schedule as one writes it: a line for each rank, "F0 F1 B0 B1".

`parse_schedule` is the inverse of `schedule_text`. "F1" is the forward of micro-batch 1 at the
stage with the rank's own number; "F1@3" names stage 3, for ranks that hold several chunks.
"""

from __future__ import annotations

import re

from pedagogy.pipeline.schedule import KINDS, Action, Schedule

_ACTION = re.compile(rf"([{KINDS}])(\d+)(?:@(\d+))?")


def parse_schedule(text: str) -> Schedule:
    """The schedule that a text describes; empty lines are left out.

    It is read, not checked: see `check_schedule`.
    **Raises** ValueError for no line, or with the line and the word that is no action.

    >>> parse_schedule("F0 B0")
    [[Action(kind='F', stage=0, microbatch=0), Action(kind='B', stage=0, microbatch=0)]]
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("no line: write one line for each rank, such as F0 F1 B0 B1")
    return [[_read(word, rank) for word in words] for rank, words in enumerate(lines)]


def _read(word: str, rank: int) -> Action:
    found = _ACTION.fullmatch(word.upper().rstrip(","))
    if found is None:
        raise ValueError(
            f"rank {rank}: {word!r} is no action; write one of {', '.join(KINDS)} and the number "
            f"of a micro-batch, such as F0, or F0@{rank} with the stage"
        )
    kind, microbatch, stage = found.groups()
    return Action(kind, rank if stage is None else int(stage), int(microbatch))
