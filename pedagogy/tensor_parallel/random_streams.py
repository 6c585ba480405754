"""Two streams of random numbers: one that the ranks of a group share, and one of their own.

The problem
-----------
Outside the parallel region every rank of a group holds the *same* activation: a dropout there must
draw the same mask on all of them, or the copies drift apart. Inside, each rank holds *other* heads
or other positions: the same mask on all of them would drop the same pattern in each head. Replicas
of data parallelism must differ in both. One global seed breaks two of the three.

How it works
------------
Two generators. `shared` is seeded by the replica alone, `own` by replica and rank. A dropout names
the stream that it draws from. Recomputation needs the state of both.

Source: Shoeybi et al. 2019 (Megatron-LM), appendix B.2.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from pedagogy.ranks import Group


class RandomStreams:
    """`shared`: equal on the ranks of `group`, other on each replica; `own`: other on each rank.

    Without a `seed`, rank 0 of the group draws one from Python's `random` (not from torch's
    generator, whose numbers are the initial weights), and two streams never repeat each other.
    With one, `replica` tells replicas apart: the first global rank of the group, if not given.
    **Bytes** without a seed, a broadcast of one number.
    """

    def __init__(self, group: Group, seed: int | None = None, replica: int | None = None) -> None:
        if group.size >= 1_000:
            raise ValueError(
                f"{group.size} ranks in one group; at most 999 have seeds of their own"
            )
        replica = group.ranks[0] if replica is None else replica
        if seed is None:
            drawn = torch.tensor([random.getrandbits(31)], device=group.device)
            seed = int(group.broadcast(drawn))
        first = 1 + (seed * 1_000_003 + replica) * 1_000
        self.shared = torch.Generator(group.device).manual_seed(first)
        self.own = torch.Generator(group.device).manual_seed(first + 1 + group.rank)

    def state(self) -> tuple[Tensor, Tensor]:
        """The state of both, to draw the same numbers again."""
        return self.shared.get_state(), self.own.get_state()

    def restore(self, state: tuple[Tensor, Tensor]) -> None:
        """Both go on from `state`."""
        self.shared.set_state(state[0])
        self.own.set_state(state[1])

    def contexts(self) -> tuple[AbstractContextManager, AbstractContextManager]:
        """For `torch.utils.checkpoint(..., use_reentrant=False, context_fn=streams.contexts)`.

        Torch restores its own generators before it recomputes, and does not know of these.
        """
        before = self.state()
        return nullcontext(), self._again(before)

    @contextmanager
    def _again(self, before: tuple[Tensor, Tensor]) -> Iterator[None]:
        now = self.state()
        self.restore(before)
        try:
            yield
        finally:
            self.restore(now)


class StreamDropout(nn.Module):
    """Dropout that draws from the generator that it is given."""

    def __init__(self, p: float, generator: torch.Generator) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"a dropout of {p}: must be at least 0 and below 1")
        super().__init__()
        self.p, self.generator = p, generator

    def forward(self, x: Tensor) -> Tensor:
        """**Shapes** any, unchanged."""
        if not self.training or self.p == 0:
            return x
        kept = torch.empty_like(x, dtype=torch.bool).bernoulli_(
            1 - self.p, generator=self.generator
        )
        return x * kept / (1 - self.p)
