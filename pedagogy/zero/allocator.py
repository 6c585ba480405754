"""A first-fit allocator: how memory can be free and yet of no use.

Why it exists
-------------
A tensor needs its bytes in one piece. In a training step long-lived tensors (checkpointed
activations, gradients) are made in turn with short-lived ones (what forward recomputes, what
backward passes on). When the short-lived ones are freed, the long-lived ones stand between the
gaps: much is free, nothing of it large. A request then fails with a third of the memory unused.

The cure (M_D in ZeRO-R) is to give the long-lived tensors a region of their own, set aside at the
beginning: they stand side by side, and the gaps that the others leave join.

How it works
------------
Blocks lie in order of their offset. `allocate` takes the first gap that is large enough; `free`
gives it back, and neighbouring gaps are one gap. Offsets are bytes, without rounding.

What real systems do differently: PyTorch's caching allocator rounds to 512 bytes, keeps pools by
size and splits large blocks; its `expandable_segments` map memory so that gaps can be joined.

Source: Rajbhandari et al. 2020 (ZeRO), sections 3.2 and 6.3; Knuth, volume 1, section 2.5.
"""

from __future__ import annotations


class Fragmented(MemoryError):
    """No gap is large enough."""


class Allocator:
    """`capacity` bytes, given out by first fit. **Raises** ValueError for a negative capacity."""

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"a capacity of {capacity} bytes: must be 0 or more")
        self.capacity = capacity
        self.blocks: dict[int, int] = {}  # offset: bytes; in no order

    @property
    def free_bytes(self) -> int:
        """Bytes that no block holds."""
        return self.capacity - sum(self.blocks.values())

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """(offset, bytes) of what is free, in order."""
        gaps, end = [], 0
        for offset, num_bytes in [*sorted(self.blocks.items()), (self.capacity, 0)]:
            if offset > end:
                gaps.append((end, offset - end))
            end = offset + num_bytes
        return gaps

    @property
    def largest_gap(self) -> int:
        """The largest request that would succeed."""
        return max((num_bytes for _, num_bytes in self.gaps), default=0)

    def allocate(self, num_bytes: int) -> int:
        """The offset of a new block.

        **Raises** ValueError unless the size is positive; Fragmented, with what is free, where no
        gap is large enough.
        """
        if num_bytes < 1:
            raise ValueError(f"a block of {num_bytes} bytes: at least 1")
        for offset, room in self.gaps:
            if room >= num_bytes:
                self.blocks[offset] = num_bytes
                return offset
        raise Fragmented(
            f"{num_bytes:,} bytes asked, {self.free_bytes:,} of {self.capacity:,} are free "
            f"({self.free_bytes / max(self.capacity, 1):.0%}), the largest gap is "
            f"{self.largest_gap:,}"
        )

    def free(self, offset: int) -> None:
        """The block there is no more. **Raises** ValueError where none begins."""
        if offset not in self.blocks:
            raise ValueError(f"no block begins at {offset}: {sorted(self.blocks)}")
        del self.blocks[offset]
