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
there is made again, by the recursion that the tape runs, while all that it holds is counted.

The link carries one copy at a time in each direction. A copy back starts when it is called, or
when the link is free; backward waits until it is over. Seconds are those of the profile: an
operation that runs again takes as long as it did.

Sources: Peng et al. 2020 (Capuchin), section 4.4; Wang et al. 2018 (SuperNeurons), section 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pedagogy.ranks import Event
from pedagogy.recompute.made import Key
from pedagogy.recompute.profile import Profile
from pedagogy.recompute.tape import ALONE, KEEP, RECOMPUTE, SWAP


class Prediction(NamedTuple):
    """What `predict` returns: bytes, seconds, operations that run again, and the timeline.

    `live`: the bytes at each moment that a memory meter would read.
    """

    peak: int
    seconds: float
    extra_forwards: int
    extra_seconds: float
    stall: float
    live: tuple[int, ...]
    events: tuple[Event, ...]


def predict(
    profile: Profile,
    actions: Mapping[Key, str],
    link_bandwidth: float = float("inf"),
    calls: Mapping[int, Sequence[Key]] | None = None,
) -> Prediction:
    """The iteration of the profile, with these actions; whatever is not named is kept.

    `calls`: as for `Tape`. `link_bandwidth`: bytes per second, each way.
    """
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
    )


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
            if key in profile.saved and profile.operations[key[0]].repeats and action != KEEP
        }
        self.pending = {key: len(saved.asks) for key, saved in profile.saved.items()}
        self.staying = set(self.actions)  # not yet gone
        self.absent: set[Key] = set()  # gone, and would be there if all were kept
        self.held: set[Key] = set()  # by the node that asked last
        self.making = 0  # bytes held on the way of making something again
        self.sent: dict[Key, float] = {}  # when the copy to the host is over
        self.called: dict[Key, float] = {}  # when the copy to the device is
        self.link_free = {"to_host": 0.0, "to_device": 0.0}
        self.clock = self.extra_seconds = self.stall = 0.0
        self.runs = 0
        self.live: list[int] = []
        self.events: list[Event] = []

    def forward(self) -> None:
        """Each operation; then what nobody needs leaves."""
        made: dict[int, list[Key]] = {}
        for key in self.actions:
            made.setdefault(key[0], []).append(key)
        for number, op in enumerate(self.profile.operations):
            self._compute("F", op.name, op.seconds)
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
                self.held.clear()
            for reading in readings:
                self._read(reading)
            if ask < len(self.profile.asked):
                self._ask(ask, self.profile.asked[ask], readings[-1])

    def _ask(self, ask: int, key: Key, live: int) -> None:
        for called in self._coming(ask):
            self._call(called)
        if self.actions.get(key) == SWAP:
            self._call(key)
            self._wait(self.called[key])
        elif key in self.absent:
            self._make(key, key[0], live)
            self.making = 0
            self.absent.discard(key)
        self.staying.discard(key)
        self.held.add(key)
        self.pending[key] -= 1

    def _make(self, key: Key, asked: int, live: int) -> None:
        """The recursion of `Tape`: what is not there is made, and held while it is needed."""
        op = self.profile.operations[key[0]]
        before = self.making
        for source in op.inputs:
            if self.actions.get(source) == SWAP and self.pending[source]:
                self._call(source)
                self._wait(self.called[source])
            elif not self._is_there(source):
                self._make(source, asked, live)
        results = sum(op.nbytes.values())
        if "batch_norm" in op.name:  # its statistics, copied
            results += op.nbytes[1] + op.nbytes[2]
        self.making += results
        self._read(live)
        self.making = before
        self.runs += 1
        self.extra_seconds += op.seconds
        self._compute("R", op.name, op.seconds)
        for sibling in ((key[0], output) for output in op.nbytes):
            action = self.actions.get(sibling)
            stays = action == RECOMPUTE or (action == ALONE and key[0] == asked)
            if stays and self.pending[sibling]:
                self.absent.discard(sibling)
        if key in self.absent or key not in self.actions:
            self.making += op.nbytes[key[1]]  # whoever asked holds it

    def _is_there(self, key: Key) -> bool:
        if not self.profile.operations[key[0]].repeats:
            return True  # it is held on to
        kept = self.actions.get(key, KEEP) == KEEP and key in self.held
        return kept or (bool(self.pending.get(key)) and key not in self.absent)

    def _leave(self, number: int) -> None:
        """After this operation: what is dropped, or sent by now, and needed by nobody else."""
        for key in [key for key in self.staying if key[0] <= number]:
            is_over = self.actions[key] != SWAP or self.sent[key] <= self.clock
            if self.profile.saved[key].gone <= number and is_over:
                self.staying.discard(key)
                self.absent.add(key)

    def _read(self, live: int) -> None:
        absent = sum(self.profile.saved[key].nbytes for key in self.absent)
        self.live.append(live - absent + self.making)

    def _coming(self, ask: int) -> list[Key]:
        if self.calls is not None:
            return [key for key in self.calls.get(ask, ()) if key in self.sent]
        waiting = [key for key in self.sent if key not in self.called and self.pending[key]]
        return sorted(waiting)[-1:]

    def _call(self, key: Key) -> None:
        if key not in self.called:
            self._wait(self.sent[key])
            self.absent.discard(key)
            self.staying.discard(key)
            self.called[key] = self._copy("to_device", key)

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
