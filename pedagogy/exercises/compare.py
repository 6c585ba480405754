"""Two answers are compared, and the first difference is said in one line.

A learner's answer may be a number, a tensor, a string, or lists and dicts of these. `difference`
looks at kind, then size, then values, in the order in which a person would look, because "the
shape is (4, 3), and (3, 4) was expected" helps more than "not equal".
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import torch

Found = tuple[tuple[str, ...], str]  # the place of a difference, and what differs


def difference(got: Any, want: Any, tolerance: float) -> str | None:
    """None if `got` answers `want`, else the first difference in one line.

    Numbers and tensors agree when |got - want| <= tolerance * max(1, |want|). Lists and tuples
    count as the same kind, and so do a number and a tensor with one element and no dimension.
    Inside lists and dicts the place comes first: "losses, element 2: it is 3, and ...".
    """
    found = _find(got, want, tolerance)
    if found is None:
        return None
    path, text = found
    return f"{shortened(', '.join(path), 80)}: {text}" if path else text


def _find(got: Any, want: Any, tolerance: float) -> Found | None:
    """The place of the first difference and what it is; the place is empty outside containers."""
    got, want = _plain(got), _plain(want)
    if isinstance(want, dict) and isinstance(got, dict) and got.keys() == want.keys():
        pairs = [(_key(key), got[key], want[key]) for key in want]
        return _first_inside(pairs, tolerance)
    if _is_list(want) and _is_list(got) and len(got) == len(want):
        both = zip(got, want, strict=True)
        pairs = [(f"element {index}", one, other) for index, (one, other) in enumerate(both)]
        return _first_inside(pairs, tolerance)
    try:
        text = _difference_here(got, want, tolerance)
    except Exception:  # an answer of any class may refuse to be compared
        text = f"it is {_kind(got)}, and {brief(want)} was expected"
    return None if text is None else ((), text)


def _first_inside(pairs: list[tuple[str, Any, Any]], tolerance: float) -> Found | None:
    for place, one, other in pairs:
        found = _find(one, other, tolerance)
        if found:
            return (place, *found[0]), found[1]
    return None


def _difference_here(got: Any, want: Any, tolerance: float) -> str | None:
    """The difference between two values that are no containers of the same keys or length."""
    if isinstance(want, torch.Tensor):
        return _tensor_difference(got, want, tolerance)
    if isinstance(want, bool) or want is None or isinstance(want, str):
        return None if type(got) is type(want) and got == want else _unequal(got, want)
    if isinstance(want, numbers.Number):
        return _number_difference(got, want, tolerance)
    if isinstance(want, dict):
        return _dict_difference(got, want)
    if _is_list(want):
        return _list_difference(got, want)
    return None if got == want else _unequal(got, want)


def brief(value: Any) -> str:
    """The value in at most about 60 characters; of an object that needs more, its class."""
    value = _plain(value)
    if isinstance(value, torch.Tensor):
        if value.numel() > 6 or not _holds_numbers(value):
            return f"a tensor of shape {tuple(value.shape)}"
        return f"tensor({brief(value.tolist())})"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)) and len(value) <= 6:
        inside = ", ".join(brief(one) for one in value)
        text = f"[{inside}]" if isinstance(value, list) else f"({inside})"
    elif isinstance(value, (str, bytes, dict, list, tuple, set, numbers.Number)):
        text = _repr(value)
    else:
        text = _repr(value)
        if len(text) > 60 or "\n" in text:
            text = _kind(value)
    return shortened(" ".join(text.split()), 60)


def shortened(text: str, length: int) -> str:
    """The text, cut to `length` characters."""
    return text if len(text) <= length else text[: length - 3] + "..."


def _plain(value: Any) -> Any:
    """numpy becomes torch, and what has one element and no dimension becomes a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        try:
            value = torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
        except TypeError:  # its elements are strings, or any objects
            return value
    if isinstance(value, torch.Tensor) and _holds_numbers(value):
        value = value.detach().cpu()
        return value.item() if value.dim() == 0 else value
    return value


def _holds_numbers(value: torch.Tensor) -> bool:
    """Whether each element can be looked up: a sparse tensor leaves some out, a meta tensor all."""
    return value.layout is torch.strided and not value.is_meta


def _repr(value: Any) -> str:
    """Its repr, or its class if that fails: an integer of 5,000 digits has none either."""
    try:
        return repr(value)
    except Exception:
        return _kind(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) and key else f"key {brief(key)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def _unequal(got: Any, want: Any) -> str:
    if type(got) is not type(want):
        return f"it is {_kind(got)} ({brief(got)}), and {_kind(want)} was expected"
    return f"it is {brief(got)}, and {brief(want)} was expected"


def _number_difference(got: Any, want: Any, tolerance: float) -> str | None:
    if isinstance(got, bool) or not isinstance(got, numbers.Number):
        return f"it is {_kind(got)} ({brief(got)}), and a number was expected"
    if got == want or (got != got and want != want):
        return None
    if got != got:
        return "it is NaN (0/0, or inf - inf, somewhere on the way)"
    if math.inf in (abs(got), abs(want)):
        return f"it is {got}, and {brief(want)} was expected"
    try:
        near = abs(got - want) <= tolerance * max(1.0, abs(want))
    except (OverflowError, TypeError):  # an integer larger than any float; a Decimal
        near = False
    return None if near else f"it is {brief(got)}, and {brief(want)} was expected"


def _tensor_difference(got: Any, want: torch.Tensor, tolerance: float) -> str | None:
    if not isinstance(got, torch.Tensor):
        return f"it is {_kind(got)}, and a tensor of shape {tuple(want.shape)} was expected"
    if got.shape != want.shape:
        return f"the shape is {tuple(got.shape)}, and {tuple(want.shape)} was expected"
    if got.dtype != want.dtype:
        return f"the dtype is {got.dtype}, and {want.dtype} was expected"
    if got.layout != want.layout:
        return f"the layout is {got.layout}, and {want.layout} was expected"
    if got.is_meta:
        return "it is on the device meta, where tensors hold no numbers"
    if want.numel() == 0:
        return None
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    same = (got == want) | (got.isnan() & want.isnan())
    allowed = tolerance * want.abs().clamp(min=1.0)
    same |= want.isfinite() & ((got - want).abs() <= allowed)  # NaN is below nothing
    if bool(same.all()):
        return None
    extra = int((got.isnan() & ~want.isnan()).sum())
    if extra:
        return f"{extra} of {got.numel()} elements are NaN (0/0, or inf - inf, on the way)"
    where = tuple((~same).nonzero()[0].tolist())
    index = ", ".join(map(str, where))
    return (
        f"{int((~same).sum())} of {got.numel()} elements differ: element [{index}] is "
        f"{brief(got[where].item())}, and {brief(want[where].item())} was expected"
    )


def _list_difference(got: Any, want: Any) -> str:
    if not _is_list(got):
        return f"it is {_kind(got)}, and {_kind(want)} of {len(want)} was expected"
    return f"it has {len(got)} elements, and {len(want)} were expected"


def _dict_difference(got: Any, want: dict) -> str:
    if not isinstance(got, dict):
        return f"it is {_kind(got)}, and a dict with {len(want)} keys was expected"
    missing = [brief(key) for key in want if key not in got]
    extra = [brief(key) for key in got if key not in want]
    parts = [f"lacks {shortened(', '.join(missing), 80)}"] if missing else []
    parts += [f"has {shortened(', '.join(extra), 80)} too many"] if extra else []
    return f"the dict {' and '.join(parts)}"
