"""Parameters, layer by layer: the device holds what runs and what runs next.

Why it exists
-------------
A model can be larger than the device that trains it, because the device works on one layer at a
time. All parameters lie in host memory. A layer's are copied to the device before it runs and are
given up afterwards; nothing is copied back, for the host's are still right. Gradients go to the
host as they appear.

How it works
------------
A step uses the layers in the order 0, 1, ..., n-1, n-1, ..., 0. At the start of each use:

    [1] what is not among this use and the next `prefetch` leaves the device
    [2] what is among them and not there is asked for, in order
    [3] this use waits for its own layer

With `prefetch=0` [3] waits for the whole copy each time. With 1 or more it waits only for what the
link has not managed while the layer before was running.

Which parameters stay
---------------------
Those outside the layers (embedding, last norm), and those that two layers share: a tied weight is
needed at both ends of the model. They stay on the device.

What it costs
-------------
Device memory: the largest `prefetch` + 1 neighbours, and as many gradients. Link: the layers'
bytes to the device about twice a step, and once to the host.

Source: Rajbhandari et al. 2021 (ZeRO-Infinity), sections 5 and 6; Rhu et al. 2016 (vDNN) for the
use of a layer-wise order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pedagogy.offload.host_copy import HostCopy
from pedagogy.offload.simulate import uses_of_a_step
from pedagogy.offload.values import values_by_name
from pedagogy.ranks import Event, Link, Trace, open_link

_DONE = _NONE = -1


class OffloadedModule(nn.Module):
    """The module, with the parameters of its `layers` in host memory but while they are used.

    Called like the module, which can also be used directly. `layers`: in the order in which they
    run; by default the blocks of a GPT (`module.blocks`), or the children of a Sequential.
    `copies`: the `HostCopy` of each parameter that moves. `compute_seconds`: each of the 2n uses
    lasts this long, by sleeping (for pictures). `restore` undoes everything. `state_dict` and
    `load_state_dict`, of the module too, are the host's values. A layer's backward must begin at
    what its forward returns.
    **Raises** ValueError for a negative prefetch, no layers, a layer listed twice or not in the
    module, no parameters, compute_seconds of another number than 2n.
    """

    def __init__(
        self,
        module: nn.Module,
        link: Link | None = None,
        prefetch: int = 1,
        layers: Sequence[nn.Module] | None = None,
        folder: Path | None = None,
        compute_seconds: Sequence[float] = (),
    ) -> None:
        super().__init__()
        if layers is None:
            layers = getattr(module, "blocks", None) or module.children()
        layers = list(layers)
        parameters = list(module.parameters())
        if not parameters:
            raise ValueError("a module without parameters: there is nothing to offload")
        _check(module, layers, prefetch, compute_seconds)
        self.module = module
        self.link = link or open_link(parameters[0].device)
        self.prefetch = prefetch
        self.compute_seconds = compute_seconds
        self.copies = self._host_copies(layers, folder)
        self._of_layer = [
            [self.copies[p] for p in layer.parameters() if p in self.copies] for layer in layers
        ]
        self._uses = uses_of_a_step(len(layers))
        self._held: set[int] = set()
        self._use, self._since, self._backward = _DONE, 0.0, _NONE
        self._events: list[Event] = []
        self._hooks = [copy.send_gradients() for p, copy in self.copies.items() if p.requires_grad]
        self._hooks += values_by_name(module, self.copies)
        for index, layer in enumerate(layers):
            layer.forward = partial(self._forward_layer, index, layer.forward)
        self._layers = layers
        for copy in self.copies.values():
            copy.evict()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        return self.module(*inputs, **kwargs)

    @property
    def trace(self) -> Trace:
        """What the device did: the uses of layers on lane 0, the copies on lanes 1 and 2."""
        return Trace([*self._events, *self.link.trace])

    def host_parameters(self) -> list[nn.Parameter]:
        """What an optimizer may step on the host; their gradients are there after backward."""
        return [copy.host for copy in self.copies.values()]

    def restore(self) -> nn.Module:
        """All parameters are back on the device for good, with the host's values; the module."""
        for copy in self.copies.values():
            copy.fetch()
            copy.wait()
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            del layer.forward
        return self.module

    def _host_copies(
        self, layers: list[nn.Module], folder: Path | None
    ) -> dict[nn.Parameter, HostCopy]:
        """Of each parameter that is in one layer and nowhere else."""
        everywhere = Counter(p for _, p in self.module.named_parameters(remove_duplicate=False))
        inside = Counter(p for layer in layers for p in layer.parameters())
        return {
            p: HostCopy(p, self.link, folder)
            for p, count in inside.items()
            if count == everywhere[p] == 1
        }

    def _forward_layer(self, index: int, forward: Callable, *inputs: Any, **kwargs: Any) -> Any:
        self._begin(self._use_of(index))
        given = {tensor.grad_fn for tensor in _tensors((inputs, kwargs))}
        outputs = forward(*inputs, **kwargs)
        for tensor in _tensors(outputs):
            if tensor.requires_grad and tensor.grad_fn not in given:  # the layer made it
                tensor.register_hook(partial(self._begin_backward, index))
        return outputs

    def _begin_backward(self, index: int, gradient: Tensor) -> None:
        if self._backward != _backward_under_way():
            self._backward = _backward_under_way()
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._begin(self._use_of(index))

    def _use_of(self, index: int) -> int:
        """A layer that runs forward during backward is being recomputed: for its backward."""
        return index if _backward_under_way() == _NONE else len(self._uses) - 1 - index

    def _begin(self, use: int) -> None:
        """A layer is about to run: [1], [2], [3]."""
        if use != self._use:  # not recomputed, nor a second output
            self._log()
        coming = self._uses[use : use + self.prefetch + 1]
        for layer in list(self._held):
            if layer not in coming or not all(c.is_current for c in self._of_layer[layer]):
                self._evict(layer)
        for layer in coming:
            if layer not in self._held:
                self._held.add(layer)
                for copy in self._of_layer[layer]:
                    copy.fetch(f"layer {layer}")
        for copy in self._of_layer[self._uses[use]]:
            copy.wait()
        if use != self._use:
            self._use, self._since = use, time.perf_counter()

    def _evict(self, layer: int) -> None:
        self._held.discard(layer)
        for copy in self._of_layer[layer]:
            copy.take_gradients()
            copy.evict()

    def _end(self) -> None:
        """Backward is over: nothing stays on the device, and all gradients have arrived."""
        self._log()
        for layer in list(self._held):
            self._evict(layer)

    def _log(self) -> None:
        """The use that runs is over; it lasts as long as it was told to."""
        if self._use == _DONE:
            return
        if self.compute_seconds:
            end = self._since + self.compute_seconds[self._use]
            time.sleep(max(0.0, end - time.perf_counter()))
        kind = "F" if self._use < len(self._layers) else "B"
        name = str(self._uses[self._use])
        self._events.append(Event(0, kind, name, self._since, time.perf_counter()))
        self._use = _DONE


def _check(
    module: nn.Module, layers: list[nn.Module], prefetch: int, compute_seconds: Sequence[float]
) -> None:
    """**Raises** ValueError for what `OffloadedModule` cannot work with."""
    if prefetch < 0:
        raise ValueError(f"a prefetch of {prefetch}: must be 0 or more")
    if not layers:
        raise ValueError("no layers: list in `layers` the modules that are to move, 1 or more")
    if len(set(layers)) != len(layers):
        raise ValueError(f"{len(layers)} layers, {len(set(layers))} different: list each once")
    if strangers := set(layers) - set(module.modules()):
        raise ValueError(
            f"{len(strangers)} of {len(layers)} layers are not in the module: its own are allowed"
        )
    if len(compute_seconds) not in (0, 2 * len(layers)):
        raise ValueError(
            f"{len(compute_seconds)} compute_seconds for {len(layers)} layers: one for each "
            f"forward and backward, {2 * len(layers)}, or none"
        )


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _backward_under_way() -> int:
    """The number of the backward that this is called from; -1 outside of one."""
    return torch._C._current_graph_task_id()
