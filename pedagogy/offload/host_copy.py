"""One parameter and its place in host memory.

Why it exists
-------------
Offloading divides a parameter's life in two. The device needs its values while a layer runs; the
host keeps what stays: the values between uses, the gradient that came out, the optimizer's state.
`HostCopy` is that place, and the four things that happen between the two:

    fetch              host -> device, into memory that the parameter gets back
    evict              the device's memory is given back; the values are the host's already
    send_gradient      device -> host, as soon as backward has made it
    take_gradients     what has arrived becomes the gradient of the host's parameter

Nothing is lost on the way, and nothing is read that is not there: an evicted parameter has no
storage, and whoever touches it is told so (`Evicted`).

What it costs
-------------
Host memory: one copy of the values, in fp32 where the device computes in 16 bits (the master
weights of mixed precision), and one of the gradient. Over the link: the values down to the device
in *its* precision, the gradient up in its own.

Source: Ren et al. 2021 (ZeRO-Offload), section 3.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from pedagogy.ranks import Copy, Link

_HALF = (torch.float16, torch.bfloat16)
_HARMLESS = frozenset(  # what may be asked of a parameter that is not there
    {getattr(Tensor, name).__get__ for name in ("grad", "shape", "dtype", "device", "is_leaf")}
    | {getattr(Tensor, name).__get__ for name in ("requires_grad", "layout", "is_cuda", "ndim")}
    | {Tensor.nbytes.__get__}
    | {Tensor.grad.__set__, Tensor.grad.__delete__, Tensor.__hash__, Tensor.numel, Tensor.size}
    | {Tensor.dim, Tensor.data_ptr, Tensor.untyped_storage, Tensor.element_size, Tensor.stride}
    | {Tensor.requires_grad_, Tensor.is_floating_point, Tensor.register_hook}
)


class Evicted(nn.Parameter):
    """What a parameter is while its values are in host memory: it refuses to be read."""

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Size and gradient may be asked; whatever needs values raises RuntimeError."""
        if func not in _HARMLESS:
            name = getattr(func, "__name__", str(func))
            if name == "__get__":  # of an attribute
                name = func.__self__.__name__
            evicted = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, cls))
            raise RuntimeError(
                f"{name} reads a parameter of shape {tuple(evicted.shape)} that is in host "
                "memory: it is on the device only while its layer runs (state_dict of the whole "
                "module has its values, and its HostCopy)"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __repr__(self) -> str:
        return f"parameter of shape {tuple(self.shape)} in host memory"


class HostCopy:
    """A parameter of the device, and `host`, its counterpart in host memory.

    `host` is an `nn.Parameter` (its `.grad` is filled by `take_gradients`), in fp32 where the
    device's is in 16 bits. With `folder` its values lie in a memory-mapped file there.
    **Raises** ValueError for a parameter that shares its storage with another tensor's.
    """

    def __init__(self, parameter: nn.Parameter, link: Link, folder: Path | None = None) -> None:
        if parameter.untyped_storage().nbytes() != parameter.nbytes:
            raise ValueError(
                f"a parameter of {parameter.nbytes} bytes lies in a storage of "
                f"{parameter.untyped_storage().nbytes()}: it cannot be evicted by itself"
            )
        self.parameter = parameter
        self.link = link
        self.host = link.on_host(_host_parameter, parameter, folder)
        self._kind = type(parameter)
        self._versions = self.host._version, parameter._version
        self._arriving: Copy | None = None
        self._fetched: Copy | None = None  # the last that arrived, or is about to
        self._gradients: list[Copy] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the values on the device."""
        return self.parameter.numel() * self.parameter.element_size()

    @property
    def is_evicted(self) -> bool:
        """Whether the device has no memory for it."""
        return isinstance(self.parameter, Evicted)

    @property
    def is_current(self) -> bool:
        """Whether the host's values are still those that were fetched last."""
        return self.host._version == self._versions[0]

    def evict(self) -> None:
        """The device's memory is free; reading the parameter raises."""
        self.wait()
        self.parameter.untyped_storage().resize_(0)
        self.parameter.__class__ = Evicted

    def fetch(self, name: str = "") -> None:
        """The device has memory for it, and the values are on their way: `wait` before use.

        **Raises** RuntimeError where the device's values were changed: they would be lost.
        """
        if self.is_evicted:
            self.parameter.__class__ = self._kind
            self.parameter.untyped_storage().resize_(self.nbytes)
        if self.parameter._version != self._versions[1]:
            raise RuntimeError(
                f"a parameter of shape {tuple(self.parameter.shape)} was changed on the device, "
                "but what counts are the host's values: change those"
            )
        self._versions = self.host._version, self.parameter._version
        self._fetched = self.link.to_device(self._outgoing(), self.parameter.data, name)
        self._arriving = self._fetched

    def wait(self) -> None:
        """Compute that starts from now on finds the values."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            arriving.wait()

    def settle(self) -> None:
        """The host may change its values: they are not being copied any more."""
        if self._fetched is not None:
            self._fetched.finish()

    def send_gradients(self) -> RemovableHandle:
        """From now on each gradient leaves as it is made, for as long as this copy exists."""
        this = weakref.ref(self)  # a parameter's hooks are out of the garbage collector's sight

        def send(parameter: Tensor) -> None:
            if (copy := this()) is not None:
                copy.send_gradient(parameter)

        return self.parameter.register_post_accumulate_grad_hook(send)

    def send_gradient(self, parameter: Tensor) -> None:
        """Backward has made the gradient: it leaves for the host, and the device's goes."""
        self._gradients.append(self.link.to_host(parameter.grad, name="gradient"))
        parameter.grad = None

    def take_gradients(self) -> None:
        """`host.grad` holds what has been sent, added to what it held before."""
        arrived = [copy.finish() for copy in self._gradients]
        self._gradients = []
        if arrived:
            self.link.on_host(_add_gradients, self.host, arrived)

    def _outgoing(self) -> Tensor:
        if self.host.dtype == self.parameter.dtype:
            return self.host
        return self.link.on_host(_cast, self.host, self.parameter)


@torch.no_grad()
def _host_parameter(parameter: nn.Parameter, folder: Path | None) -> nn.Parameter:
    dtype = torch.float32 if parameter.dtype in _HALF else parameter.dtype
    if folder is None:
        values = torch.empty(parameter.shape, dtype=dtype, pin_memory=parameter.is_cuda)
    else:
        path = Path(folder) / f"{id(parameter)}.bin"
        flat = torch.from_file(str(path), shared=True, size=parameter.numel(), dtype=dtype)
        values = flat.view(parameter.shape)
    return nn.Parameter(values.copy_(parameter), requires_grad=parameter.requires_grad)


@torch.no_grad()
def _cast(host: Tensor, like: Tensor) -> Tensor:
    cast = torch.empty(host.shape, dtype=like.dtype, pin_memory=like.is_cuda)
    return cast.copy_(host)


@torch.no_grad()
def _add_gradients(host: nn.Parameter, arrived: list[Tensor]) -> None:
    for gradient in arrived:
        gradient = gradient.to(host.dtype)
        host.grad = gradient if host.grad is None else host.grad.add_(gradient)
