"""Chapter 07: wrong ways to send saved tensors to the host, and what to say about each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn


def _whole(tensor: Tensor) -> Tensor:
    return tensor.new_empty(0).set_(tensor.untyped_storage())


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter)


def _as_view(flat: Tensor, size: Any, stride: Any, offset: int) -> Tensor:
    return flat.as_strided(size, stride, offset)


def hooks(
    to_host: Callable,
    to_device: Callable,
    number_of: Callable,
    stays: Callable[[Tensor], bool] = _is_parameter,
    key: Callable[[Tensor, Callable], Any] = lambda tensor, number_of: number_of(tensor),
    sent_part: Callable[[Tensor], Tensor] = _whole,
    viewed: Callable[..., Tensor] = _as_view,
    back: Callable[[Callable, Any, Tensor | None], Tensor] = lambda to_device, it, _: to_device(it),
    held: Callable[[Tensor], Tensor | None] = lambda tensor: None,
) -> tuple[Callable, Callable]:
    """The reference's pair, with the parts that are given in the place of its own."""
    sent: dict = {}

    def pack(tensor: Tensor) -> Any:
        if stays(tensor):
            return tensor
        its = key(tensor, number_of)
        if its is None or its not in sent:
            handle = to_host(sent_part(tensor))
            sent[its] = handle
        return sent[its], held(tensor), tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        handle, kept, *view = packed
        return viewed(back(to_device, handle, kept), *view)

    return pack, unpack


def _packed_as_it_is(to_host, to_device, number_of):
    return to_host, to_device


def _stays_on_the_device(to_host, to_device, number_of):
    return lambda tensor: tensor, lambda tensor: tensor


def _each_time(tensor: Tensor, number_of: Callable) -> None:
    """No key: it is sent again."""


def _no_view(flat: Tensor, size: Any, stride: Any, offset: int) -> Tensor:
    return flat


def _shape_alone(flat: Tensor, size: Any, stride: Any, offset: int) -> Tensor:
    return flat[: size.numel()].view(size)


def _offset_forgotten(flat: Tensor, size: Any, stride: Any, offset: int) -> Tensor:
    return flat.as_strided(size, stride)


_never = partial(lambda answer, tensor: answer, False)  # also a parameter is sent
_AGAIN = (
    "Each saved tensor is sent by itself, also where two of them look into one storage, which then "
    "goes to the host twice. Keep, by number_of(tensor), what has been sent."
)
_WEIGHTS = (
    "Weights are sent as well. Autograd saves them, but they are no activations: they are on the "
    "device in any case, and nothing is gained."
)
_WEIGHT_VIEWS = (
    "Weights stay, but their views are sent: a linear layer saves weight.t(), which is no "
    "nn.Parameter. Look at tensor._base too."
)
_VIEW = (
    "What comes back has not the shape, the strides and the offset of the tensor that was saved. "
    "Keep all three, and make the view with as_strided."
)
_ADDRESS = (
    "The key is an address. When a tensor is gone, the next one may lie at the same address, and "
    "is taken for one that has been sent: backward gets the old values. number_of(tensor) does not "
    "come again."
)
_ONE_VIEW = (
    "What is sent is what the first of the tensors sees, not the whole storage: the next view of "
    "it looks for what has not been sent."
)

_KEPT = "It is sent, and kept on the device as well: the graph must hold the handle alone."

MISTAKES = [
    (_packed_as_it_is, f"{_AGAIN} And weights are sent as well; they are no activations."),
    (
        partial(hooks, key=_each_time, sent_part=lambda t: t, viewed=lambda flat, *view: flat),
        _AGAIN,
    ),
    (
        partial(
            hooks,
            stays=lambda tensor: isinstance(tensor, nn.Parameter),
            key=_each_time,
            sent_part=lambda t: t,
            viewed=lambda flat, *view: flat,
        ),
        f"{_AGAIN} And {_WEIGHT_VIEWS[0].lower()}{_WEIGHT_VIEWS[1:]}",
    ),
    (partial(hooks, key=_each_time), _AGAIN),
    (
        partial(hooks, stays=_never, key=_each_time),
        f"{_AGAIN} And weights are sent as well; they are no activations.",
    ),
    (partial(hooks, stays=_never), _WEIGHTS),
    (partial(hooks, stays=lambda tensor: isinstance(tensor, nn.Parameter)), _WEIGHT_VIEWS),
    (partial(hooks, key=lambda tensor, _: tensor.untyped_storage().data_ptr()), _ADDRESS),
    (partial(hooks, key=lambda tensor, _: tensor.data_ptr()), _ADDRESS),
    (partial(hooks, viewed=_no_view), _VIEW),
    (partial(hooks, viewed=_shape_alone), _VIEW),
    (partial(hooks, viewed=lambda flat, size, *view: flat.view(size)), _VIEW),
    (partial(hooks, viewed=_offset_forgotten), _VIEW),
    (partial(hooks, sent_part=lambda tensor: tensor.reshape(-1)), _ONE_VIEW),
    (partial(hooks, sent_part=lambda t: t, viewed=lambda flat, *view: flat), _ONE_VIEW),
    (partial(hooks, held=lambda tensor: tensor), _KEPT),
    (
        partial(
            hooks,
            held=lambda tensor: tensor,
            back=lambda to_device, it, kept: kept,
            viewed=lambda kept, *view: kept,
        ),
        _KEPT,
    ),
    (
        _stays_on_the_device,
        "Nothing is sent: the tensors stay on the device, in the graph. pack returns a handle.",
    ),
]
