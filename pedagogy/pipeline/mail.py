"""Mail between stages: sends that never block, received in the order in which they were sent.

The problem
-----------
A gloo send returns when the other side has received, even if it is 40 bytes: two neighbours that
both send first wait for each other for ever. In the steady state of 1F1B that is what neighbours
do: one has an activation for the other, which has a gradient for it.

How it works
------------
[1] A send is started and not waited for. What was sent is kept until it is known to have arrived.
[2] It is known without asking: what comes back from a rank was computed after everything that
    stands before it in that rank's list, so all messages that those actions needed are there.
[3] Two ranks may owe each other several messages at a time (with chunks, activations and gradients
    of several stages), and the receiver may need them in another order than they are sent in. The
    receiver knows the schedule, hence the order in which they come; it opens them in that order
    and keeps those that it does not need yet.
[4] The next message of each rank is awaited from the start, not only once it is needed.

What it costs
-------------
What was sent stays in memory until [2]: under 1F1B a message or two, under GPipe, where nothing
comes back before the backwards, all m activations. A message is two, header and tensor.

What real systems do differently: they pair each send with the receive that the neighbour does at
the same moment, and start both as one group; NCCL needs that, or, as here, one queue for messages
to higher ranks and one for messages to lower ones (written, not run).
"""

from __future__ import annotations

from collections import deque

from torch import Tensor

from pedagogy.pipeline.schedule import Action, Layout, Schedule
from pedagogy.ranks import Group


def consumer_of(action: Action, num_stages: int) -> Action | None:
    """The action that waits for what this one sends: the next stage's F, or the last one's B."""
    kind, stage, k = action
    if kind == "F" and stage < num_stages - 1:
        return Action("F", stage + 1, k)
    if kind == "B" and stage > 0:
        return Action("B", stage - 1, k)
    return None


class Mail:
    """What this rank sends and receives while it works through a schedule."""

    def __init__(self, group: Group, schedule: Schedule, layout: Layout) -> None:
        self._group, self._layout = group, layout
        self._here: dict[Action, Tensor] = {}  # arrived, not used yet
        self._expected = {peer: deque() for peer in range(group.size)}  # [3]
        self._place: dict[Action, int] = {}  # where an action stands in its rank's list
        self._sent: dict[int, deque] = {peer: deque() for peer in range(group.size)}
        for peer, actions in enumerate(schedule):
            for place, action in enumerate(map(Action._make, actions)):
                self._place[action] = place
                consumer = consumer_of(action, layout.num_stages)
                if consumer and peer != group.rank and self._home(consumer) == group.rank:
                    self._expected[peer].append((consumer, place))
        if group.backend == "nccl":
            self._lanes = {name: group.lane(name) for name in ("up", "down")}
        self._posted = {peer: self._post(peer) for peer in self._expected}  # [4]

    def send(self, x: Tensor, consumer: Action) -> None:
        """Start to send what `consumer` waits for; `x` must not be changed any more."""
        to = self._home(consumer)
        if to == self._group.rank:
            self._here[consumer] = x
        else:  # [1]
            started = self._lane(self._group.rank, to).isend(x, to)
            self._sent[to].append((self._place[consumer], started))

    def receive(self, consumer: Action) -> Tensor:
        """What `consumer` waits for."""
        source = self._source(consumer)
        while consumer not in self._here:
            action, place = self._expected[source].popleft()
            self._here[action] = self._posted[source].wait()
            self._posted[source] = self._post(source)
            self._acknowledge(source, place)
        return self._here.pop(consumer)

    def close(self) -> None:
        """Everything that was sent has arrived."""
        for sent in self._sent.values():
            while sent:
                sent.popleft()[1].wait()

    def _acknowledge(self, peer: int, place: int) -> None:  # [2]
        sent = self._sent[peer]
        for entry in [entry for entry in sent if entry[0] < place]:
            sent.remove(entry)
            entry[1].wait()

    def _post(self, peer: int):
        if not self._expected[peer]:
            return None
        return self._lane(peer, self._group.rank).irecv(peer)

    def _lane(self, sender: int, receiver: int) -> Group:
        if self._group.backend != "nccl":
            return self._group
        return self._lanes["up" if sender < receiver else "down"]

    def _home(self, action: Action) -> int:
        return self._layout.rank_of(action.stage, action.microbatch)

    def _source(self, consumer: Action) -> int:
        kind, stage, k = consumer
        return self._layout.rank_of(stage - 1 if kind == "F" else stage + 1, k)
