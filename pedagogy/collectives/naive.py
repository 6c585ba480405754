"""All-reduce as one would first write it: everything to one rank, which adds and sends back.

What is wrong with it
    Rank 0 receives N-1 tensors and sends N-1 tensors over one link, while the links of the others
    are idle most of the time. All ranks together send 2(N-1) tensors, which is as much as a ring
    sends; but here half of it leaves through one place, so the time grows with N.
"""

from __future__ import annotations

import torch

from pedagogy.collectives.chunks import flat_copy
from pedagogy.ranks import Group


def naive_all_reduce(group: Group, x: torch.Tensor) -> torch.Tensor:
    """Every rank gets the sum of the ranks' tensors, as a new tensor; rank 0 does all the adding.

    **Shapes** any; the same shape and dtype on all ranks (not checked).
    **Bytes** rank 0 sends (N-1) times `x`, every other rank `x` once.
    """
    result = flat_copy(x)
    others = range(1, group.size)
    if group.rank == 0:
        received = torch.empty_like(result)
        for other in others:
            result += group.recv_(received, other)
        for other in others:
            group.send_(result, other)
    else:
        group.send_(result, 0)
        group.recv_(result, 0)
    return result.view(x.shape)
