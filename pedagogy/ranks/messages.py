"""Messages between two ranks: send and recv, with and without a header, started or finished.

`send` and `recv` carry a header with shape and dtype, so the receiver needs to know nothing
and a wrong buffer cannot happen; `isend` and `irecv` start the same. `send_`, `recv_`, `isend_`,
`irecv_` and `exchange` carry none, for speed: the receiver brings a buffer that fits. Both sides
use the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from pedagogy.ranks.endpoint import Endpoint
from pedagogy.ranks.handle import Handle, finished
from pedagogy.ranks.watch import Need
from pedagogy.ranks.wire import HEADER_LENGTH, make_header, read_header


class Arrival:
    """A message with a header, under way: `wait()` returns its tensor."""

    def __init__(self, receive: Callable[[], torch.Tensor]) -> None:
        self._receive: Callable[[], torch.Tensor] | None = receive

    def wait(self) -> torch.Tensor:
        """The tensor, once it is here. **Raises** ValueError when it was fetched before."""
        if self._receive is None:
            raise ValueError("this message was fetched before: its tensor was returned then")
        receive, self._receive = self._receive, None
        return receive()


class _Works:
    """Several started messages, waited for as one."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class Messages(Endpoint):
    """The point-to-point half of a group."""

    def send(self, x: torch.Tensor, to: int) -> None:
        """Send `x`, with a header that tells its shape and dtype, to rank `to` of the group."""
        self._check_peer("to", to)
        header = make_header(x).to(self._wire.carrier)
        wire = self._wire.readable(x)
        start, peer = self._log.now(), self.ranks[to]
        needs = self._count_message("send", to)
        with self._log.waiting("send", (peer,), needs):
            dist.send(header, peer, group=self._process_group)
            if wire.numel():
                dist.send(wire, peer, group=self._process_group)
        self._log.add("send", "", start, wire.nbytes, (peer,))

    def isend(self, x: torch.Tensor, to: int) -> Handle:
        """Start `send`; `x` must not change before the handle's `wait()`."""
        self._check_peer("to", to)
        header, wire = make_header(x).to(self._wire.carrier), self._wire.readable(x)
        peer = self.ranks[to]
        needs = self._count_message("send", to)
        parts = [header, wire] if wire.numel() else [header]
        works = _Works([dist.isend(part, peer, group=self._process_group) for part in parts])
        return Handle(self._log, works, "send", wire.nbytes, (peer,), needs, keep=parts)

    def irecv(self, source: int) -> Arrival:
        """Start `recv`: the header is awaited from now on, the tensor comes with `wait()`.

        **Raises** ValueError where a message from `source` is awaited already: one at a time.
        """
        self._check_sender(source)
        header = self._wire.empty((HEADER_LENGTH,), torch.int64)
        work = dist.irecv(header, self.ranks[source], group=self._process_group)
        self._awaited.add(source)

        def receive() -> torch.Tensor:
            self._awaited.discard(source)
            needs = self._count_message("recv", source)  # now: until here the sender must wait
            with self._log.waiting("recv", (self.ranks[source],), needs):
                work.wait()
            return self._receive(source, needs, header)

        return Arrival(receive)

    def recv(self, source: int) -> torch.Tensor:
        """Receive what rank `source` of the group sent with `send`, as a new tensor."""
        self._check_sender(source)
        needs = self._count_message("recv", source)
        return self._receive(source, needs)

    def recv_any(self) -> tuple[int, torch.Tensor]:
        """Receive the next message of `send`, whoever sent it: (source, tensor). gloo only."""
        needs = []
        for peer in self._peers():
            path = (peer, self._log.rank)
            received = self._log.counts["recv", self._key, path]
            needs.append(Need(peer, ("send", self._key, path), received + 1))
        header = self._wire.empty((HEADER_LENGTH,), torch.int64)
        with self._log.waiting("recv_any", self._peers(), tuple(needs), any_peer=True):
            peer = dist.recv(header, group=self._process_group)
        source = self.ranks.index(peer)
        needs = self._count_message("recv", source)
        return source, self._receive(source, needs, header)

    def send_(self, x: torch.Tensor, to: int) -> None:
        """Send `x` without a header; the other side calls `recv_` with a buffer that fits."""
        self.isend_(x, to).wait()

    def recv_(self, buffer: torch.Tensor, source: int) -> torch.Tensor:
        """Fill `buffer`, of the shape and dtype that was sent, from `source`. Returns `buffer`."""
        self.irecv_(buffer, source).wait()
        return buffer

    def isend_(self, x: torch.Tensor, to: int) -> Handle:
        """Start `send_`; `x` must not change before the handle's `wait()`."""
        self._check_peer("to", to)
        wire, peer = self._wire.readable(x), self.ranks[to]
        needs = self._count_message("send", to)
        if not wire.numel():
            return finished()
        work = dist.isend(wire, peer, group=self._process_group)
        return Handle(self._log, work, "send", wire.nbytes, (peer,), needs, keep=[wire])

    def irecv_(self, buffer: torch.Tensor, source: int) -> Handle:
        """Start `recv_`; `buffer` is filled after the handle's `wait()`."""
        self._check_sender(source)
        wire, peer = self._wire.readable(buffer), self.ranks[source]
        needs = self._count_message("recv", source)
        if not wire.numel():
            return finished()
        work = dist.irecv(wire, peer, group=self._process_group)
        return Handle(
            self._log, work, "recv", 0, (peer,), needs, lambda: self._put_back(wire, buffer)
        )

    def exchange(
        self,
        sends: Sequence[tuple[torch.Tensor, int]] = (),
        receives: Sequence[tuple[torch.Tensor, int]] = (),
    ) -> None:
        """Send each (tensor, to) and fill each (buffer, source), all at once; returns when done.

        Two ranks that both send first and receive afterwards may wait for each other for ever;
        grouped, the order does not matter (NCCL must be told so, gloo starts them one by one).
        """
        if self.backend == "nccl":
            return self._exchange_grouped(sends, receives)
        handles = [self.irecv_(buffer, source) for buffer, source in receives]
        handles += [self.isend_(x, to) for x, to in sends]
        for handle in handles:
            handle.wait()
        return None

    def _receive(
        self, source: int, needs: tuple[Need, ...], header: torch.Tensor | None = None
    ) -> torch.Tensor:
        start, peer = self._log.now(), self.ranks[source]
        with self._log.waiting("recv", (peer,), needs):
            if header is None:
                header = self._wire.empty((HEADER_LENGTH,), torch.int64)
                dist.recv(header, peer, group=self._process_group)
            wire = self._wire.empty(*read_header(header, source))
            if wire.numel():
                dist.recv(wire, peer, group=self._process_group)
        self._log.add("recv", "", start, 0, (peer,))
        return self._wire.arrived(wire)

    def _exchange_grouped(self, sends: Sequence, receives: Sequence) -> None:
        out = [(self._wire.readable(x), self.ranks[to]) for x, to in sends]
        into = [(self._wire.readable(b), self.ranks[source]) for b, source in receives]
        operations = [dist.P2POp(dist.irecv, b, p, self._process_group) for b, p in into]
        operations += [dist.P2POp(dist.isend, x, p, self._process_group) for x, p in out]
        needs = [need for _, to in sends for need in self._count_message("send", to)]
        needs += [need for _, source in receives for need in self._count_message("recv", source)]
        start, peers = self._log.now(), tuple(sorted({peer for _, peer in out + into}))
        with self._log.waiting("exchange", peers, tuple(needs)):
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            torch.cuda.synchronize(self.device)
        for (wire, _), (buffer, _) in zip(into, receives, strict=True):
            self._put_back(wire, buffer)
        self._log.add("send", "", start, sum(x.nbytes for x, _ in out), peers)
