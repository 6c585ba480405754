"""Which kind of memory a tensor is: ask who owns it.

Why it exists
-------------
A tensor does not say what it is for. The same bytes are "an activation" until autograd hangs them
on a parameter, and are then "a gradient". So the meter asks the owners, each time it reads:

* **parameters**: the module's parameters (without a module, those that the optimizer holds);
* **buffers**: the module's buffers, such as BatchNorm's running mean or an attention mask;
* **gradients**: the `.grad` of every parameter;
* **optimizer_state**: every tensor in `optimizer.state`, and the parameters in its groups that
  are not the module's own, which are master copies (ZeRO counts fp32 master weights so too).

Tied parameters, and views of one buffer, share a storage: it is counted once, under the first
kind in the order above that claims it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

OWNED_KINDS = ("parameters", "buffers", "gradients", "optimizer_state")
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_CONTAINERS = (dict, list, tuple)
_BY_ROW = ("crow_indices", "col_indices", "values")
_BY_COLUMN = ("ccol_indices", "row_indices", "values")
_SPARSE_PARTS = {  # the methods that give the tensors inside, by layout
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _BY_ROW,
    torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN,
    torch.sparse_bsc: _BY_COLUMN,
}


class Owners:
    """The tensors of a module and an optimizer, by kind, as they are at the moment of asking.

    The tree of modules is walked once, here; the parameters that they hold are looked up anew
    each time, because sharding replaces them. `optimizer` may be anything with a `state` and
    `param_groups`. A parameter that the module has set aside for a full copy, as FSDP does between
    gather and release, is for that time the optimizer's, and counted as such.
    """

    def __init__(self, module: torch.nn.Module | None, optimizer: Any) -> None:
        modules = list(module.modules()) if module is not None else []
        self._has_module = bool(modules)
        self._parameters = [m._parameters for m in modules]
        self._buffers = [m._buffers for m in modules]
        self._optimizer = optimizer

    def tensors(self) -> dict[str, list[Tensor]]:
        """The owned tensors that hold bytes, by kind; one storage may come several times."""
        held = [p for group in self._parameters for p in group.values() if p is not None]
        buffers = [b for group in self._buffers for b in group.values() if b is not None]
        known = set(map(id, held))
        masters = [p for p in self._stepped() if id(p) not in known]
        if not self._has_module:
            held, masters = masters, []
        gradients = [p.grad for p in (*held, *masters) if p.grad is not None]
        state = masters
        if self._optimizer is not None:
            state = masters + tensors_in(dict(self._optimizer.state))
        owned = zip(OWNED_KINDS, (held, buffers, gradients, state), strict=True)
        return {kind: opened(tensors) for kind, tensors in owned}

    def _stepped(self) -> list[Tensor]:
        """The parameters that the optimizer updates."""
        groups = self._optimizer.param_groups if self._optimizer is not None else ()
        return [p for group in groups for p in group["params"]]


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor inside nested dicts, lists and tuples, outer ones first."""
    found: list[Tensor] = []
    level = [value]
    while level:
        if _PLAIN.issuperset(map(type, level)):
            return found + level
        found += [item for item in level if isinstance(item, Tensor)]
        nested = [item for item in level if isinstance(item, _CONTAINERS)]
        level = [x for item in nested for x in (item.values() if isinstance(item, dict) else item)]
    return found


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that hold the bytes: wrappers such as DTensor and sparse tensors are opened.

    What has no storage gives nothing: a lazy module's parameter, a tensor in MKL-DNN's format.
    """
    if is_traceable_wrapper_subclass(tensor):
        for inner in map(tensor.__getattribute__, tensor.__tensor_flatten__()[0]):
            if isinstance(inner, Tensor):  # DTensor lists its mesh too
                yield from plain_tensors(inner)
    elif torch.nn.parameter.is_lazy(tensor):
        return
    elif torch._C._has_storage(tensor):
        yield tensor
    else:
        with torch._C._DisableTorchDispatch():  # to look is no operation
            parts = [getattr(tensor, name)() for name in _SPARSE_PARTS.get(tensor.layout, ())]
        yield from parts


def opened(tensors: list[Tensor]) -> list[Tensor]:
    """The plain tensors of all; nearly always the list itself, and this runs all the time."""
    if _PLAIN.issuperset(map(type, tensors)) and all(map(torch._C._has_storage, tensors)):
        return tensors
    return [plain for tensor in tensors for plain in plain_tensors(tensor)]
