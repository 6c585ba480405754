"""All-reduce built from send and recv, and the communication that autograd can pass through."""

from pedagogy.collectives.differentiable import (
    all_to_all,
    copy_to,
    exchange_by,
    gather,
    gather_from,
    reduce_from,
    reduce_scatter,
    split_to,
)
from pedagogy.collectives.halving_doubling import halving_doubling_all_reduce
from pedagogy.collectives.naive import naive_all_reduce
from pedagogy.collectives.ring import Transfer, ring_all_reduce, ring_steps
from pedagogy.collectives.tree import tree_all_reduce, tree_steps

__all__ = [
    "Transfer",
    "all_to_all",
    "copy_to",
    "exchange_by",
    "gather",
    "gather_from",
    "halving_doubling_all_reduce",
    "naive_all_reduce",
    "reduce_from",
    "reduce_scatter",
    "ring_all_reduce",
    "ring_steps",
    "split_to",
    "tree_all_reduce",
    "tree_steps",
]
