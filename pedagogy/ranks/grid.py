"""Lay the ranks of a group on a grid and give each axis its groups.

Eight ranks with dp=2, pp=2, tp=2 stand on a cube; the last axis varies fastest:

    tp ->    0 1 | 2 3        rank = (dp * 2 + pp) * 2 + tp
    pp ->    -----------      ranks 0 and 1 are tensor-parallel neighbours,
    dp=1     4 5 | 6 7        0 and 2 pipeline neighbours, 0 and 4 replicas

The trap: creating a process group is itself collective over *all* ranks. Every rank must create
every group, also those that it is not in, in the same order. Where each rank creates only its own,
ranks of different groups talk to each other and get plausible, wrong sums.

Sources: Narayanan et al. 2021 (PTD-P), section 3 (which axis goes where); picotron (one array of
ranks gives every group).
"""

from __future__ import annotations

import math

import numpy
import torch.distributed as dist

from pedagogy.ranks.group import Group


def grid(group: Group, **axes: int) -> dict[str, Group]:
    """One group for each axis: the ranks that differ from this one along that axis alone.

    `grid(group, dp=2, tp=4)["tp"]` holds the 4 ranks of this rank's tensor-parallel group.
    All ranks of the run must call it, with the same axes; the last axis varies fastest.

    **Raises** ValueError where the sizes do not multiply to the group's size, or the group is not
    that of all ranks.
    """
    sizes = tuple(axes.values())
    if not axes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"every axis needs a whole number of ranks, 1 or more; got {axes}")
    if math.prod(sizes) != group.size:
        product = " x ".join(f"{name}={size}" for name, size in axes.items())
        raise ValueError(
            f"{product} = {math.prod(sizes)} ranks, but the group has {group.size}; "
            "the sizes of the axes must multiply to the size of the group"
        )
    if group.size != dist.get_world_size():
        raise ValueError(
            f"a grid is laid on all {dist.get_world_size()} ranks; this group has {group.size}"
        )
    ranks = numpy.array(group.ranks).reshape(sizes)
    mine = {}
    for axis, name in enumerate(axes):
        for line in numpy.moveaxis(ranks, axis, -1).reshape(-1, sizes[axis]).tolist():
            process_group = dist.new_group(line) if len(line) > 1 else None  # on every rank
            if group.ranks[group.rank] in line:
                mine[name] = group.part(process_group, line, name)
    return mine
