"""How a worker gets into the ranks, and how its result gets out.

A worker may be a function typed into a notebook cell, a lambda, or a closure: it exists nowhere on
disk, so it travels by value (cloudpickle). Two things are kept that would otherwise be lost on the
way: the name of the file that the code came from, so that a traceback can show the cell's own
lines, and, for a result, nothing more than the tensor itself: a view of ten numbers does not drag
the gigabyte along whose part it is, and a tensor on a GPU arrives on the CPU.
"""

from __future__ import annotations

import io
import linecache
import os
import types
from collections import ChainMap
from typing import Any, ClassVar

import cloudpickle
import torch


def _code_from(build: Any, arguments: tuple, file_name: str) -> types.CodeType:
    return build(*arguments).replace(co_filename=file_name)


def _reduce_code(code: types.CodeType) -> tuple:
    build, arguments = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    return _code_from, (build, arguments, code.co_filename)


def _reduce_tensor(tensor: torch.Tensor) -> tuple:
    compact = tensor.detach().cpu()
    if compact.layout == torch.strided:
        if compact.untyped_storage().nbytes() != compact.nbytes or not compact.is_contiguous():
            compact = compact.contiguous().clone()
        compact.requires_grad_(tensor.requires_grad and tensor.is_leaf)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter, (compact, tensor.requires_grad)
    return compact.__reduce_ex__(4)


class _JobPickler(cloudpickle.CloudPickler):
    dispatch_table: ClassVar = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table
    )


class _ResultPickler(_JobPickler):
    dispatch_table: ClassVar = ChainMap(
        {torch.Tensor: _reduce_tensor, torch.nn.Parameter: _reduce_tensor},
        _JobPickler.dispatch_table,
    )


def _dumps(pickler: type[cloudpickle.CloudPickler], value: Any) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer).dump(value)
    return buffer.getvalue()


def dump_job(value: Any) -> bytes:
    """Pickle a worker and its arguments by value."""
    return _dumps(_JobPickler, value)


def dump_result(value: Any) -> bytes:
    """Pickle a result: tensors on the CPU, each with its own memory and no more."""
    return _dumps(_ResultPickler, value)


load = cloudpickle.loads


def cell_sources() -> dict[str, tuple]:
    """The lines of all code that was compiled here and is on no disk: the notebook's cells."""
    return {
        name: entry
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and not os.path.exists(name)
    }
