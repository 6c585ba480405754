"""Where each saved tensor is over time, out of a profile and its prediction: spans to draw.

A tensor's life begins when forward has made it and ends after its last use in backward. Between the
two it lies on the device, in host memory, or nowhere, as `Prediction.moves` says. One that has been
called back counts as being on the device from then on: its place there is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

KEPT, HOST, NOWHERE = "on the device", "in host memory", "nowhere"
LARGE = 1 / 64  # of the largest: smaller ones have no row


class Life(NamedTuple):
    """A saved tensor: spans of (start, end, where), from when it was made to its last use."""

    name: str
    nbytes: int
    spans: tuple[tuple[float, float, str], ...]


def lives(profile: Any, prediction: Any, actions: Mapping[Any, str]) -> list[Life]:
    """Where each large saved tensor is over time, in the order of forward.

    profile, prediction, actions: of `recompute`'s `profile` and `predict`.
    """
    made = [event.end for event in prediction.events if event.kind == "F"]
    ends = [event.end for event in prediction.events if event.kind == "B"]
    moves: dict[Any, list[tuple[float, bool]]] = {}
    for second, key, is_back in prediction.moves:
        moves.setdefault(key, []).append((second, is_back))
    large = LARGE * max((saved.nbytes for saved in profile.saved.values()), default=0)
    found = []
    for key, saved in sorted(profile.saved.items()):
        if saved.nbytes >= large:
            used = ends[min(saved.asks[-1] + 1, len(ends) - 1)]
            away = HOST if actions.get(key) == "swap" else NOWHERE
            spans = _spans(made[key[0]], used, moves.get(key, ()), away)
            name = profile.name(key).replace("native_", "")
            found.append(Life(name, saved.nbytes, spans))
    return found


def _spans(
    start: float, end: float, moves: Sequence[tuple[float, bool]], away: str
) -> tuple[tuple[float, float, str], ...]:
    spans, where = [], KEPT
    for second, is_back in moves:
        if second < end:
            spans.append((start, second, where))
            start, where = second, KEPT if is_back else away
    return tuple(span for span in [*spans, (start, end, where)] if span[1] > span[0])


def turn_of(prediction: Any) -> float:
    """When forward is over."""
    return max(event.end for event in prediction.events if event.kind == "F")


def held_over_time(found: Sequence[Life]) -> list[tuple[float, int]]:
    """(second, bytes on the device), each holding until the next."""
    changes: dict[float, int] = {0.0: 0}
    for life in found:
        for start, end, where in life.spans:
            if where == KEPT:
                changes[start] = changes.get(start, 0) + life.nbytes
                changes[end] = changes.get(end, 0) - life.nbytes
    held, curve = 0, []
    for second in sorted(changes):
        held += changes[second]
        curve.append((second, held))
    return curve
