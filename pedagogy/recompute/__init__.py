"""Activation recomputation: memory bought with a second forward.

Read in this order: `checkpoint`, `segments`.
"""

from pedagogy.recompute.checkpoint import CheckpointFunction, checkpoint
from pedagogy.recompute.segments import checkpoint_sequential, longest_chain, optimal_forwards

__all__ = [
    "CheckpointFunction",
    "checkpoint",
    "checkpoint_sequential",
    "longest_chain",
    "optimal_forwards",
]
