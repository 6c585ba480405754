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
What comes from a random generator, what was written in place, what others than PyTorch compute:
the rule is not asked, they are kept (a dropout mask is). BatchNorm runs again without its running
statistics, so that they count the batch once.

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
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pedagogy.ranks import Link, open_link
from pedagogy.ranks.away import Away
from pedagogy.recompute.again import ACTIONS, KEEP, SWAP, make_again
from pedagogy.recompute.made import Held, Input, Key, Made, Op, alias
from pedagogy.recompute.writes import tensors_in, without_statistics, written


class _Packed(Input):
    """What autograd keeps instead of a tensor; `kept` unless its storage may go."""

    def __init__(self, made: Made, tensor: Tensor) -> None:
        super().__init__(made, tensor)
        self.kept = alias(tensor) if made.action == KEEP else None
        made.pending += 1

    @property
    def is_stale(self) -> bool:
        """Where autograd itself would raise."""
        return self.counter._version != self.version

    def __del__(self) -> None:
        """The node that would have asked is done, or gone."""
        self.made.pending -= 1
        if not self.made.pending:
            self.made.again = self.made.away = None


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
        if torch.is_inference_mode_enabled():  # autograd will save nothing of it
            return func(*args, **(kwargs or {}))
        given = tensors_in((args, kwargs))
        read = [made for made in map(self._lookup, given) if made is not None]
        recipe = (func, *tree_map(self._describe, (without_statistics(func, args), kwargs or {})))
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        seconds = time.perf_counter() - start
        for x in written(func, args, kwargs or {}):
            self._write(x)
        old = {x.untyped_storage()._cdata for x in given}
        fresh = [
            (output, x)
            for output, x in enumerate(tree_leaves(result))
            if isinstance(x, Tensor)
            and torch._C._has_storage(x)
            and x.untyped_storage()._cdata not in old
        ]
        if fresh:  # else it only looked at old ones
            op = Op(len(self.ops), func, "".join(self.place[-1:]), seconds)
            op.inputs = tuple(made.key for made in read)
            self.ops.append(op)
            self._remember(op, recipe, fresh)
        return result

    def __exit__(self, *error: Any) -> None:
        """What is still alive is known by those who wait for backward, and by no one else."""
        super().__exit__(*error)
        self._living.clear()

    def pack(self, tensor: Tensor) -> Held | _Packed:
        """Autograd saves a tensor: what becomes of its storage?"""
        made = self._source(tensor)
        if made is None:  # a parameter, a buffer, the batch
            return Held(tensor)
        if not made.action:
            action = self.rule(made) if made.repeats else KEEP
            if action not in ACTIONS:
                raise ValueError(f"action {action!r}: choose one of {', '.join(ACTIONS)}")
            made.action = action
            self.saved[made.key] = action, made.nbytes
            if action == SWAP:
                self.link = self.link or open_link(tensor.device)
                made.away = Away(tensor, self.link, made.op.number)
                self._away[made.key] = made
        return _Packed(made, tensor)

    def unpack(self, packed: Held | _Packed) -> Tensor:
        """Backward asks for it."""
        if packed.is_stale:
            raise RuntimeError("a tensor was changed in place after autograd had saved it")
        if isinstance(packed, Held):
            return packed.tensor
        self._call()
        self.asked.append(packed.made.key)
        found = packed.kept if packed.kept is not None else packed.made.find()
        return packed.geometry.on(make_again(packed.made) if found is None else found)

    def _call(self) -> None:
        """Swapped storages that have left start on their way back."""
        away = {
            key: made.away
            for key, made in self._away.items()
            if made.away and made.away.arriving is None and made.storage() is None
        }
        coming = sorted(away)[-1:] if self.calls is None else self.calls.get(len(self.asked), ())
        for key in coming:
            if key in away:
                away[key].call()

    def _lookup(self, tensor: Tensor) -> Made | None:
        """Which of the tape's storages this tensor is a view of."""
        if not torch._C._has_storage(tensor):  # a sparse one
            return None
        storage = tensor.untyped_storage()
        made = self._living.get(storage._cdata)
        return made if made is not None and made.storage() is storage else None

    def _source(self, tensor: Tensor) -> Made | None:
        """The same, if the storage and a geometry say all of it."""
        made = self._lookup(tensor)
        is_plain = not (tensor.is_conj() or tensor.is_neg())
        return made if made is not None and made.dtype == tensor.dtype and is_plain else None

    def _describe(self, x: Any) -> Any:
        """An argument as the recipe keeps it: what cannot be made again is held on to."""
        if not isinstance(x, Tensor):
            return x
        made = self._source(x)
        return Held(x) if made is None or not made.repeats else Input(made, x)

    def _write(self, x: Tensor) -> None:
        """It was written in place; if a node waits for it, it stays: it cannot be made again."""
        made = self._lookup(x)
        if made is not None:
            made.writes += 1
            made.op.written.add(made.key[1])
            made.again = alias(x) if made.pending else None

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
