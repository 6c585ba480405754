"""Chapter 07: what autograd saves waits in host memory, each storage once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.chapter07_wrong_hooks import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def offload_hooks(
    to_host: Callable[[Tensor], object],
    to_device: Callable[[object], Tensor],
    number_of: Callable[[Tensor], int],
) -> tuple[Callable, Callable]:
    """(pack, unpack): each storage that autograd saves goes to the host once; parameters stay."""
    sent = {}

    def pack(tensor: Tensor) -> object:
        base = tensor if tensor._base is None else tensor._base
        if isinstance(base, nn.Parameter):
            return tensor
        number = number_of(tensor)
        if number not in sent:
            sent[number] = to_host(tensor.new_empty(0).set_(tensor.untyped_storage()))
        return number, tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(packed: object) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        number, *view = packed
        return to_device(sent[number]).as_strided(*view)

    return pack, unpack


# --- the link, and the numbers of storages ----------------------------------------------------


class _Handle:
    """A tensor in host memory; nothing but the link reads it."""

    def __init__(self, tensor: Tensor) -> None:
        self._away = tensor.detach().clone(memory_format=torch.contiguous_format)


class _Link:
    """Copies at once, and counts."""

    def __init__(self) -> None:
        self.bytes_to_host = 0

    def to_host(self, tensor: Tensor) -> _Handle:
        if not isinstance(tensor, Tensor):
            raise Refused(f"to_host takes a tensor, not {type(tensor).__name__}")
        self.bytes_to_host += tensor.nbytes
        return _Handle(tensor)

    def to_device(self, handle: _Handle) -> Tensor:
        if not isinstance(handle, _Handle):
            raise Refused(f"to_device takes what to_host returned, not {type(handle).__name__}")
        return handle._away.clone()


class _Numbers:
    """A number for each storage, which no other one gets, not even at the same address."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._next = count()

    def __call__(self, tensor: Tensor) -> int:
        found = StorageWeakRef(tensor.untyped_storage())
        reference, number = self._known.get(found.cdata, (found, None))
        if number is None or reference.expired():
            number = next(self._next)
            self._known[found.cdata] = found, number
        return number


# --- the cases --------------------------------------------------------------------------------


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _layers(first: Tensor, bias: Tensor, scale: Tensor, second: Tensor) -> Tensor:
    x = _drawn(4, 3, seed=0)
    hidden = functional.linear(x, first, bias).tanh()
    scaled = hidden * scale
    return functional.linear(scaled, second).square().sum()


def _with_transpose(weight: Tensor) -> Tensor:
    x = _drawn(4, 3, seed=0)
    rows = x @ weight
    return (rows @ rows.t()).square().sum()


def _halves(weight: Tensor) -> Tensor:
    x = _drawn(4, 3, seed=0)
    left, right = (x @ weight).chunk(2, dim=1)
    return (left * right).sum()


def _looked_up(table: Tensor) -> Tensor:
    index = torch.tensor([2, 0, 2])
    rows = table[index].exp()
    return (rows * rows).sum()


def _columns_of_the_weight(weight: Tensor) -> Tensor:
    x = _drawn(2, 3, seed=0)
    rows = x @ weight[:, :2]
    return (rows @ weight[:2, 1:]).square().sum()


def _memory_used_again(weight: Tensor) -> Tensor:
    memory, total = bytearray(16), torch.zeros(())
    for seed in (1, 2):
        x = torch.frombuffer(memory, dtype=torch.float32).copy_(_drawn(4, seed=seed))
        total = total + (weight * x).sum()
        del x  # the memory is free; the next tensor lies there
    return total


# what a loss keeps has a name, so that its memory is not free before forward is over
CASES = {  # a loss, and the shapes of its parameters
    "two linear layers": (_layers, [(4, 3), (4,), (4,), (2, 4)]),
    "a tensor and its transpose": (_with_transpose, [(3, 4)]),
    "two halves of one tensor": (_halves, [(3, 4)]),
    "an index of integers": (_looked_up, [(3, 2)]),
    "views of a parameter": (_columns_of_the_weight, [(3, 3)]),
    "two tensors, one after the other in the same memory": (_memory_used_again, [(4,)]),
}


def _gradients_and_bytes(function: Callable, loss_of: Callable, shapes: list) -> dict | None:
    parameters = [nn.Parameter(_drawn(*shape, seed=10 + i)) for i, shape in enumerate(shapes)]
    link = _Link()
    pair = function(link.to_host, link.to_device, _Numbers())
    if pair is None:
        return None
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(map(callable, pair)):
        raise Refused("a pair of functions was asked for: pack, unpack")
    pack, unpack = pair
    storages: list[weakref.ref] = []

    def noted(tensor: Tensor) -> object:
        if not isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter):
            storages.append(weakref.ref(tensor.untyped_storage()))
        return pack(tensor)

    with saved_tensors_hooks(noted, unpack):
        loss = loss_of(*parameters)
    kept = len({id(storage()) for storage in storages if storage() is not None})
    loss.backward()
    return {
        "storages still on the device after forward": kept,
        "the gradients": [parameter.grad for parameter in parameters],
        "bytes to the host": link.bytes_to_host,
    }


HOOKS = Exercise(
    name="offload_hooks",
    title="Each storage once",
    chapter="07",
    reference=offload_hooks,
    cases=list(CASES.values()),
    labels=list(CASES),
    observe=_gradients_and_bytes,
    mistakes=MISTAKES,
    tolerance=0.0,
    hints=[
        "pack(tensor) returns what is kept in the graph in the tensor's place, anything you like; "
        "unpack gets it back when backward asks. Begin with a dict from number_of(tensor) to the "
        "handle that to_host returned.",
        "Send the whole storage, not the view: tensor.new_empty(0).set_(tensor.untyped_storage()). "
        "Keep the number beside tensor.size(), tensor.stride() and tensor.storage_offset(), and "
        "make the view again with as_strided.",
        "A weight is saved too, often as a view: look at tensor._base where it is not None. If "
        "that is an nn.Parameter, pack returns the tensor itself, and unpack gives it back.",
    ],
)

register(HOOKS)
