"""The optimizer's states in host memory, and its update on the host.

Why it exists
-------------
Of the 16 bytes that a parameter costs under Adam with mixed precision, 12 are touched once a step,
by arithmetic so light that a CPU can do it: the fp32 values and the two moments. They, and the
gradients, can lie in host memory. The device keeps 2 bytes for each parameter.

How it works
------------
    during backward   each gradient leaves for the host as soon as it is made, 2 bytes
    step              [1] the host waits until all have arrived, and updates its fp32 copies
                      [2] the new values go back to the device, 2 bytes

The traffic, 4 bytes for each parameter and step, is the least that any division of the work has:
forward and backward need the 2-byte values on one side, the update needs the gradient on the other.

Together with `OffloadedModule` the host's copies are the same ones: what the module fetches layer
by layer needs no [2].

What it costs
-------------
The update's time on a CPU, and one trip over the link that nothing hides. Real systems hide part
of it: they update a piece while the next gradient arrives, with a vectorised Adam, or let the
device go on with parameters that are one step old.

Source: Ren et al. 2021 (ZeRO-Offload), sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from pedagogy.offload.host_copy import HostCopy
from pedagogy.offload.parameters import OffloadedModule
from pedagogy.ranks import Link, open_link


class OffloadedOptimizer:
    """`optimizer_class(parameters, **arguments)`, whose states and update live on the host.

    The module's parameters stay on the device, or where its `OffloadedModule` keeps them. Its
    gradients go to the host during backward: `p.grad` is None afterwards. `optimizer` is the one
    on the host: give it to a scheduler, clip its parameters' gradients (after `take_gradients`).
    **Raises** ValueError for a module without parameters.
    """

    def __init__(
        self,
        module: nn.Module | OffloadedModule,
        optimizer_class: type[torch.optim.Optimizer],
        link: Link | None = None,
        **arguments: Any,
    ) -> None:
        moving = module.copies if isinstance(module, OffloadedModule) else {}
        parameters = list(module.parameters())
        if not parameters:
            raise ValueError("a module without parameters: there is nothing to offload")
        if link is None:
            of_module = isinstance(module, OffloadedModule)
            link = module.link if of_module else open_link(parameters[0].device)
        self.link = link
        self.staying = {p: HostCopy(p, link) for p in parameters if p not in moving}
        self.copies = {p: moving.get(p) or self.staying[p] for p in parameters}
        self._hooks = [copy.send_gradients() for p, copy in self.staying.items() if p.requires_grad]
        hosts = [copy.host for copy in self.copies.values()]
        self.optimizer = optimizer_class(hosts, **arguments)

    def take_gradients(self) -> None:
        """The host's parameters have the gradients of all backwards so far."""
        for p, copy in self.copies.items():
            if p.grad is not None:  # set by hand, or of a parameter that was frozen at first
                copy.send_gradient(p)
            copy.take_gradients()

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """[1] and [2]; the device's parameters are the new ones when it returns.

        **Raises** ValueError for a closure, which would need the gradients more than once.
        """
        if closure is not None:
            raise ValueError("OffloadedOptimizer takes no closure: run backward, then step")
        self.take_gradients()
        self._settle()
        self.link.on_host(self.optimizer.step)
        self._fetch(copy for copy in self._here() if copy.host.grad is not None)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """No gradient is left, on the device, on the link or on the host."""
        for p in self.copies:
            p.grad = None
        self.take_gradients()
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the host's values and the optimizer's state: all that it takes to go on."""
        hosts = [copy.host.detach() for copy in self.copies.values()]
        state = {"values": hosts, "optimizer": self.optimizer.state_dict()}
        return self.link.on_host(deepcopy, state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. **Raises** ValueError for parameters of other shapes."""
        saved = [tuple(value.shape) for value in state["values"]]
        here = [tuple(copy.host.shape) for copy in self.copies.values()]
        if saved != here:
            differ = [pair for pair in zip(saved, here, strict=False) if len(set(pair)) == 2]
            raise ValueError(
                f"{len(saved)} values saved, {len(here)} parameters are here; the first of "
                f"other shapes (saved, here): {differ[:1]}"
            )
        self._settle()
        with torch.no_grad():
            for copy, saved in zip(self.copies.values(), state["values"], strict=True):
                copy.host.copy_(saved)
        self.link.on_host(self.optimizer.load_state_dict, state["optimizer"])
        self._fetch(self._here())

    def restore(self) -> None:
        """The device's parameters keep their gradients again; the host's copies remain."""
        for hook in self._hooks:
            hook.remove()

    def _here(self) -> list[HostCopy]:
        """What stays; and what moves, where it is on the device at the moment or restored."""
        return [copy for copy in self.copies.values() if not copy.is_evicted]

    def _settle(self) -> None:
        for copy in self.copies.values():
            copy.settle()

    def _fetch(self, copies: Iterable[HostCopy]) -> None:
        copies = list(copies)
        for copy in copies:
            copy.fetch("parameters")
        for copy in copies:
            copy.wait()
