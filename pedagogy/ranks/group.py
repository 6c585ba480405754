"""`Group`: the ranks that talk to each other, and everything that they can say.

Why it exists
    torch.distributed has a hidden default group, takes the ranks of the whole world as peers, and
    with gloo accepts tensors that it then gets silently wrong. Here a group is an object, and the
    first argument of everything that communicates: what a function talks to can be read off its
    call. Peers are ranks *of the group*: rank 0 of a tensor-parallel group is 0, whoever it is in
    the world.

Three forms of each operation
    `all_reduce(x)` returns a new tensor, takes any strides, and checks that all ranks agree on
    shape and dtype. `all_reduce_(x)` works in place and checks nothing, for speed.
    `all_reduce_async_(x)` starts it and returns a handle; `x` must not be touched before `wait()`.
    For a message, `send` and `recv` carry a header with shape and dtype; `send_`, `recv_`,
    `isend_`, `irecv_` and `exchange` do not, and the two sides must use the same form.

What is logged
    One `Event` for each operation. Its `nbytes` is what this rank hands to the transport: for a
    message the payload, for gloo's and NCCL's own collectives the bytes that their algorithm sends
    (a ring, 2(N-1)/N of an all-reduced tensor), which the tests hold against the interface's
    counters. Headers and digests are not counted: 128 bytes a message, 8 a collective and rank.

What real systems do differently
    gloo's own reduce_scatter sends twice what it should, so on gloo it is a ring of messages here.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pedagogy.ranks.handle import Handle, finished, use_counts
from pedagogy.ranks.messages import Messages
from pedagogy.ranks.wire import make_header, read_header

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,  # and a division: gloo has no mean
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


class Group(Messages):
    """Some ranks of a run, as one of them sees them.

    `rank` and `size` count within the group; `ranks[i]` is the global rank of the group's rank i.
    """

    # --- collectives that check and return new tensors ---------------------------------------

    def all_reduce(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Every rank gets the sum (mean, max, min) of the ranks' tensors.

        **Shapes** the same on all ranks; the result has it too. **Bytes** 2(N-1)/N of `x`, sent by
        each rank. **Raises** ValueError where the ranks disagree on shape, dtype or `op`.
        """
        self._check_op(op, x)
        self.agree("all_reduce", [x], op)
        wire = self._wire.copy(x)
        return self._wire.arrived(self._all_reduce(wire, op, "all_reduce"))

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Every rank gets the list of all ranks' tensors, by rank.

        **Shapes** the same on all ranks. **Bytes** (N-1) times `x`, sent by each rank.
        **Raises** ValueError where the ranks disagree on shape or dtype.
        """
        self.agree("all_gather", [x])
        if self.size == 1:
            return [self._wire.arrived(self._wire.copy(x))]
        wire = self._wire.readable(x).contiguous()
        parts = [self._wire.empty(tuple(x.shape), x.dtype) for _ in self.ranks]
        with self._collective("all_gather", (self.size - 1) * wire.nbytes, wire, *parts):
            dist.all_gather(parts, wire, group=self._process_group)
        return [self._wire.arrived(part) for part in parts]

    def reduce_scatter(self, xs: list[torch.Tensor]) -> torch.Tensor:
        """Rank i gets the sum over ranks of their `xs[i]`.

        **Shapes** `xs` holds one tensor for each rank; `xs[i]` has the same shape on all ranks.
        **Bytes** (N-1)/N of all of `xs`, sent by each rank (equal parts).
        **Raises** ValueError where the number of tensors is not the group's size, or ranks differ.
        """
        self._check_count("reduce_scatter", xs)
        self.agree("reduce_scatter", xs)
        wires = [self._wire.copy(x) for x in xs]
        if self.size == 1:
            return self._wire.arrived(wires[0])
        if self.backend == "gloo":
            return self._wire.arrived(self._ring_reduce_scatter(wires))
        result = self._wire.empty(tuple(xs[self.rank].shape), xs[self.rank].dtype)
        with self._collective("reduce_scatter", sum(w.nbytes for w in wires) - result.nbytes):
            dist.reduce_scatter(result, wires, group=self._process_group)
        return self._wire.arrived(result)

    def all_to_all(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Rank j gets `xs[j]` of every rank, as a list by rank.

        **Shapes** free: each `xs[j]` may have a shape of its own, rows of zero included; the shapes
        are exchanged first. One dtype for all. **Bytes** all of `xs` but the rank's own part.
        **Raises** ValueError where the number of tensors is not the group's size, or dtypes differ.
        """
        self._check_count("all_to_all", xs)
        if len({x.dtype for x in xs}) > 1:
            raise ValueError(f"all_to_all takes one dtype, got {[str(x.dtype) for x in xs]}")
        self.agree("all_to_all", [], xs[0].dtype)
        if self.size == 1:
            return [self._wire.arrived(self._wire.copy(xs[0]))]
        headers = torch.stack([make_header(x) for x in xs]).to(self._wire.carrier)
        theirs = torch.empty_like(headers)
        dist.all_to_all_single(theirs, headers, group=self._process_group)
        shapes = [read_header(header, i)[0] for i, header in enumerate(theirs.cpu())]
        counts = [torch.Size(shape).numel() for shape in shapes]
        sent = torch.cat([self._wire.copy(x).flatten() for x in xs])
        received = self._wire.empty((sum(counts),), sent.dtype)
        away = sent.nbytes - xs[self.rank].numel() * sent.element_size()
        with self._collective("all_to_all", away, sent, received):
            dist.all_to_all_single(
                received, sent, counts, [x.numel() for x in xs], group=self._process_group
            )
        parts = self._wire.arrived(received).split(counts)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Every rank gets the tensor of rank `source`.

        **Shapes** the same on all ranks. **Bytes** (N-1) times `x` over all ranks together.
        **Raises** ValueError where the ranks disagree on shape, dtype or `source`.
        """
        self._check_peer("source", source)
        self.agree("broadcast", [x], f"from {source}")
        return self._wire.arrived(self._broadcast(self._wire.copy(x), source))

    def barrier(self) -> None:
        """Return once every rank of the group has called it."""
        if self.size > 1:
            with self._collective("barrier", 0):
                dist.barrier(group=self._process_group)

    # --- collectives in place, unchecked -----------------------------------------------------

    def all_reduce_(self, x: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """`all_reduce` in place; the ranks must agree on shape and dtype. Returns `x`."""
        self._check_op(op, x)
        wire = self._all_reduce(self._wire.readable(x), op, "all_reduce")
        return self._put_back(wire, x)

    def all_reduce_async_(self, x: torch.Tensor, op: str = "sum") -> Handle:
        """Start `all_reduce_`; `x` holds the result after the handle's `wait()`."""
        self._check_op(op, x)
        if self.size == 1:
            return finished()
        wire = self._wire.readable(x)
        self._enter_collective()
        before, after = self._divisors(wire, op)
        if before > 1:
            wire.div_(before)
        counts = use_counts([wire])
        work = dist.all_reduce(wire, OPERATIONS[op], group=self._process_group, async_op=True)

        def finish() -> None:
            if after > 1:
                wire.div_(after)
            self._put_back(wire, x)

        return Handle(
            self._log, work, "all_reduce", self._ring_bytes(wire), self._peers(),
            self._collective_needs(), finish, [wire], counts, self.device,
        )  # fmt: skip

    def broadcast_(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """`broadcast` in place; the ranks must agree on shape and dtype. Returns `x`."""
        self._check_peer("source", source)
        return self._put_back(self._broadcast(self._wire.readable(x), source), x)

    def _all_reduce(self, wire: torch.Tensor, op: str, kind: str) -> torch.Tensor:
        if self.size == 1:
            return wire
        before, after = self._divisors(wire, op)
        if before > 1:
            wire.div_(before)
        with self._collective(kind, self._ring_bytes(wire), wire):
            dist.all_reduce(wire, OPERATIONS[op], group=self._process_group)
        return wire.div_(after) if after > 1 else wire

    def _divisors(self, wire: torch.Tensor, op: str) -> tuple[int, int]:
        """What to divide a mean by, before and after it is summed: fp16 overflows in the sum."""
        if op != "mean":
            return 1, 1
        return (self.size, 1) if wire.dtype == torch.float16 else (1, self.size)

    def _broadcast(self, wire: torch.Tensor, source: int) -> torch.Tensor:
        if self.size == 1:
            return wire
        # gloo sends along a binomial tree: counted from the source, rank v passes on to v + 2^i
        # for every 2^i above v (0 to 1, 2 and 4; 1 to 3 and 5; 2 to 6; 3 to 7).
        place = (self.rank - source) % self.size
        jumps = [2**i for i in range(self.size.bit_length()) if 2**i > place]
        num_children = sum(place + jump < self.size for jump in jumps)
        with self._collective("broadcast", num_children * wire.nbytes, wire):
            dist.broadcast(wire, self.ranks[source], group=self._process_group)
        return wire

    def _ring_reduce_scatter(self, wires: list[torch.Tensor]) -> torch.Tensor:
        """Each part travels around the ring, gathers what each rank adds, and ends at its owner."""
        size, rank = self.size, self.rank
        right, left = self.ranks[(rank + 1) % size], self.ranks[(rank - 1) % size]
        partial = wires[(rank - 1) % size]
        sent = sum(w.nbytes for i, w in enumerate(wires) if i != rank)
        with self._collective("reduce_scatter", sent):
            for step in range(1, size):
                part = wires[(rank - step - 1) % size]  # what arrives: the left neighbour's sum
                received = torch.empty_like(part)
                works = []
                if received.numel():
                    works.append(dist.irecv(received, left, group=self._process_group))
                if partial.numel():
                    works.append(dist.isend(partial, right, group=self._process_group))
                for work in works:
                    work.wait()
                partial = part.add_(received)
        return partial

    def _ring_bytes(self, wire: torch.Tensor) -> int:
        return -(-2 * (self.size - 1) * wire.nbytes // self.size)  # rounded up

    def _check_op(self, op: str, x: torch.Tensor) -> None:
        if op not in OPERATIONS:
            raise ValueError(f"op is {op!r}; it can be one of {', '.join(OPERATIONS)}")
        if op == "mean" and not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"the mean of {x.dtype} is not an integer; use op='sum' and divide")
