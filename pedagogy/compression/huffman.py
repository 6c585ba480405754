"""Huffman coding: frequent symbols get short codes.

Why it exists
-------------
After weight sharing the values are not equally frequent: those near zero come most. With codes of
different lengths the mean length comes close to the entropy, the sum of -p log2 p, and never is a
whole bit above it.

How it works
------------
The two rarest symbols are joined and count as one, until one is left; a symbol's code is as long as
the number of times that it was joined. Only the *lengths* need to be stored: of equal lengths the
symbols take consecutive codes ("canonical"), so that both sides derive the same table. No code is
the beginning of another, therefore no separators.

Sources: Huffman 1952; Han et al. 2016, section 4.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

import numpy as np


def code_lengths(symbols: Sequence[int], num_symbols: int) -> list[int]:
    """Bits of each symbol's code; 0 for those that do not occur, 1 for a lone one.

    **Raises** ValueError for symbols outside 0 .. num_symbols - 1.
    """
    counts = Counter(symbols)
    if counts and not 0 <= min(counts) <= max(counts) < num_symbols:
        raise ValueError(f"symbols {min(counts)} to {max(counts)}: from 0 to {num_symbols - 1}")
    lengths = [0] * num_symbols
    heap = [(count, symbol, [symbol]) for symbol, count in counts.items()]
    heapq.heapify(heap)
    if len(heap) == 1:
        lengths[heap[0][1]] = 1
    while len(heap) > 1:
        (rare, tie, one), (next_rare, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in one + other:
            lengths[symbol] += 1
        heapq.heappush(heap, (rare + next_rare, tie, one + other))
    return lengths


def canonical_codes(lengths: Sequence[int]) -> dict[int, str]:
    """Each symbol's code as a string of 0 and 1, from the lengths alone."""
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((n, symbol) for symbol, n in enumerate(lengths) if n):
        code <<= length - before
        codes[symbol], before = f"{code:0{length}b}", length
        code += 1
    return codes


def encode(symbols: Sequence[int], lengths: Sequence[int]) -> bytes:
    """The codes one after the other, filled up with zeros to whole bytes.

    **Raises** ValueError for a symbol that has no code.
    """
    codes = canonical_codes(lengths)
    if unknown := set(symbols) - set(codes):
        raise ValueError(f"no code for {sorted(unknown)}; there are {len(codes)} codes")
    return pack_bits("".join([codes[symbol] for symbol in symbols]))


def decode(data: bytes, lengths: Sequence[int], num_symbols: int) -> list[int]:
    """The first `num_symbols` symbols. **Raises** ValueError if the data ends before."""
    symbol_of = {code: symbol for symbol, code in canonical_codes(lengths).items()}
    symbols, code = [], ""
    for bit in unpack_bits(data):
        if len(symbols) == num_symbols:
            break
        code += bit
        if code in symbol_of:
            symbols.append(symbol_of[code])
            code = ""
    if len(symbols) < num_symbols:
        raise ValueError(f"the data ends after {len(symbols)} of {num_symbols} symbols")
    return symbols


def pack_bits(bits: str) -> bytes:
    """A string of 0 and 1 as bytes, eight bits in each."""
    return np.packbits(np.frombuffer(bits.encode(), np.uint8) - ord("0")).tobytes()


def unpack_bits(data: bytes) -> str:
    """The bits of the bytes as a string."""
    return (np.unpackbits(np.frombuffer(data, np.uint8)) + ord("0")).tobytes().decode()


def pack_fixed(numbers: Sequence[int], bits: int) -> bytes:
    """Each number in so many bits; in no bits, nothing.

    **Raises** ValueError for a number that needs more bits, or is negative.
    """
    if len(numbers) and not 0 <= min(numbers) <= max(numbers) < 2**bits:
        raise ValueError(f"{min(numbers)} to {max(numbers)} in {bits} bits: 0 to {2**bits - 1}")
    return pack_bits("".join([f"{number:0{bits}b}" for number in numbers]) if bits else "")


def unpack_fixed(data: bytes, bits: int, num_numbers: int) -> list[int]:
    """The first `num_numbers` numbers of `pack_fixed`. **Raises** ValueError for too few bytes."""
    if num_numbers * bits > 8 * len(data):
        raise ValueError(f"{num_numbers} numbers of {bits} bits in {len(data)} bytes")
    if not bits:
        return [0] * num_numbers
    text = unpack_bits(data)
    return [int(text[i * bits : (i + 1) * bits], 2) for i in range(num_numbers)]
