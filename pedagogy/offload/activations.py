"""Activations in host memory between forward and backward.

Why it exists
-------------
An activation is written in forward, read by the layer after it, and read again in backward. The
first layer's waits longest, nearly the whole step. `offload_activations` copies what autograd saves
to the host as it is saved, and brings it back before backward asks for it.

How it works
------------
By the same hooks on saved tensors as recomputation. Whatever is saved is numbered and sent; the
device's memory is free when the copy is over and nothing else needs it. Backward asks for the
tensors in about the reverse order: when it asks for number k, numbers k-1, k-2, ..., `prefetch` of
them, are sent for as well. On the way out no more than `prefetch` copies are under way: a slow link
makes forward wait, or all that it has not carried yet would fill the device.

* A tensor that several operations save (the input of query, key and value) goes once: what is
  copied is its storage, and each gets its own view of it.
* Parameters are not activations, and stay. So does what is smaller than `min_bytes`. A buffer that
  is saved (a mask) looks like an activation, and goes: `wanted` can leave it out.

What it costs
-------------
Link: the saved bytes there and back. It is free if the link carries them in the time of the
layers between; vDNN moves only the inputs of convolutions, whose compute per byte is large.

Sources: Rhu et al. 2016 (vDNN), section 3; Rajbhandari et al. 2021 (ZeRO-Infinity), section 5.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pedagogy.ranks import Link, open_link
from pedagogy.ranks.away import Away


class _Away(Away):
    """A storage that went to the host, and whether it was changed in place since."""

    def __init__(self, tensor: Tensor, link: Link, number: int) -> None:
        super().__init__(tensor, link, number)
        self.version = tensor._version
        self.witness = tensor.detach()  # counts the changes, and is empty
        self.witness.data = tensor.new_empty(0)

    @property
    def is_changed(self) -> bool:
        """What autograd itself raises for."""
        return self.witness._version != self.version


class _Saved(NamedTuple):
    """What autograd keeps instead of a tensor: where it is, and its view of the storage."""

    away: _Away
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Host:
    """What has left in one block, in the order in which it was saved."""

    def __init__(
        self, link: Link | None, prefetch: int, min_bytes: int, wanted: Callable[[Tensor], bool]
    ) -> None:
        self.link, self.prefetch, self.min_bytes, self.wanted = link, prefetch, min_bytes, wanted
        self.away: WeakValueDictionary[int, _Away] = WeakValueDictionary()  # by number
        self.by_storage: WeakValueDictionary[int, _Away] = WeakValueDictionary()
        self.leaving: deque[_Away] = deque()
        self.sent = 0

    def pack(self, tensor: Tensor) -> Tensor | _Saved:
        """Autograd saves a tensor."""
        base = tensor if tensor._base is None else tensor._base
        storage = tensor.untyped_storage()
        if isinstance(base, nn.Parameter) or storage.nbytes() < self.min_bytes:
            return tensor
        if not self.wanted(tensor):
            return tensor
        away = self.by_storage.get(storage._cdata)
        if away is None or not away.holds(tensor):
            self.link = self.link or open_link(tensor.device)
            away = _Away(tensor, self.link, self.sent)
            self.away[self.sent] = self.by_storage[storage._cdata] = away
            self.sent += 1
            self._make_room(away)
        return _Saved(away, tensor.size(), tensor.stride(), tensor.storage_offset())

    def _make_room(self, away: _Away) -> None:
        """No more than `prefetch` copies are under way: a slow link makes forward wait."""
        self.leaving.append(away)
        while len(self.leaving) > self.prefetch:
            oldest = self.leaving.popleft()
            if not oldest.is_changed:  # or it raises, if it is ever asked for
                oldest.leaving.finish()

    def unpack(self, saved: Tensor | _Saved) -> Tensor:
        """Backward asks for it; the next ones that it will ask for are called too."""
        if isinstance(saved, Tensor):
            return saved
        if saved.away.is_changed:
            raise RuntimeError(
                f"a tensor of shape {tuple(saved.size)} was changed in place after autograd had "
                "saved it"
            )
        saved.away.call()
        waiting = [n for n in self.away if n < saved.away.number]
        for number in sorted(waiting, reverse=True)[: self.prefetch]:
            if not self.away[number].is_changed:  # or it raises, if it is ever asked for
                self.away[number].call()
        return saved.away.get().as_strided(saved.size, saved.stride, saved.offset)


@contextmanager
def offload_activations(
    link: Link | None = None,
    prefetch: int = 1,
    min_bytes: int = 1024,
    wanted: Callable[[Tensor], bool] = lambda tensor: True,
) -> Iterator[None]:
    """What autograd saves in here waits in host memory; gradients are the same to the bit.

    `prefetch`: how many may be under way, in each direction, while compute goes on; with 0 each
    copy is waited for. `wanted` chooses among the tensors. **Memory** of the device: the tensors
    in use and those under way.
    **Raises** ValueError for a negative prefetch; in backward, RuntimeError for a tensor that was
    changed in place after it was saved, as autograd itself does.
    """
    if prefetch < 0:
        raise ValueError(f"prefetch {prefetch}: must be 0 or more")
    host = _Host(link, prefetch, min_bytes, wanted)
    with saved_tensors_hooks(host.pack, host.unpack):
        yield
