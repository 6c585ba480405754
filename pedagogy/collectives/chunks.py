"""How a tensor of any size and strides is cut into one chunk for each rank.

All ranks must cut alike, or a sum of chunks is a sum of different things. The first `numel % N`
chunks hold one element more than the others; where a tensor has fewer elements than there are
ranks, the last chunks are empty, and an empty chunk is never sent.
"""

from __future__ import annotations

import torch


def chunk_sizes(num_elements: int, num_chunks: int) -> list[int]:
    """The elements in each chunk: as equal as possible, the larger ones first."""
    size, larger = divmod(num_elements, num_chunks)
    return [size + (chunk < larger) for chunk in range(num_chunks)]


def flat(x: torch.Tensor) -> torch.Tensor:
    """The elements of `x` in order, dense and one-dimensional; a view of `x` where it is dense.

    **Raises** ValueError for bool, which has no sum.
    """
    if x.dtype == torch.bool:
        raise ValueError("cannot sum torch.bool; convert it to an integer dtype first")
    return x.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def flat_copy(x: torch.Tensor) -> torch.Tensor:
    """Like `flat`, and never a view of `x`."""
    elements = flat(x)
    return elements.clone() if elements.data_ptr() == x.data_ptr() else elements
