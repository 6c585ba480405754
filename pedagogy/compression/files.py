"""The compressed network as a file, byte by byte, and back.

Why it exists
-------------
"40 times smaller" means a file. A ratio that forgets the positions of the weights that are left,
or the codebook, is not one. So the file is written, its length is measured, and it is read back.

What is in it
-------------
For each pruned and shared weight:

    gaps        how many zeros lie before each weight that is kept, in `gap_bits` bits; the largest
                such number means "that many zeros, and no weight yet" and may be repeated
    codes       the number of its value in the codebook
    codebook    the values, fp32

Gaps and codes are stored with a fixed number of bits, or Huffman coded with the lengths of the
codes beside them. Where no weight is pruned there are no gaps. A weight that is pruned and not
shared has gaps and `values`, fp32; a quantised one has `integers` of b bits and a `scale`. All
other tensors (biases, BatchNorm) are stored as they are. A header names shapes and lengths; it is
counted too.

Deep Compression fills long gaps with weights of value zero where this file has a number that no
weight follows; the difference is a fraction of a per cent.

Source: Han et al. 2016, sections 2 to 4.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pedagogy.compression import huffman
from pedagogy.compression.sharing import index_bits


class Shared(NamedTuple):
    """A pruned and shared weight: `codebook[indices]` where the mask is 1, else 0.

    **Shapes** mask and indices have the weight's.
    """

    mask: Tensor
    codebook: Tensor
    indices: Tensor

    def weight(self) -> Tensor:
        """The full tensor."""
        return torch.where(self.mask != 0, self.codebook[self.indices], 0.0)


class Sparse(NamedTuple):
    """A pruned weight whose values are not shared: any tensor with zeros in it."""

    full: Tensor

    def weight(self) -> Tensor:
        """The full tensor."""
        return self.full


class Packed(NamedTuple):
    """A quantised weight, `integers * scale`, as `to_integers` gives it; with 1 bit, +1 and -1.

    **Shapes** the scale's must broadcast to the integers'.
    """

    integers: Tensor
    scale: Tensor
    bits: int

    def weight(self) -> Tensor:
        """The full tensor."""
        return self.integers * self.scale


Stored = Tensor | Shared | Sparse | Packed
_Sections = tuple[dict[str, bytes], dict[str, object]]  # the data; what the header says of it


def gaps_of(mask: Tensor, gap_bits: int) -> list[int]:
    """The gaps of a mask: zeros before each 1; 2^gap_bits - 1 means so many zeros and no 1.

    Zeros after the last 1 are not written. **Raises** ValueError for less than 1 bit or over 16.
    """
    if not 1 <= gap_bits <= 16:
        raise ValueError(f"{gap_bits} bits for a gap: from 1 to 16")
    longest = 2**gap_bits - 1
    places = mask.flatten().nonzero().flatten().tolist()
    gaps: list[int] = []
    for before, place in zip([-1, *places], places, strict=False):
        zeros = place - before - 1
        gaps += [longest] * (zeros // longest) + [zeros % longest]
    return gaps


def mask_of(gaps: list[int], gap_bits: int, shape: tuple[int, ...]) -> Tensor:
    """The mask that has these gaps."""
    longest, place = 2**gap_bits - 1, 0
    mask = torch.zeros(int(np.prod(shape)))
    for gap in gaps:
        place += gap
        if gap < longest:
            mask[place] = 1
            place += 1
    return mask.view(shape)


def section_bytes(value: Stored, gap_bits: int = 5, with_huffman: bool = False) -> dict[str, int]:
    """Bytes in a file by section: gaps, codes, codebook, values, (Huffman) lengths of the codes."""
    sections, _ = _sections(value, gap_bits, with_huffman)
    return {name: len(data) for name, data in sections.items()}


def save(
    path: str | Path,
    tensors: Mapping[str, Stored],
    gap_bits: int = 5,
    with_huffman: bool = True,
) -> int:
    """Write a state dict in which some weights are compressed; returns the bytes of the file."""
    header, blocks = [], []
    for name, value in tensors.items():
        sections, facts = _sections(value, gap_bits, with_huffman)
        sizes = {section: len(data) for section, data in sections.items()}
        header.append({"name": name, "sections": sizes, **facts})
        blocks += sections.values()
    lines = json.dumps(header, separators=(",", ":")).encode()
    data = len(lines).to_bytes(4, "little") + lines + b"".join(blocks)
    return Path(path).write_bytes(data)


def load(path: str | Path) -> dict[str, Tensor]:
    """The full tensors of a file that `save` has written: a state dict.

    **Raises** ValueError for a file that is shorter or longer than its header says.
    """
    data = Path(path).read_bytes()
    start = 4 + int.from_bytes(data[:4], "little")
    header = json.loads(data[4:start])
    total = start + sum(sum(entry["sections"].values()) for entry in header)
    if len(data) != total:
        raise ValueError(f"the file has {len(data)} bytes; its header says {total}")
    tensors = {}
    for entry in header:
        sections = {}
        for section, size in entry["sections"].items():
            sections[section], start = data[start : start + size], start + size
        tensors[entry["name"]] = _tensor(sections, entry)
    return tensors


def _sections(value: Stored, gap_bits: int, with_huffman: bool) -> _Sections:
    if isinstance(value, Shared):
        sections, facts = _gap_sections(value.mask, gap_bits, with_huffman)
        codes, k = value.indices[value.mask != 0].tolist(), len(value.codebook)
        sections["codebook"] = _bytes(value.codebook.float())
        sections |= _coded("codes", codes, index_bits(k), k, with_huffman)
        return sections, facts | {"num_values": k, "codes": len(codes)}
    if isinstance(value, Sparse):
        kept = value.full != 0
        sections, facts = _gap_sections(kept, gap_bits, with_huffman)
        return sections | {"values": _bytes(value.full[kept].float())}, facts
    if isinstance(value, Packed):
        return _packed_sections(*value)
    facts = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    return {"values": _bytes(value)}, facts


def _packed_sections(integers: Tensor, scale: Tensor, bits: int) -> _Sections:
    numbers = integers > 0 if bits == 1 else integers.int() + 2 ** (bits - 1) - 1  # from 0
    packed = huffman.pack_fixed(numbers.int().flatten().tolist(), bits)
    facts = {"shape": list(integers.shape), "bits": bits, "scale_shape": list(scale.shape)}
    return {"integers": packed, "scale": _bytes(scale.float())}, facts


def _gap_sections(mask: Tensor, gap_bits: int, with_huffman: bool) -> _Sections:
    """Where the kept weights are; of a mask without zeros, nothing."""
    facts = {"shape": list(mask.shape), "gap_bits": gap_bits}
    if mask.all():
        return {}, facts
    gaps = gaps_of(mask, gap_bits)
    return _coded("gaps", gaps, gap_bits, 2**gap_bits, with_huffman), facts | {"gaps": len(gaps)}


def _coded(
    name: str, symbols: list[int], bits: int, num_symbols: int, with_huffman: bool
) -> dict[str, bytes]:
    if not with_huffman:
        return {name: huffman.pack_fixed(symbols, bits)}
    lengths = huffman.code_lengths(symbols, num_symbols)
    return {f"{name}_lengths": bytes(lengths), name: huffman.encode(symbols, lengths)}


def _decoded(sections: dict[str, bytes], name: str, bits: int, count: int) -> list[int]:
    if f"{name}_lengths" in sections:
        return huffman.decode(sections[name], list(sections[f"{name}_lengths"]), count)
    return huffman.unpack_fixed(sections[name], bits, count)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()


def _floats(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.float32).copy())


def _tensor(sections: dict[str, bytes], entry: dict) -> Tensor:
    shape = tuple(entry["shape"])
    if "dtype" in entry:
        tensor = torch.empty(shape, dtype=getattr(torch, entry["dtype"]))
        stored = np.frombuffer(sections["values"], np.uint8).copy()
        tensor.view(-1).view(torch.uint8).copy_(torch.from_numpy(stored))
        return tensor
    if "bits" in entry:
        bits, count = entry["bits"], int(np.prod(shape))
        numbers = torch.tensor(huffman.unpack_fixed(sections["integers"], bits, count))
        integers = 2 * numbers - 1 if bits == 1 else numbers - (2 ** (bits - 1) - 1)
        return integers.view(shape) * _floats(sections["scale"]).view(entry["scale_shape"])
    weight = torch.ones(shape)
    if "gaps" in entry:
        gaps = _decoded(sections, "gaps", entry["gap_bits"], entry["gaps"])
        weight = mask_of(gaps, entry["gap_bits"], shape)
    if "codebook" in sections:
        bits = index_bits(entry["num_values"])
        codes = torch.tensor(_decoded(sections, "codes", bits, entry["codes"]), dtype=torch.int64)
        weight[weight != 0] = _floats(sections["codebook"])[codes]
    else:
        weight[weight != 0] = _floats(sections["values"])
    return weight
