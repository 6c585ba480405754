"""One storage that the forward pass made, and its recipe.

Why it exists
-------------
A tensor is a view: (size, stride, offset) over a storage. Query, key and value read the same
storage under three names; a reshape has no bytes of its own. So what is kept, dropped or sent away
is the storage, and what backward gets is the view that it saved.

A recipe is the operation with its arguments. An argument that was made on the way is named
(`Input`), not held, or nothing would ever be freed. Held are parameters and the batch, which are
there anyway, and what cannot be made again: random numbers, and what was written in place.

Source: Peng et al. 2020 (Capuchin), section 4, for the lineage of single tensors.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pedagogy.ranks.away import Away

Key = tuple[int, int]  # the number of an operation, and which of its outputs


class Op:
    """One operation of the forward pass, and what is worth knowing of it."""

    def __init__(self, number: int, func: Any, place: str, seconds: float) -> None:
        self.number, self.place, self.seconds = number, place, seconds
        self.name = str(func).removeprefix("aten.").split(".")[0].strip("_")
        self.inputs: tuple[Key, ...] = ()  # what it read, of what the tape made
        self.nbytes: dict[int, int] = {}  # of what it made, by output
        self.repeats = torch.Tag.nondeterministic_seeded not in func.tags  # makes the same again
        self.runs = 0  # beyond the first


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


@dataclass(frozen=True)
class Input:
    """An argument that the tape made: which, its view of it, and how often it was written then."""

    made: Made
    geometry: Geometry
    writes: int


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
        self.pending = 0  # how often backward will still ask
        self.again: Tensor | None = None  # made again, until the last has asked
        self.away: Away | None = None

    @property
    def inputs(self) -> list[Input]:
        """What its operation read, of what the tape made."""
        return [x for x in tree_leaves(self.recipe) if isinstance(x, Input)]

    def lineage(self) -> list[Op]:
        """The operations that would run to make it, if what is saved by now were there."""
        ops, waiting = {self.op.number: self.op}, [self]
        while waiting:
            for x in waiting.pop().inputs:
                if not x.made.action and x.made.op.number not in ops:
                    ops[x.made.op.number] = x.made.op
                    waiting.append(x.made)
        return list(ops.values())

    def find(self) -> Tensor | None:
        """The values, if they are on the device or can be fetched."""
        storage = self.storage()
        if storage is not None:
            bare = torch.empty(0, dtype=self.dtype, device=storage.device)
            return bare.set_(storage, self.geometry.offset, *self.geometry[:2])
        if self.away is not None:
            return self.geometry.on(self.away.get())
        return self.again
