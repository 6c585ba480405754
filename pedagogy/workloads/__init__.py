"""What the chapters train: two small, real data sets and three small models.

One set of workloads serves every chapter, so that a technique is the only thing that differs
between two runs. Nothing is downloaded: the text is the documentation that ships with Python
(`data.py`), the digits ship with scikit-learn. The models (`gpt.py`, `nets.py`) are written to be
read and to be cut: every part that a later chapter shards, stages or recomputes is a module of
its own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pedagogy.workloads.data import digits, digits_batch, text, text_batch
    from pedagogy.workloads.gpt import GPT, Attention, Block, FeedForward
    from pedagogy.workloads.nets import MLP, ConvNet

__all__ = [
    "GPT",
    "MLP",
    "Attention",
    "Block",
    "ConvNet",
    "FeedForward",
    "digits",
    "digits_batch",
    "text",
    "text_batch",
]

_HOMES = {
    "data": ("digits", "digits_batch", "text", "text_batch"),
    "gpt": ("GPT", "Attention", "Block", "FeedForward"),
    "nets": ("MLP", "ConvNet"),
}


def __getattr__(name: str) -> object:
    """Import a workload's file when the workload is first asked for (torch is heavy)."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
