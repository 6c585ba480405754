"""Huffman's codes: as short as an independent computation says, prefix-free, and read back."""

import heapq
import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.compression import huffman

SYMBOLS = st.lists(st.integers(0, 40), max_size=200)
SKEWED = st.lists(st.sampled_from([0] * 30 + [1] * 10 + [2, 3, 3, 7, 25]), max_size=200)


def least_bits(counts):
    """Bits of the shortest code: every joining of the two rarest adds their count once."""
    heap, total = sorted(counts), 0
    if len(heap) == 1:
        return heap[0]
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return total


def check_code(module, symbols, num_symbols=41):
    """Optimal, within a bit of the entropy, canonical, prefix-free, and decoded."""
    lengths = module.code_lengths(symbols, num_symbols)
    counts = Counter(symbols)
    assert {s for s, n in enumerate(lengths) if n} == set(symbols)
    bits = sum(counts[s] * lengths[s] for s in counts)
    assert bits == least_bits(counts.values()) if counts else bits == 0
    n = len(symbols)
    entropy = -sum(c / n * math.log2(c / n) for c in counts.values())
    if len(counts) > 1:
        assert entropy - 1e-9 <= bits / n < entropy + 1
        assert sum(2.0**-length for length in lengths if length) == 1
    check_canonical(module.canonical_codes(lengths), lengths)
    data = module.encode(symbols, lengths)
    assert len(data) == math.ceil(bits / 8)
    assert module.decode(data, lengths, n) == list(symbols)
    assert module.decode(data + b"\xff\x00", lengths, n) == list(symbols)


def check_canonical(codes, lengths):
    """Shorter codes first; of equal lengths, consecutive numbers in the symbols' order."""
    assert {s: len(code) for s, code in codes.items()} == {s: n for s, n in enumerate(lengths) if n}
    ordered = sorted(codes, key=lambda s: (lengths[s], s))
    texts = [codes[s] for s in ordered]
    assert texts == sorted(texts)
    for before, after in itertools.pairwise(texts):
        assert not after.startswith(before)
        assert int(after, 2) == (int(before, 2) + 1) << (len(after) - len(before))
    assert not texts or int(texts[0], 2) == 0


@settings(max_examples=80, deadline=None)
@given(st.one_of(SYMBOLS, SKEWED))
def test_the_code_is_the_shortest_and_is_read_back(symbols):
    check_code(huffman, symbols)


def test_one_symbol_takes_a_bit_and_none_takes_nothing():
    check_code(huffman, [5] * 9)
    check_code(huffman, [])
    assert huffman.code_lengths([5] * 9, 7) == [0, 0, 0, 0, 0, 1, 0]
    assert huffman.encode([], [0, 0]) == b""
    assert huffman.decode(b"", [0, 0], 0) == []


def test_a_known_code_and_frequencies_that_need_the_longest_codes():
    assert huffman.canonical_codes([2, 1, 3, 3]) == {1: "0", 0: "10", 2: "110", 3: "111"}
    fibonacci = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
    symbols = [s for s, count in enumerate(fibonacci) for _ in range(count)]
    assert sorted(huffman.code_lengths(symbols, 10)) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    check_code(huffman, symbols, 10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 17).flatmap(lambda b: st.tuples(
    st.just(b), st.lists(st.integers(0, 2**b - 1), max_size=40))))  # fmt: skip
def test_numbers_of_a_fixed_number_of_bits_are_read_back(drawn):
    bits, numbers = drawn
    data = huffman.pack_fixed(numbers, bits)
    assert len(data) == math.ceil(len(numbers) * bits / 8)
    assert huffman.unpack_fixed(data, bits, len(numbers)) == numbers


def test_bad_input_is_refused_with_its_numbers():
    with pytest.raises(ValueError, match="symbols 0 to 4: from 0 to 3"):
        huffman.code_lengths([0, 4], 4)
    with pytest.raises(ValueError, match="symbols -1 to 2: from 0 to 3"):
        huffman.code_lengths([-1, 2], 4)
    with pytest.raises(ValueError, match=r"no code for \[2\]; there are 2 codes"):
        huffman.encode([0, 2], [1, 1, 0])
    with pytest.raises(ValueError, match="the data ends after 8 of 9 symbols"):
        huffman.decode(b"\x00", [1, 1], 9)
    with pytest.raises(ValueError, match="0 to 8 in 3 bits: 0 to 7"):
        huffman.pack_fixed([0, 8], 3)
    with pytest.raises(ValueError, match="-1 to 1 in 3 bits"):
        huffman.pack_fixed([1, -1], 3)
    with pytest.raises(ValueError, match="3 numbers of 3 bits in 1 bytes"):
        huffman.unpack_fixed(b"\x00", 3, 3)
