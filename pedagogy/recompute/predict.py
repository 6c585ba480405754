"""What a decision would cost: a profile, replayed with other actions.

Why it exists
-------------
A plan that must be run to know whether it fits is no plan. The profile says what is live at each
moment when everything is kept. From that, subtract what a decision drops, while it is gone; add
what it makes on the way; and count. The same numbers come out as when it runs, to the byte, as
long as nothing is swapped: *when* a copy is over depends on seconds.

How it works
------------
Forward: a storage that is dropped is gone from the operation on after which nobody else needs it
(`Saved.gone`); one that is swapped, when its copy out is over. Backward, at each ask: what is not
there is made again as the tape does it (`again`), while all that it holds is counted.

The link carries one copy at a time in each direction. A copy back starts when it is called, or
when the link is free; backward waits until it is over. Seconds are those of the profile: an
operation that runs again takes as long as it did.

Sources: Peng et al. 2020 (Capuchin), section 4.4; Wang et al. 2018 (SuperNeurons), section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pedagogy.ranks import Event
from pedagogy.recompute.again import ACTIONS, ALONE, KEEP, RECOMPUTE, SWAP
from pedagogy.recompute.made import Key, Op
from pedagogy.recompute.profile import Profile


class Prediction(NamedTuple):
    """What `predict` returns: bytes, seconds, operations that run again, and the timeline.

    `live`: the bytes at each moment that a memory meter would read. `moves`: the second, the
    storage, and whether it is on the device again (or has left it).
    """

    peak: int
    seconds: float
    extra_forwards: int
    extra_seconds: float
    stall: float
    live: tuple[int, ...]
    events: tuple[Event, ...]
    moves: tuple[tuple[float, Key, bool], ...]


def predict(
    profile: Profile,
    actions: Mapping[Key, str],
    link_bandwidth: float = float("inf"),
    calls: Mapping[int, Sequence[Key]] | None = None,
) -> Prediction:
    """The iteration of the profile, with these actions; whatever is not named is kept.

    `calls`: as for `Tape`. `link_bandwidth`: bytes per second, each way.
    **Raises** ValueError for a link that is not positive, or an unknown action.
    """
    check_link(link_bandwidth)
    unknown = sorted(set(actions.values()) - set(ACTIONS))
    if unknown:
        raise ValueError(f"actions {unknown}: choose among {', '.join(ACTIONS)}")
    replay = _Replay(profile, actions, link_bandwidth, calls)
    replay.forward()
    replay.backward()
    return Prediction(
        max(replay.live),
        replay.clock,
        replay.runs,
        replay.extra_seconds,
        replay.stall,
        tuple(replay.live),
        tuple(replay.events),
        tuple(replay.moves),
    )


def check_link(bandwidth: float) -> None:
    """**Raises** ValueError unless it carries something."""
    if not bandwidth > 0:
        raise ValueError(f"a link of {bandwidth} bytes per second: must be positive")


class _Replay:
    """The clock, the link and the live bytes, as the iteration goes on."""

    def __init__(
        self,
        profile: Profile,
        actions: Mapping[Key, str],
        bandwidth: float,
        calls: Mapping[int, Sequence[Key]] | None,
    ) -> None:
        self.profile, self.bandwidth, self.calls = profile, bandwidth, calls
        self.actions = {
            key: action
            for key, action in actions.items()
            if key in profile.saved and profile.repeats(key) and action != KEEP
        }
        self.pending = {key: len(saved.asks) for key, saved in profile.saved.items()}
        self.staying = set(self.actions)  # not yet gone
        self.absent: set[Key] = set()  # gone, and would be there if all were kept
        self.held: list[Key] = []  # by the node that asks
        self.making = 0  # bytes held on the way of making something again
        self.sent: dict[Key, float] = {}  # when the copy to the host is over
        self.called: dict[Key, float] = {}  # when the copy to the device is
        self.link_free = {"to_host": 0.0, "to_device": 0.0}
        self.clock = self.extra_seconds = self.stall = 0.0
        self.runs = 0
        self.live: list[int] = []
        self.events: list[Event] = []
        self.moves: list[tuple[float, Key, bool]] = []

    def forward(self) -> None:
        """Each operation; then what nobody needs leaves."""
        made: dict[int, list[Key]] = {}
        for key in self.actions:
            made.setdefault(key[0], []).append(key)
        for number, op in enumerate(self.profile.operations):
            self._compute("F", self.profile.name((number, 0)), op.seconds)
            for key in made.get(number, ()):
                if self.actions[key] == SWAP:
                    self.sent[key] = self._copy("to_host", key)
            self._leave(number)
            self._read(self.profile.live[number])

    def backward(self) -> None:
        """From ask to ask."""
        for ask, (seconds, readings) in enumerate(self.profile.backward):
            self._compute("B", str(ask), seconds)
            self._leave(len(self.profile.operations))
            if len(readings) > 1:  # something was computed: another node of the graph asks
                for key in self.held:
                    self.pending[key] -= 1
                self.held.clear()
            for reading in readings:
                self._read(reading)
            if ask < len(self.profile.asked):
                self._ask(ask, self.profile.asked[ask], readings[-1])

    def _ask(self, ask: int, key: Key, live: int) -> None:
        for called in self._coming(ask):
            self._call(called)
        if self.actions.get(key) == SWAP:
            self._fetch(key)
        elif key in self.absent:
            self._make(key, live)
            self.absent.discard(key)
        self.staying.discard(key)
        self.held.append(key)

    def _make(self, key: Key, live: int) -> None:
        """As `make_again` does."""
        missing = self._missing(key)
        reads = [(s, number) for number in missing for s in self.profile.operations[number].inputs]
        last_read = {**dict(reads), key: key[0] + 1}
        made_now: dict[Key, int] = {}
        for number in missing:
            op = self.profile.operations[number]
            for source in op.inputs:
                self._fetch(source)
            self.making = sum(made_now.values()) + sum(op.nbytes.values())
            self._read(live)
            self.runs += 1
            self.extra_seconds += op.seconds
            self._compute("R", self.profile.name((number, 0)), op.seconds)
            made_now |= {s: n for s, n in self._results(op, key[0]) if s in last_read}
            made_now = {s: n for s, n in made_now.items() if last_read[s] > number}
        self.making = 0

    def _missing(self, key: Key) -> list[int]:
        """The operations that must run, in order."""
        found: set[int] = set()
        waiting = [key[0]]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                inputs = self.profile.operations[number].inputs
                waiting += [source[0] for source in inputs if not self._is_there(source)]
        return sorted(found)

    def _results(self, op: Op, asked: int) -> Iterator[tuple[Key, int]]:
        """What an operation made again; what stays is live from now on, and counted there."""
        for output, nbytes in op.nbytes.items():
            key = (op.number, output)
            action = self.actions.get(key)
            stays = action == RECOMPUTE or (action == ALONE and op.number == asked)
            if stays and self.pending[key] and key in self.absent:
                self._return(key)
                nbytes = 0
            yield key, nbytes

    def _is_there(self, key: Key) -> bool:
        if not self.profile.repeats(key):
            return True  # it is held on to
        if self.actions.get(key) == SWAP:
            return bool(self.pending[key])
        return bool(self.pending.get(key)) and key not in self.absent

    def _leave(self, number: int) -> None:
        """After this operation: what is dropped, or sent by now, and needed by nobody else."""
        for key in [key for key in self.staying if key[0] <= number]:
            is_over = self.actions[key] != SWAP or self.sent[key] <= self.clock
            if self.profile.saved[key].gone <= number and is_over:
                self.staying.discard(key)
                self.absent.add(key)
                self.moves.append((self.clock, key, False))

    def _return(self, key: Key) -> None:
        self.absent.discard(key)
        self.moves.append((self.clock, key, True))

    def _read(self, live: int) -> None:
        absent = sum(self.profile.saved[key].nbytes for key in self.absent)
        self.live.append(live - absent + self.making)

    def _coming(self, ask: int) -> list[Key]:
        if self.calls is not None:
            return list(self.calls.get(ask, ()))
        return sorted(key for key in self.sent if key in self.absent)[-1:]

    def _call(self, key: Key) -> None:
        """What has left starts on its way back."""
        if key in self.sent and key in self.absent:
            self._return(key)
            self.called[key] = self._copy("to_device", key)

    def _fetch(self, key: Key) -> None:
        """Have what was swapped."""
        self._call(key)
        self._wait(self.called.get(key, 0.0))

    def _copy(self, way: str, key: Key) -> float:
        start = max(self.clock, self.link_free[way])
        end = start + self.profile.saved[key].nbytes / self.bandwidth
        self.link_free[way] = end
        lane, nbytes = (1 if way == "to_device" else 2), self.profile.saved[key].nbytes
        self.events.append(Event(lane, way, self.profile.name(key), start, end, nbytes))
        return end

    def _wait(self, until: float) -> None:
        self.stall += max(0.0, until - self.clock)
        self.clock = max(self.clock, until)

    def _compute(self, kind: str, name: str, seconds: float) -> None:
        self.events.append(Event(0, kind, name, self.clock, self.clock + seconds))
        self.clock += seconds
