"""How each tensor was made, so that it can be made again; and what becomes of it until then.

Why it exists
-------------
`checkpoint` drops all that a function saves. Better policies decide *tensor by tensor*: keep what
is expensive to make, make again what is cheap, send away what is large. For that one must know of
each saved tensor which operation made it, and from what.

How it works
------------
While a model runs forward, the tape writes down each operation with its inputs. It works on
storages: a view, a transpose or a reshape is the same bytes under another geometry. When autograd
saves a tensor, a rule is asked what shall become of its storage:

    keep        it stays
    recompute   it is dropped. When backward asks, the operation runs again; inputs that were
                dropped are made first, and stay for those who will ask for them too
    alone       the same, but nothing that is made on the way stays: it will be made once more
    swap        it goes to host memory, and is called back before backward asks

Making a tensor "by what it was made of" ends at what is there: parameters, the batch, whatever is
kept, whatever lives for another reason.

What cannot be made again
-------------------------
What comes from a random generator, and what was written in place: the rule is not asked, they are
kept (a dropout mask is). BatchNorm runs again on copies of its running statistics, so that they
count the batch once.

Sources: Peng et al. 2020 (Capuchin), sections 3 and 4, for accesses and lineage of single tensors;
Wang et al. 2018 (SuperNeurons), section 3.4, for "recompute" (speed-centric) and "alone"
(memory-centric).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pedagogy.ranks import Link, open_link
from pedagogy.ranks.away import Away
from pedagogy.recompute.made import Geometry, Input, Key, Made, Op

KEEP, RECOMPUTE, ALONE, SWAP = ACTIONS = ("keep", "recompute", "alone", "swap")


class _Packed(NamedTuple):
    """What autograd keeps instead of a tensor; `kept` unless its storage may go."""

    made: Made
    geometry: Geometry
    kept: Tensor | None


Rule = Callable[[Made], str]
Calls = Mapping[int, Sequence[Key]]


class Tape(TorchDispatchMode):
    """Records a forward pass, and does with what is saved as the rule says.

    `ops`: in order. `saved`: action and bytes of each storage that autograd saved. `asked`: in
    which order backward asked. `calls`: the swapped storages that start on their way back when
    backward asks for the n-th time; without it, one each time, last saved first.
    """

    def __init__(self, rule: Rule, link: Link | None, calls: Calls | None = None) -> None:
        super().__init__()
        self.rule, self.link, self.calls = rule, link, calls
        self.place: list[str] = []  # the modules that run, outermost first
        self.ops: list[Op] = []
        self.saved: dict[Key, tuple[str, int]] = {}
        self.asked: list[Key] = []
        self._living: dict[int, Made] = {}  # by address of the storage
        self._away: weakref.WeakValueDictionary[Key, Made] = weakref.WeakValueDictionary()

    @property
    def extra_forwards(self) -> int:
        """Operations that ran again."""
        return sum(op.runs for op in self.ops)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run an operation, and write down how."""
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        read = [made for made in map(self._lookup, given) if made is not None]
        recipe = (func, *tree_map(self._describe, (args, kwargs or {})))
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        seconds = time.perf_counter() - start
        if func._schema.is_mutable:
            for made in read:
                made.writes += 1
                made.op.repeats = False
        old = {x.untyped_storage()._cdata for x in given}
        fresh = [
            (output, x)
            for output, x in enumerate(tree_leaves(result))
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in old
        ]
        if fresh:  # else it only looked at old ones
            op = Op(len(self.ops), func, "".join(self.place[-1:]), seconds)
            op.inputs = tuple(made.key for made in read)
            self.ops.append(op)
            self._remember(op, recipe, fresh)
        return result

    def pack(self, tensor: Tensor) -> Tensor | _Packed:
        """Autograd saves a tensor: what becomes of its storage?"""
        made = self._lookup(tensor)
        if made is None or made.dtype != tensor.dtype:  # a parameter, a buffer, the batch
            return tensor.detach()
        if not made.action:
            action = self.rule(made) if made.op.repeats else KEEP
            if action not in ACTIONS:
                raise ValueError(f"action {action!r}: choose one of {', '.join(ACTIONS)}")
            made.action = action
            self.saved[made.key] = action, made.nbytes
            if action == SWAP:
                self.link = self.link or open_link(tensor.device)
                made.away = Away(tensor, self.link, made.op.number)
                self._away[made.key] = made
        made.pending += 1
        return _Packed(made, Geometry.of(tensor), tensor.detach() if made.action == KEEP else None)

    def unpack(self, packed: Tensor | _Packed) -> Tensor:
        """Backward asks for it."""
        if isinstance(packed, Tensor):
            return packed
        made = packed.made
        self._call()
        self.asked.append(made.key)
        tensor = packed.kept if packed.kept is not None else self._get(made, made.op)
        made.pending -= 1
        if made.pending <= 0:
            made.again = made.away = None
            self._away.pop(made.key, None)
        return packed.geometry.on(tensor)

    def _call(self) -> None:
        """Swapped storages start on their way back."""
        if self.calls is None:
            coming = sorted(key for key, made in self._away.items() if made.away.arriving is None)[
                -1:
            ]
        else:
            coming = self.calls.get(len(self.asked), ())
        for key in coming:
            if key in self._away:
                self._away[key].away.call()

    def _get(self, made: Made, asked: Op) -> Tensor:
        """The values; made again if they are nowhere. `asked`: whose result backward wants."""
        found = made.find()
        return self._run_again(made, asked) if found is None else found

    def _run_again(self, made: Made, asked: Op) -> Tensor:
        """Make it again, and first what it is made of."""
        if not made.op.repeats:
            raise RuntimeError(f"{made.op.name} (operation {made.op.number}) cannot run again")

        def argument(x: Any) -> Any:
            if not isinstance(x, Input):
                return x
            if x.made.writes != x.writes:
                raise RuntimeError(
                    f"{made.op.name} (operation {made.op.number}) cannot run again: what it read "
                    f"from {x.made.op.name} was changed in place"
                )
            return x.geometry.on(self._get(x.made, asked))

        func, args, kwargs = tree_map(argument, made.recipe)
        if "batch_norm" in made.op.name:  # its running statistics have seen this batch
            args = [*args[:3], *(x if x is None else x.clone() for x in args[3:5]), *args[5:]]
        with torch.no_grad():
            results = tree_leaves(func(*args, **kwargs))
        made.op.runs += 1
        for sibling in filter(None, (reference() for reference in made.siblings)):
            stays = sibling.action == RECOMPUTE or (sibling.action == ALONE and sibling.op is asked)
            if stays and sibling.pending > 0:
                sibling.again = results[sibling.key[1]]
        return results[made.key[1]]

    def _lookup(self, tensor: Tensor) -> Made | None:
        """Which of the tape's storages this tensor is a view of."""
        storage = tensor.untyped_storage()
        made = self._living.get(storage._cdata)
        return made if made is not None and made.storage() is storage else None

    def _describe(self, x: Any) -> Any:
        """An argument as the recipe keeps it: what cannot be made again is held on to."""
        if not isinstance(x, Tensor):
            return x
        made = self._lookup(x)
        if made is None or not made.op.repeats or made.dtype != x.dtype:
            return x.detach()
        return Input(made, Geometry.of(x), made.writes)

    def _remember(self, op: Op, recipe: tuple, fresh: list[tuple[int, Tensor]]) -> None:
        """What the operation made, each storage by its address until it is freed."""
        siblings: list[weakref.ref[Made]] = []
        for output, tensor in fresh:
            storage = tensor.untyped_storage()
            made = Made(op, output, recipe, tensor)
            op.nbytes[output] = made.nbytes
            made.storage = weakref.ref(storage, partial(_forget, self._living, storage._cdata))
            made.siblings = siblings
            siblings.append(weakref.ref(made))
            self._living[storage._cdata] = made


def _forget(living: dict[int, Made], key: int, _: weakref.ref) -> None:
    """A storage is gone: its address may be another's."""
    living.pop(key, None)


@contextmanager
def by_rule(rule: Rule, link: Link | None = None, calls: Calls | None = None) -> Iterator[Tape]:
    """In here a model runs forward; what autograd saves is kept, dropped or swapped by `rule`.

    >>> with by_rule(lambda made: "recompute" if made.op.name == "gelu" else "keep") as tape:
    ...     loss = model.loss(*batch)
    >>> loss.backward()
    >>> tape.extra_forwards

    Gradients are those of the plain step to the bit. **Memory** the tape holds no tensor but the
    batch, the parameters and what cannot be made again.
    **Raises** ValueError for an unknown action; in backward, RuntimeError where something that is
    needed again was changed in place.
    """
    tape = Tape(rule, link, calls)
    with tape, saved_tensors_hooks(tape.pack, tape.unpack):
        yield tape
