"""Live bytes, by kind, over time: exact and repeatable, on a CPU too.

Why it exists
-------------
Most techniques in this workbook buy memory. On a GPU the allocator says how much is in use, but
not by what, and on a CPU nobody says. `memory_meter` counts the bytes that tensors hold while a
block runs, and gives the same number on each run and on each machine.

How it works
------------
* Every operation passes through a `TorchDispatchMode`, forward, backward and optimizer step alike
  (autograd runs in C++, but its operations come by here too). The meter looks at each result.
* Bytes belong to a *storage*, not to a tensor: a view, a transpose or a tied weight shares one.
  The meter counts each storage once, keeps only a weak reference, and drops it at the moment
  when the last tensor, or the last note that autograd keeps for backward, lets it go.
* After an operation that made or freed a storage it takes a *reading*: the module and the
  optimizer are asked what is theirs (`owners.py`). What is live and nobody's is an activation.

What is counted
---------------
The module, its gradients and the optimizer's state from the start; of everything else, only what
is born inside the block. A batch made before the block is not counted, one made inside it is, as
an activation. An older tensor that an operation resizes (`out=`) counts from then on. A storage
given to `set_` counts as born there: so do `copy.deepcopy` and `torch.load` make their tensors.
All devices together, unless `device` names one.

What is not seen
----------------
Scratch space that a kernel takes and gives back within one operation; tensors made without an
operation (`torch.from_numpy`, `x.set_(torch.UntypedStorage(40))`); what has no storage (MKL-DNN's
format); numbers that autograd wraps (8 bytes for the 2.0 of `x * 2.0`);
operations of other Python threads; submodules added inside the block. A freed storage leaves the
curve at the next reading, which never changes a peak. `storage.resize_` is no operation: it is
seen at the next reading for what module and optimizer own, else at the next `now`. And gloo may
hold the tensor of a finished collective a little longer, in a thread of its own: those bytes are
live, and counted, until it lets go.

What real systems do differently: `torch.cuda.max_memory_allocated` counts blocks rounded up to
512 bytes, and `memory_reserved` what the allocator keeps back, fragments included.
"""

from __future__ import annotations

import time
import weakref
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from pedagogy.measure.owners import OWNED_KINDS, Owners, opened, tensors_in

KINDS = (*OWNED_KINDS, "activations")
_FRESH = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)  # of torch.tensor(...)
_SET = torch.ops.aten.set_.source_Storage  # how a storage is copied: it has both in hand already


def memory_meter(
    module: torch.nn.Module | None = None,
    optimizer: Any = None,
    device: torch.device | str | None = None,
) -> MemoryMeter:
    """A context manager that counts the live bytes of everything that its block makes.

    >>> with memory_meter(model, optimizer) as meter:
    ...     model.loss(*batch).backward()
    ...     optimizer.step()
    >>> meter.peak, meter.by_kind["gradients"]

    Meters may be nested, each counts for itself; each is used once.
    **Memory** of the meter itself: a weak reference per live storage, a dict per reading.
    """
    return MemoryMeter(module, optimizer, device)


class MemoryMeter(TorchDispatchMode):
    """What `memory_meter` returns; all figures are bytes, and freeze when the block ends.

    `peak`: the largest total. `by_kind`: that total by kind, when it was first reached.
    `peak_by_kind`: the largest of each kind, each at its own moment.
    `now`, `now_by_kind`: at this moment. `curve`: a list of (seconds, bytes by kind).
    """

    def __init__(
        self, module: torch.nn.Module | None, optimizer: Any, device: torch.device | str | None
    ) -> None:
        super().__init__()
        self._owners = Owners(module, optimizer)
        self._device = torch.device(device) if device is not None else None
        self._live: dict[int, tuple[weakref.ref, int]] = {}  # by storage: reference, bytes
        self._total = 0
        self._changed = False
        self._addresses: list[list[int]] | None = None
        self._state = "new"
        self.peak = 0
        self.by_kind = dict.fromkeys(KINDS, 0)
        self.peak_by_kind = dict.fromkeys(KINDS, 0)
        self.curve: list[tuple[float, dict[str, int]]] = []

    @property
    def now(self) -> int:
        """Live bytes at this moment; after the block, when it ended."""
        return sum(self.now_by_kind.values())

    @property
    def now_by_kind(self) -> dict[str, int]:
        """Live bytes by kind at this moment; after the block, when it ended."""
        if self._state == "running":
            self._read_all()
        return dict(self.curve[-1][1]) if self.curve else dict.fromkeys(KINDS, 0)

    def __enter__(self) -> MemoryMeter:
        if self._state != "new":
            raise RuntimeError("this memory meter has been used: make a new one for each block")
        self._start_seconds = time.perf_counter()
        self._state = "running"
        self._read()
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._read_all()
        self._state = "ended"
        self._live.clear()  # with the weak references go their callbacks

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one operation, then count what it made."""
        if any(is_traceable_wrapper_subclass(kind) for kind in types):
            return NotImplemented  # DTensor and the like: their inner operations come by later
        given = {} if func in _FRESH else _storages((args, kwargs))
        result = func(*args, **(kwargs or {}))
        for tensor in opened(tensors_in(result)) if func is not _SET else ():
            storage = tensor.untyped_storage()
            if not self._refresh(tensor) and given.get(storage._cdata) != storage.nbytes():
                self._add(tensor)  # new, or older and of another size: a view is neither
        if self._changed:
            self._read()
        return result

    def _refresh(self, tensor: Tensor) -> bool:
        """Whether the storage is counted already; if so, its size is looked up again."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live:
            return False
        self._resize(storage._cdata, storage.nbytes())
        return True

    def _resize(self, key: int, num_bytes: int) -> None:
        """A counted storage holds `num_bytes` now."""
        reference, counted_bytes = self._live[key]
        if num_bytes != counted_bytes:
            self._live[key] = (reference, num_bytes)
            self._total += num_bytes - counted_bytes
            self._addresses = None
            self._changed = True

    def _add(self, tensor: Tensor) -> None:
        """Count a storage from now on, until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or not self._is_counted(tensor):
            return
        reference = weakref.ref(storage, lambda _: self._forget(key))
        self._live[key] = (reference, storage.nbytes())
        self._total += storage.nbytes()
        self._changed = True

    def _is_counted(self, tensor: Tensor) -> bool:
        """Meta tensors have a size and no bytes; other devices may be left out."""
        if self._device is None:
            return tensor.device.type != "meta"
        wanted, found = self._device, tensor.device
        return wanted.type == found.type and wanted.index in (None, found.index)

    def _forget(self, key: int) -> None:
        """A storage was freed."""
        known = self._live.pop(key, None)
        if known is not None:
            self._total -= known[1]
            self._changed = True

    def _read_all(self) -> None:
        """A reading that looks up every size again: `storage.resize_` is no operation."""
        for key, (reference, _) in list(self._live.items()):
            storage = reference()
            if storage is not None:
                self._resize(key, storage.nbytes())
        self._read()

    def _read(self) -> None:
        """Write down what is live by kind; ask the owners for sizes only if something moved."""
        owned = self._owners.tensors()
        addresses = [list(map(Tensor.data_ptr, tensors)) for tensors in owned.values()]
        if addresses != self._addresses:
            self._owned = self._claim(owned)
            self._addresses = addresses
        by_kind = {**self._owned, "activations": self._total - sum(self._owned.values())}
        self._changed = False
        self.curve.append((time.perf_counter() - self._start_seconds, by_kind))
        for kind, num_bytes in by_kind.items():
            self.peak_by_kind[kind] = max(self.peak_by_kind[kind], num_bytes)
        if self._total > self.peak:
            self.peak, self.by_kind = self._total, by_kind

    def _claim(self, owned: dict[str, list[Tensor]]) -> dict[str, int]:
        """Bytes that the owners hold, by kind, each storage once; counts what it did not know."""
        claimed: set[int] = set()
        num_bytes = dict.fromkeys(OWNED_KINDS, 0)
        for kind, tensors in owned.items():
            for tensor in tensors:
                key = tensor.untyped_storage()._cdata
                if not self._refresh(tensor):
                    self._add(tensor)
                if key in self._live and key not in claimed:
                    claimed.add(key)
                    num_bytes[kind] += self._live[key][1]
        return num_bytes


def _storages(values: Any) -> dict[int, int]:
    """The keys of all storages among the arguments of an operation, and their bytes."""
    storages = [tensor.untyped_storage() for tensor in opened(tensors_in(values))]
    return {storage._cdata: storage.nbytes() for storage in storages}
