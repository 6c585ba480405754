"""What an operation writes, besides what it returns.

Why it exists
-------------
A recipe is right as long as what it reads is what it was. PyTorch's operations say in their schema
which arguments they write. Two kinds do not: BatchNorm, whose running statistics are the one thing
that it changes silently, and operations that others registered, collectives above all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def is_own(func: Any) -> bool:
    """One of PyTorch's operations, which say what they write; a collective does not."""
    return func.namespace in ("aten", "prims")


def tensors_in(values: Any) -> list[Tensor]:
    """All that have a storage; a sparse tensor has none."""
    return [x for x in tree_leaves(values) if isinstance(x, Tensor) and torch._C._has_storage(x)]


def _counts(func: Any, args: tuple) -> bool:
    """BatchNorm while it trains: it writes its running statistics and does not read them."""
    return "batch_norm" in str(func) and len(args) == 8 and args[5] is True


def without_statistics(func: Any, args: tuple) -> tuple:
    """What BatchNorm is given when it runs again: its statistics have seen this batch."""
    return (*args[:3], None, None, *args[5:]) if _counts(func, args) else args


def written(func: Any, args: tuple, kwargs: dict) -> list[Tensor]:
    """What an operation writes in place: what it says, and BatchNorm's running statistics."""
    if not is_own(func):
        return tensors_in((args, kwargs))
    if _counts(func, args):
        return tensors_in(args[3:5])
    arguments = {a.name: x for a, x in zip(func._schema.arguments, args, strict=False)} | kwargs
    writes = [a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
    return tensors_in([arguments.get(name) for name in writes])
