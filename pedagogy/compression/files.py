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
codes beside them. All other tensors (biases, BatchNorm) are stored as they are. A header names
shapes and lengths; it is counted too.

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


def gaps_of(mask: Tensor, gap_bits: int) -> list[int]:
    """The gaps of a mask: zeros before each 1; 2^gap_bits - 1 means so many zeros and no 1.

    Zeros after the last 1 are not written. **Raises** ValueError for less than 1 bit.
    """
    if gap_bits < 1:
        raise ValueError(f"{gap_bits} bits for a gap: at least 1")
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


def section_bytes(shared: Shared, gap_bits: int = 5, with_huffman: bool = False) -> dict[str, int]:
    """Bytes of gaps, codes, codebook and (Huffman) code lengths of one weight in a file."""
    sections, _ = _sections(shared, gap_bits, with_huffman)
    return {name: len(data) for name, data in sections.items()}


def save(
    path: str | Path,
    tensors: Mapping[str, Tensor | Shared],
    gap_bits: int = 5,
    with_huffman: bool = True,
) -> int:
    """Write a state dict in which some weights are `Shared`; returns the bytes of the file."""
    header, blocks = [], []
    for name, value in tensors.items():
        if isinstance(value, Shared):
            sections, facts = _sections(value, gap_bits, with_huffman)
        else:
            array = value.detach().cpu().contiguous().numpy()
            sections, facts = {"values": array.tobytes()}, {"dtype": str(array.dtype)}
            facts["shape"] = list(array.shape)
        sizes = {section: len(data) for section, data in sections.items()}
        header.append({"name": name, "sections": sizes, **facts})
        blocks += sections.values()
    lines = json.dumps(header, separators=(",", ":")).encode()
    data = len(lines).to_bytes(4, "little") + lines + b"".join(blocks)
    return Path(path).write_bytes(data)


def load(path: str | Path) -> dict[str, Tensor]:
    """The full tensors of a file that `save` has written: a state dict."""
    data = Path(path).read_bytes()
    start = 4 + int.from_bytes(data[:4], "little")
    tensors = {}
    for entry in json.loads(data[4:start]):
        sections = {}
        for section, size in entry["sections"].items():
            sections[section], start = data[start : start + size], start + size
        tensors[entry["name"]] = _tensor(sections, entry)
    return tensors


def _sections(
    shared: Shared, gap_bits: int, with_huffman: bool
) -> tuple[dict[str, bytes], dict[str, object]]:
    gaps = gaps_of(shared.mask, gap_bits)
    codes = shared.indices[shared.mask != 0].tolist()
    k = len(shared.codebook)
    facts = {"shape": list(shared.mask.shape), "gap_bits": gap_bits, "values": k}
    facts |= {"gaps": len(gaps), "codes": len(codes)}
    sections = {"codebook": shared.codebook.detach().float().cpu().numpy().tobytes()}
    if with_huffman:
        for name, symbols, count in (("gaps", gaps, 2**gap_bits), ("codes", codes, k)):
            lengths = huffman.code_lengths(symbols, count)
            sections[f"{name}_lengths"] = bytes(lengths)
            sections[name] = huffman.encode(symbols, lengths)
    else:
        sections["gaps"] = huffman.pack_fixed(gaps, gap_bits)
        sections["codes"] = huffman.pack_fixed(codes, index_bits(k))
    return sections, facts


def _tensor(sections: dict[str, bytes], entry: dict) -> Tensor:
    if "values" in sections:
        array = np.frombuffer(sections["values"], entry["dtype"]).reshape(entry["shape"])
        return torch.from_numpy(array.copy())
    codebook = torch.from_numpy(np.frombuffer(sections["codebook"], np.float32).copy())
    if "gaps_lengths" in sections:
        gaps, codes = (
            huffman.decode(sections[name], list(sections[f"{name}_lengths"]), entry[name])
            for name in ("gaps", "codes")
        )
    else:
        gaps = huffman.unpack_fixed(sections["gaps"], entry["gap_bits"], entry["gaps"])
        codes = huffman.unpack_fixed(sections["codes"], index_bits(entry["values"]), entry["codes"])
    weight = mask_of(gaps, entry["gap_bits"], tuple(entry["shape"]))
    weight[weight != 0] = codebook[torch.tensor(codes, dtype=torch.int64)]
    return weight
