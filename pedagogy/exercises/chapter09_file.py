"""Chapter 09: a pruned and shared weight as a string of bits, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from pedagogy.compression import magnitude_mask, share_weights
from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def compress(weight: Tensor, sparsity: float, k: int, gap_bits: int) -> tuple[Tensor, str]:
    """(codebook, bits): the pruned and shared weights of a vector, as a file."""
    places = magnitude_mask(weight, sparsity).nonzero().flatten()
    codebook, indices = share_weights(weight[places], k)
    longest, index_bits = 2**gap_bits - 1, (k - 1).bit_length()
    bits, end = "", 0  # `end`: behind the weight before
    for place, index in zip(places.tolist(), indices.tolist(), strict=True):
        escapes, gap = divmod(place - end, longest)
        bits += "1" * (gap_bits * escapes) + f"{gap:0{gap_bits}b}"
        bits += f"{index:0{index_bits}b}" if index_bits else ""
        end = place + 1
    return codebook, bits


def decompress(codebook: Tensor, bits: str, gap_bits: int, n: int) -> Tensor:
    """The n weights that `compress` has written. **Raises** ValueError where bits make no sense."""
    weight, place, start = torch.zeros(n), 0, 0
    index_bits = (len(codebook) - 1).bit_length()
    while start < len(bits):
        gap, start = _number(bits, start, gap_bits)
        place += gap
        if gap == 2**gap_bits - 1:
            continue
        index, start = _number(bits, start, index_bits)
        if place >= n or index >= len(codebook):
            raise ValueError(
                f"before bit {start}: value {index} of {len(codebook)}, at place {place} of {n}"
            )
        weight[place] = codebook[index]
        place += 1
    return weight


def _number(bits: str, start: int, length: int) -> tuple[int, int]:
    """The number in the next `length` bits, and where they end."""
    if start + length > len(bits):
        raise ValueError(f"the bits end in the middle of a number, after bit {len(bits)}")
    return int(bits[start : start + length] or "0", 2), start + length


# --- mistakes -------------------------------------------------------------------------------------


def _escaped(gap: int, gap_bits: int, filler: str = "") -> Iterator[str]:
    escapes, rest = divmod(gap, 2**gap_bits - 1)
    yield ("1" * gap_bits + filler) * escapes
    yield f"{rest:0{gap_bits}b}"


def _escaped_late(gap: int, gap_bits: int) -> Iterator[str]:
    longest = 2**gap_bits - 1
    while gap > longest:
        yield "1" * gap_bits
        gap -= longest
    yield f"{gap:0{gap_bits}b}"


def _written(
    weight: Tensor,
    sparsity: float,
    k: int,
    gap_bits: int,
    width: Callable[[int], int] = lambda k: (k - 1).bit_length(),
    gap_of: Callable[[int, int], Iterator[str]] = _escaped,
    behind: int = 1,
    of_all: bool = False,
    rest: Callable[[int, int], Iterator[str]] = lambda zeros, gap_bits: iter(()),
    in_order: Callable[[str, str], str] = lambda gap, code: gap + code,
) -> tuple[Tensor, str]:
    """The reference, with the parts that are given in the place of its own."""
    mask = magnitude_mask(weight, sparsity)
    places, bits, end = mask.nonzero().flatten(), [], 0
    codebook, indices = share_weights(weight * mask if of_all else weight[places], k)
    indices = indices[places] if of_all else indices
    for place, index in zip(places.tolist(), indices.tolist(), strict=True):
        code = f"{index:0{width(k)}b}" if width(k) else ""
        bits.append(in_order("".join(gap_of(place - end, gap_bits)), code))
        end = place + behind
    return codebook, "".join([*bits, *rest(len(weight) - end, gap_bits)])


def _with_fillers(weight: Tensor, sparsity: float, k: int, gap_bits: int) -> tuple[Tensor, str]:
    code = "0" * (k - 1).bit_length()
    return _written(weight, sparsity, k, gap_bits, gap_of=partial(_escaped, filler=code))


MISTAKES = [
    (
        partial(_written, of_all=True),
        "The pruned zeros are shared out too, and the many of them draw a value to themselves that "
        "nothing uses. Share values among the weights that are left.",
    ),
    (
        partial(_written, gap_of=lambda gap, gap_bits: [f"{gap:0{gap_bits}b}"]),
        "A gap that does not fit takes more bits, and nobody can tell. All bits 1 mean that many "
        "zeros and no weight; then the rest.",
    ),
    (
        partial(_written, gap_of=_escaped_late),
        "A gap of exactly 2^gap_bits - 1 is written as all bits 1, and read as no weight: it needs "
        "a gap of 0 behind it.",
    ),
    (
        _with_fillers,
        "A number follows all bits 1. Deep Compression writes such a filler, a weight of value 0; "
        "this format has no number there: gap follows gap.",
    ),
    (
        partial(_written, in_order=lambda gap, code: code + gap),
        "The number of the value stands before the gap. The reader takes the gap first.",
    ),
    (
        partial(_written, behind=0),
        "The gap is the distance to the weight before. It is the number of zeros between, one "
        "less.",
    ),
    (
        partial(_written, width=lambda k: k.bit_length()),
        "k.bit_length() is the length of k itself. The largest index is k - 1: 4 values take 2 "
        "bits, and one value none.",
    ),
    (
        partial(
            _written, rest=lambda zeros, gap_bits: ["1" * gap_bits] * (zeros // (2**gap_bits - 1))
        ),
        "Zeros after the last weight are written. The reader knows n, and fills up.",
    ),
    (
        partial(_written, width=lambda k: max(1, math.ceil(math.log2(k)))),
        "With one value there is nothing to say about which: no bit.",
    ),
]

# --- the cases ------------------------------------------------------------------------------------


def _drawn(n: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n))


def _at(n: int, *places: int) -> Tensor:
    return torch.zeros(n).index_put((torch.tensor(places),), torch.tensor(1.0))


CASES = {
    "300 weights, 90 % pruned, 4 values, gaps of 3 bits": (_drawn(300), 0.9, 4, 3),
    "40 weights, none pruned, 5 values": (_drawn(40), 0.0, 5, 1),
    "gaps of 3, 2 and 8, and 20 zeros behind": (_at(36, 3, 6, 15), 33 / 36, 1, 2),
}


def _read(function: Callable, weight: Tensor, *others: float) -> dict | None:
    answer = function(weight.clone(), *others)
    if answer is None:
        return None
    pair = isinstance(answer, (tuple, list)) and len(answer) == 2
    if not pair or not isinstance(answer[1], str) or set(answer[1]) - {"0", "1"}:
        raise Refused("two things were asked for: codebook, a tensor, and a string of 0 and 1")
    codebook, bits = answer
    try:
        back = decompress(codebook, bits, others[-1], len(weight))
    except ValueError as error:
        raise Refused(f"the bits cannot be read: {error}") from error
    return {"what is read back": back, "the number of bits": len(bits)}


COMPRESS = Exercise(
    name="compress",
    title="A file, bit by bit",
    chapter="09",
    reference=compress,
    cases=list(CASES.values()),
    labels=list(CASES),
    observe=_read,
    mistakes=MISTAKES,
    hints=[
        "magnitude_mask(weight, sparsity).nonzero().flatten() are the places; share_weights(weight"
        "[places], k) gives codebook and indices.",
        "gap = place - (the place before) - 1. divmod(gap, 2**gap_bits - 1) says how often all "
        "bits are 1, and what is left.",
        'f"{number:05b}" writes 5 bits; an index has (k - 1).bit_length() of them, which is '
        "ceil(log2 k).",
    ],
)

register(COMPRESS)
