"""One storage that the forward pass made, and its recipe.

Why it exists
-------------
A tensor is a view: (size, stride, offset) over a storage. Query, key and value read the same
storage under three names; a reshape has no bytes of its own. So what is kept, dropped or sent away
is the storage, and what backward gets is the view that it saved.

A recipe is the operation with its arguments. An argument that was made on the way is named
(`Input`), not held, or nothing would ever be freed. Held are parameters and the batch, which are
there anyway, and what cannot be made again: random numbers, memory that is not filled yet, what was
written in place, and what others than PyTorch compute (a collective needs all ranks).

An argument that is written in place after it was read makes the recipe wrong. PyTorch counts the
writes to each tensor; `Held` and `Input` compare that count with the one they saw.

Source: Peng et al. 2020 (Capuchin), section 4, for the lineage of single tensors.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pedagogy.ranks.away import Away
from pedagogy.recompute.writes import is_own

Key = tuple[int, int]  # the number of an operation, and which of its outputs
_NOTHING = torch.empty(0)


class Op:
    """One operation of the forward pass, and what is worth knowing of it."""

    def __init__(self, number: int, func: Any, place: str, seconds: float) -> None:
        self.number, self.place, self.seconds = number, place, seconds
        self.name = str(func).removeprefix("aten.").split(".")[0].strip("_")
        self.inputs: tuple[Key, ...] = ()  # what it read, of what the tape made
        self.nbytes: dict[int, int] = {}  # of what it made, by output
        random = torch.Tag.nondeterministic_seeded in func.tags
        writes = func._schema.is_mutable or not is_own(func)
        self.is_pure = not (random or writes or "empty" in self.name)
        self.written: set[int] = set()  # the outputs that were written in place
        self.runs = 0  # beyond the first

    def repeats(self, output: int) -> bool:
        """Whether running it again makes this output again."""
        return self.is_pure and output not in self.written


class Geometry(NamedTuple):
    """A tensor's view of its storage."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: Tensor) -> Geometry:
        """This tensor's."""
        return Geometry(tensor.size(), tensor.stride(), tensor.storage_offset())

    def on(self, tensor: Tensor) -> Tensor:
        """The same view of another tensor's storage."""
        return tensor.detach().as_strided(*self)


class Held:
    """A tensor that is held on to: a parameter, the batch, what cannot be made again."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = alias(tensor)
        self.version = version(tensor)

    @property
    def is_stale(self) -> bool:
        """Written in place since."""
        return version(self.tensor) != self.version


class Input:
    """A tensor that the tape made, as it was read: the storage, and the view of it."""

    def __init__(self, made: Made, tensor: Tensor) -> None:
        self.made, self.geometry = made, Geometry.of(tensor)
        self.writes = made.writes
        self.counter = alias(tensor)
        self.counter.data = _NOTHING  # counts the tensor's writes on, and holds none of its bytes
        self.version = self.counter._version

    @property
    def is_stale(self) -> bool:
        """Written in place since: in this block under any name, or later under this one."""
        return self.made.writes != self.writes or self.counter._version != self.version


class Made:
    """One storage that an operation made: how to make it again, and what became of it."""

    def __init__(self, op: Op, output: int, recipe: tuple, tensor: Tensor) -> None:
        self.op, self.key, self.recipe = op, (op.number, output), recipe
        self.dtype, self.geometry = tensor.dtype, Geometry.of(tensor)
        self.nbytes = tensor.untyped_storage().nbytes()
        self.storage = weakref.ref(tensor.untyped_storage())
        self.siblings: list[weakref.ref[Made]] = []  # all that the operation made
        self.writes = 0  # in place, since it was made
        self.action = ""  # autograd has not saved it
        self.pending = 0  # how many nodes of the graph may still ask
        self.again: Tensor | None = None  # made again, until the last has gone
        self.away: Away | None = None

    @property
    def inputs(self) -> list[Input]:
        """What its operation read, of what the tape made."""
        return [x for x in tree_leaves(self.recipe) if isinstance(x, Input)]

    @property
    def repeats(self) -> bool:
        """Whether it can be made again."""
        return self.op.repeats(self.key[1])

    def lineage(self) -> list[Op]:
        """The operations that would run to make it, if what is saved by now were there."""
        ops, waiting = {self.op.number: self.op}, [self]
        while waiting:
            for x in waiting.pop().inputs:
                if not x.made.action and x.made.op.number not in ops:
                    ops[x.made.op.number] = x.made.op
                    waiting.append(x.made)
        return list(ops.values())

    @property
    def is_there(self) -> bool:
        """On the device, or in host memory."""
        return bool(self.storage() is not None or self.away or self.again is not None)

    def find(self) -> Tensor | None:
        """The values, if they are on the device or can be fetched."""
        storage = self.storage()
        if storage is not None:
            bare = torch.empty(0, dtype=self.dtype, device=storage.device)
            return bare.set_(storage, self.geometry.offset, *self.geometry[:2])
        if self.away is not None:
            return self.geometry.on(self.away.get())
        return self.again


def alias(tensor: Tensor) -> Tensor:
    """`tensor.detach()`, sharing the count of writes also where operations are recorded."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def version(tensor: Tensor) -> int:
    """How often it was written in place; nobody counts what is made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version
