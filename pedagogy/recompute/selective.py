"""Selective recomputation: only what is large and cheap, named by hand.

Why it exists
-------------
In a transformer's layer one stretch stands out: scores, softmax, and what the heads read with it.
It holds (batch, heads, sequence, sequence) several times over and does 4 b s^2 h of the layer's
24 b s h^2 + 4 b s^2 h forward FLOPs. Recompute it, keep all else, and most of the memory goes for
a few per cent of the time; recomputing whole layers costs a third.

With 16 bit and dropout that stretch saves 5 a s^2 b of the layer's s b h (34 + 5 a s / h) bytes.
Our fp32 GPT saves the softmax's output there, 4 a s^2 b; a dropout mask cannot be made again from
a recipe and stays.

Source: Korthikanti et al. 2022, section 5.
"""

from __future__ import annotations

from pedagogy.recompute.again import KEEP, RECOMPUTE
from pedagogy.recompute.made import Made

_OF_THE_SCORES = ("softmax", "mul")  # "mul": probabilities after dropout


def attention_scores(made: Made) -> str:
    """A rule for `by_rule`: what is as large as the scores is recomputed from query and key."""
    size = made.geometry.size
    square = len(size) >= 3 and size[-1] == size[-2]
    return RECOMPUTE if square and made.op.name in _OF_THE_SCORES else KEEP
