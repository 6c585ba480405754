"""ZeRO. Read in this order: `allocator`."""

from pedagogy.zero.allocator import Allocator, Fragmented

__all__ = ["Allocator", "Fragmented"]
