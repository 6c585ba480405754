"""A tensor that spends some time in host memory.

Why it exists
-------------
Between forward and backward an activation is only waited for. Whoever sends it away (offloading of
activations, swapping beside recomputation) does the same three things: send its storage, so that
all views of it are served by one copy; let the device's memory go; and call it back in time.

What it costs
-------------
Its bytes over the link, twice, and in host memory in between. On the device it takes none from the
end of the copy out, if nobody else holds it, to the moment when it is called.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from pedagogy.ranks.link import Copy, Link


class Away:
    """A tensor's whole storage, on its way to the host; `call` and `get` bring it back."""

    def __init__(self, tensor: Tensor, link: Link, number: int) -> None:
        storage = tensor.untyped_storage()
        self.of = weakref.ref(storage), tensor._version
        self.link, self.device, self.number = link, tensor.device, number
        length = storage.nbytes() // tensor.element_size()
        flat = tensor.detach().as_strided((length,), (1,), 0)
        self.leaving = link.to_host(flat, name=f"activation {number}")
        self.arriving: Copy | None = None

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is this tensor's storage that left, and with the values of now."""
        storage, version = self.of
        return storage() is tensor.untyped_storage() and version == tensor._version

    def call(self) -> None:
        """It starts on its way back."""
        if self.arriving is None:
            host = self.leaving.finish()  # the copy out must be over
            target = torch.empty_like(host, device=self.device)
            self.arriving = self.link.to_device(host, target, f"activation {self.number}")

    def get(self) -> Tensor:
        """The storage as a flat tensor on the device, (elements,)."""
        self.call()
        return self.arriving.wait()
