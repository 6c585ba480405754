"""First fit against a memory of single bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pedagogy.zero import Allocator, Fragmented


def test_long_lived_blocks_between_short_lived_ones_leave_memory_that_is_of_no_use():
    memory = Allocator(100)
    short = []
    for _ in range(5):
        short.append(memory.allocate(6))
        memory.allocate(14)
    for offset in short:
        memory.free(offset)
    assert (memory.free_bytes, memory.largest_gap) == (30, 6)
    with pytest.raises(Fragmented, match=r"10 bytes asked, 30 of 100 are free \(30%\).* is 6"):
        memory.allocate(10)


def test_a_region_for_the_long_lived_ones_leaves_one_gap():
    memory = Allocator(100)
    memory.allocate(5 * 14)
    for _ in range(5):
        memory.free(memory.allocate(6))
    assert memory.largest_gap == memory.free_bytes == 30


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9)), max_size=40))
def test_it_is_first_fit_and_blocks_never_overlap(requests):
    memory, cells = Allocator(40), [None] * 40
    for size, victim in requests:
        free = [i for i in range(41 - size) if all(c is None for c in cells[i : i + size])]
        if free:
            offset = memory.allocate(size)
            assert offset == free[0]
            cells[offset : offset + size] = [offset] * size
        else:
            with pytest.raises(Fragmented):
                memory.allocate(size)
            held = sorted(set(cells) - {None})
            offset = held[victim % len(held)]
            memory.free(offset)
            cells = [None if c == offset else c for c in cells]
        assert memory.free_bytes == cells.count(None)
        assert sum(num_bytes for _, num_bytes in memory.gaps) == memory.free_bytes


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="-1 bytes"):
        Allocator(-1)
    with pytest.raises(ValueError, match="0 bytes"):
        Allocator(4).allocate(0)
    with pytest.raises(ValueError, match="begins at 3"):
        Allocator(4).free(3)
