"""Gradient accumulation: a large batch in pieces, one update.

Read in this order: `accumulate`, `accumulator`.
"""

from pedagogy.accumulation.accumulate import accumulate, num_items
from pedagogy.accumulation.accumulator import GradientAccumulator

__all__ = ["GradientAccumulator", "accumulate", "num_items"]
