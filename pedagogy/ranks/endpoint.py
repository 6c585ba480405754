"""What every form of communication of a `Group` stands on: who is in it, and what is counted.

An endpoint is one rank's end of a group. It knows its peers, turns group ranks into global ones,
counts what was entered, sent and received (`watch` explains hangs from these counts), and makes the
ranks compare what they are about to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from pedagogy.ranks.handle import let_go, use_counts
from pedagogy.ranks.stream_clock import StreamClock
from pedagogy.ranks.trace import Event
from pedagogy.ranks.watch import Log, Need
from pedagogy.ranks.wire import Wire, check_dtype, describe, digest


class Endpoint:
    """One rank's end of a group of ranks.

    `rank` and `size` count within the group; `ranks[i]` is the global rank of the group's rank i.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        ranks: Sequence[int],
        log: Log,
        device: torch.device,
        staged: bool = False,
        name: str = "world",
    ) -> None:
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(log.rank)
        self.size = len(self.ranks)
        self.device = device
        self.name = name
        self.backend = dist.get_backend(process_group) if process_group is not None else "none"
        self._process_group = process_group
        self._log = log
        self._wire = Wire(device, staged)
        self._key = (log.number_group(name, self.ranks), name, self.ranks)
        self._stream_clock = StreamClock(log, device)
        self._lanes: dict[str, Endpoint] = {}
        self._awaited: set[int] = set()  # ranks of which a message is under way, with its header

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size}, global ranks {self.ranks})"

    def part(self, process_group: dist.ProcessGroup | None, ranks: Sequence[int], name: str):
        """The group of some of these ranks, `ranks` by their global numbers (see `grid`)."""
        return type(self)(process_group, ranks, self._log, self.device, self._wire.staged, name)

    def lane(self, name: str):
        """A further group of the same ranks, whose messages do not queue behind this one's.

        All ranks of the group must ask for it; it is made the first time and kept.
        """
        if name not in self._lanes:
            self._lanes[name] = self.subset(range(self.size), name)
        return self._lanes[name]

    def subset(self, ranks: Sequence[int], name: str):
        """A new group of some ranks of this one, by their numbers in it; those ranks call it.

        Its ranks are in ascending order, whatever the order of `ranks`.
        """
        ranks = sorted(ranks)
        for rank in ranks:
            self._check_peer("a rank of the subset", rank)
        if self.rank not in ranks:
            raise ValueError(f"rank {self.rank} is not in the subset {ranks}: only its ranks call")
        members, process_group = [self.ranks[rank] for rank in ranks], None
        if len(members) > 1:
            self._make_equally_many_groups(ranks)
            process_group = dist.new_group(members, use_local_synchronization=True)
        return self.part(process_group, members, f"{self.name}, {name}")

    def _make_equally_many_groups(self, ranks: list[int]) -> None:
        """Some ranks of the group have made equally many groups each.

        torch calls a group that only its members make by the number of groups that they have made
        before. Where that differs, they would wait for each other for ever under two names.
        """
        made = dist.distributed_c10d._world.pg_names
        number = torch.tensor([len(made)], device=self._wire.carrier)

        def hand(direction: str, x: torch.Tensor, peer: int) -> torch.Tensor:
            needs = self._count_message(direction, peer)
            move = dist.send if direction == "send" else dist.recv
            with self._log.waiting("subset", (self.ranks[peer],), needs):
                move(x, self.ranks[peer], group=self._process_group)
            return x

        first, *others = ranks
        if self.rank == first:
            numbers = [hand("recv", torch.empty_like(number), peer) for peer in others]
            number = torch.stack([number, *numbers]).max(0).values
            for peer in others:
                hand("send", number, peer)
        else:
            hand("send", number, first)
            hand("recv", number, first)
        while len(made) < number:
            dist.new_group([self._log.rank], use_local_synchronization=True)

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """torch's own group behind this one, for its APIs (DDP, DTensor); None for a rank alone."""
        return self._process_group

    @property
    def events(self) -> list[Event]:
        """The events that this rank logged so far, in all its groups."""
        self._log.settle()
        return self._log.events

    def now(self) -> float:
        """Seconds since all ranks were ready."""
        return self._log.now()

    @contextmanager
    def span(self, kind: str, name: str = "") -> Iterator[None]:
        """Log the block as an event of compute."""
        if self.device.type == "cuda":
            with self._stream_clock.span(kind, name):
                yield
            return
        start = self._log.now()
        yield
        self._log.add(kind, name, start)

    def _put_back(self, wire: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Write what the transport holds back into `x`, unless it worked on `x` itself."""
        if wire.data_ptr() != x.data_ptr() or wire.device != x.device:
            x.detach().copy_(self._wire.arrived(wire))
        return x

    def _peers(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.ranks if rank != self._log.rank)

    def _enter_collective(self) -> None:
        self._log.counts["collective", self._key] += 1

    def _collective_needs(self) -> tuple[Need, ...]:
        key = ("collective", self._key)
        count = self._log.counts[key]
        return tuple(Need(peer, key, count) for peer in self._peers())

    @contextmanager
    def _collective(self, kind: str, nbytes: int, *tensors: torch.Tensor) -> Iterator[None]:
        """Count, watch and log a collective on `tensors`, of which the transport then lets go."""
        start, counts = self._log.now(), use_counts(tensors)
        self._enter_collective()
        with self._log.waiting(kind, self._peers(), self._collective_needs()):
            yield
            if self.device.type == "cuda" and not self._wire.staged:
                torch.cuda.synchronize(self.device)
        let_go(tensors, counts)
        self._log.add(kind, "", start, nbytes, self._peers())

    def _count_message(self, direction: str, peer: int) -> tuple[Need, ...]:
        """Count a message to or from the group's rank `peer`; returns what it needs of it."""
        other = self.ranks[peer]
        sends = direction == "send"
        path = (self._log.rank, other) if sends else (other, self._log.rank)
        key = (direction, self._key, path)
        self._log.counts[key] += 1
        counterpart = ("recv" if sends else "send", self._key, path)
        return (Need(other, counterpart, self._log.counts[key]),)

    def agree(self, kind: str, tensors: list[torch.Tensor], *details: object) -> None:
        """Every rank is about to do the same thing to tensors of the same shapes and dtypes.

        **Raises** ValueError, on all ranks, with what each of them was about to do.
        """
        if self.size == 1:
            return
        for x in tensors:
            check_dtype(x)
        mine = describe(kind, tensors, *details)
        code = torch.tensor([digest(mine)], device=self._wire.carrier)
        codes = [torch.empty_like(code) for _ in self.ranks]
        self._enter_collective()
        with self._log.waiting(kind, self._peers(), self._collective_needs()):
            dist.all_gather(codes, code, group=self._process_group)
            if len({int(other) for other in codes}) == 1:
                return
            texts: list[str | None] = [None] * self.size
            dist.all_gather_object(texts, mine, group=self._process_group)
        rows = "\n".join(
            f"  rank {rank}: {text}" for rank, text in zip(self.ranks, texts, strict=True)
        )
        raise ValueError(
            f"the ranks do not agree on what to do together; every rank must do the same, with "
            f"tensors of the same shape and dtype:\n{rows}"
        )

    def _check_count(self, kind: str, xs: list[torch.Tensor]) -> None:
        if len(xs) != self.size:
            raise ValueError(
                f"{kind} takes one tensor for each of {self.size} ranks, got {len(xs)}"
            )

    def _check_peer(self, name: str, peer: int) -> None:
        if not 0 <= peer < self.size:
            raise ValueError(f"{name} is {peer}; the ranks of this group are 0 to {self.size - 1}")
        if name == "to" and peer == self.rank:
            raise ValueError(f"rank {peer} sends to itself; a message needs two ranks")

    def _check_sender(self, source: int) -> None:
        self._check_peer("source", source)
        if source == self.rank:
            raise ValueError(f"rank {source} receives from itself; a message needs two ranks")
        if source in self._awaited:
            raise ValueError(f"a message of rank {source} is awaited by irecv: wait() for it first")
