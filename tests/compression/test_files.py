"""A file is read back to the last bit, and its length is the sum of what is in it."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.compression import binarize, quantize, sign, to_integers
from pedagogy.compression.files import (
    Packed,
    Shared,
    Sparse,
    gaps_of,
    load,
    mask_of,
    save,
    section_bytes,
)

CODINGS = [True, False]


def random(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mask_at(places, shape):
    mask = torch.zeros(math.prod(shape))
    mask[list(places)] = 1
    return mask.view(shape)


MASKS = {
    "some": (random((6, 7)) > 0.3).float(),
    "none kept": torch.zeros(4, 5),
    "all kept": torch.ones(4, 5),
    "long gaps": mask_at((0, 40, 41, 300, 2047), (8, 16, 16)),
    "only the first": mask_at([0], (600,)),
    "only the last": mask_at([599], (600,)),
    "a gap of 31, of 30 and of 62": mask_at((31, 62, 125), (200,)),
    "0-d kept": torch.ones(()),
    "0-d pruned": torch.zeros(()),
    "no numbers": torch.ones(0, 3),
    "as booleans": random((3, 2, 2, 2)) > 0,
}


def shared(mask, k):
    """Any indices, any values; pruned places have indices, too."""
    generator = torch.Generator().manual_seed(k)
    indices = torch.randint(k, mask.shape, generator=generator)
    return Shared(mask, torch.randn(k, generator=generator), indices)


def filled(value):
    """A shared weight's full tensor, place by place."""
    where = zip(value.mask.flatten().tolist(), value.indices.flatten().tolist(), strict=True)
    numbers = [value.codebook[i].item() if kept else 0.0 for kept, i in where]
    return torch.tensor(numbers).view(value.mask.shape)


def check_file(path, tensors, expected, **how):
    """Read back to the bit; the file's length is header, its own length, and all sections."""
    num_bytes = save(path, tensors, **how)
    found = load(path)
    assert list(found) == list(tensors)
    for name, right in expected.items():
        assert (found[name].shape, found[name].dtype) == (right.shape, right.dtype), name
        assert torch.equal(found[name], right), name
    data = path.read_bytes()
    assert num_bytes == len(data)
    header = int.from_bytes(data[:4], "little")
    how = {"with_huffman": True, **how}
    sections = {name: section_bytes(value, **how) for name, value in tensors.items()}
    stated = {entry["name"]: entry["sections"] for entry in json.loads(data[4 : 4 + header])}
    assert stated == sections
    assert len(data) == 4 + header + sum(sum(parts.values()) for parts in sections.values())
    return sections


@pytest.mark.parametrize("with_huffman", CODINGS)
@pytest.mark.parametrize("k", [1, 2, 5, 16, 256])
def test_pruned_and_shared_weights_are_read_back_to_the_bit(tmp_path, k, with_huffman):
    for gap_bits in (1, 5):
        tensors = {name: shared(mask, k) for name, mask in MASKS.items()}
        expected = {name: filled(value) for name, value in tensors.items()}
        for name, value in tensors.items():
            assert torch.equal(value.weight(), expected[name])
        how = {"gap_bits": gap_bits, "with_huffman": with_huffman}
        check_file(tmp_path / "net", tensors, expected, **how)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 90), max_size=12), st.integers(0, 40), st.integers(1, 6))
def test_gaps_are_the_zeros_before_each_weight(zeros, after, gap_bits):
    numbers = [n for gap in zeros for n in [0] * gap + [1]] + [0] * after
    mask = torch.tensor(numbers, dtype=torch.float32)
    gaps, longest = gaps_of(mask, gap_bits), 2**gap_bits - 1
    assert len(gaps) == sum(gap // longest + 1 for gap in zeros)
    assert all(0 <= gap <= longest for gap in gaps)
    assert sum(gaps) == sum(zeros)
    assert torch.equal(mask_of(gaps, gap_bits, mask.shape), mask)


def test_gaps_by_hand():
    assert gaps_of(mask_at((0, 2, 6, 13), (15,)), 2) == [0, 1, 3, 0, 3, 3, 0]
    assert gaps_of(torch.zeros(9), 2) == []


def test_fixed_sections_have_the_bits_of_the_formula():
    mask = mask_at(range(3, 400, 5), (20, 20))  # gaps of 3 and 4: none is too long
    kept = int(mask.sum())
    found = section_bytes(shared(mask, 5), gap_bits=4)
    assert found == {
        "gaps": math.ceil(4 * kept / 8),
        "codes": math.ceil(3 * kept / 8),
        "codebook": 4 * 5,
    }
    coded = section_bytes(shared(mask, 5), gap_bits=4, with_huffman=True)
    assert (coded["gaps_lengths"], coded["codes_lengths"], coded["codebook"]) == (16, 5, 20)
    assert "gaps" not in section_bytes(shared(torch.ones(8), 5))


@pytest.mark.parametrize("with_huffman", CODINGS)
def test_huffman_codes_are_shorter_where_values_are_not_equally_frequent(with_huffman):
    indices = torch.tensor([0] * 900 + [1] * 50 + [2] * 40 + [3] * 10)
    value = Shared(torch.ones(1000), random((4,)), indices)
    bits = (900 + 2 * 50 + 3 * 50) if with_huffman else 2 * 1000
    assert section_bytes(value, 5, with_huffman)["codes"] == math.ceil(bits / 8)


@pytest.mark.parametrize("with_huffman", CODINGS)
def test_sparse_weights_are_read_back_to_the_bit(tmp_path, with_huffman):
    tensors = {name: Sparse(mask * random(mask.shape, 5)) for name, mask in MASKS.items()}
    expected = {name: value.full for name, value in tensors.items()}
    sections = check_file(tmp_path / "net", tensors, expected, with_huffman=with_huffman)
    for name, mask in MASKS.items():
        assert sections[name]["values"] == 4 * int((mask != 0).sum())


@pytest.mark.parametrize("bits", range(2, 17))
def test_integers_are_read_back_as_the_network_computed_with_them(tmp_path, bits):
    tensors = {str(shape): random(shape, bits) for shape in ((), (3,), (5, 7), (2, 3, 2, 2))}
    packed = {name: Packed(*to_integers(value, bits), bits) for name, value in tensors.items()}
    expected = {name: quantize(value, bits) for name, value in tensors.items()}
    sections = check_file(tmp_path / "net", packed, expected)
    assert sections["(5, 7)"] == {"integers": math.ceil(35 * bits / 8), "scale": 4}


def test_binary_weights_take_one_bit_and_a_scale_for_each_output(tmp_path):
    weight = random((6, 3, 3, 3))
    weight[0, 0, 0, 0] = 0
    packed = Packed(sign(weight), weight.abs().mean((1, 2, 3), keepdim=True), 1)
    expected = binarize(weight, by_output=True)
    sections = check_file(tmp_path / "net", {"w": packed}, {"w": expected})
    assert sections["w"] == {"integers": math.ceil(162 / 8), "scale": 24}


def test_all_other_tensors_are_stored_as_they_are(tmp_path):
    tensors = {
        "fp32": random((3, 4)).T,  # not contiguous
        "fp64": random((5,)).double(),
        "bf16": random((5,)).bfloat16(),
        "fp16": random((2, 1)).half(),
        "0-d": torch.tensor(7),
        "none": torch.ones(0, 3),
        "bool": torch.tensor([True, False]),
        "with a gradient": random((2,)).requires_grad_(),
        "n\u00e4me": torch.tensor([-0.0, math.inf, 1e-45]),
    }
    sections = check_file(tmp_path / "net", tensors, tensors)
    assert sections == {name: {"values": value.nbytes} for name, value in tensors.items()}


def test_a_state_dict_is_loaded_into_the_network(tmp_path):
    torch.manual_seed(0)
    make = lambda: torch.nn.Sequential(  # noqa: E731
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(2, 3)
    )
    model, again = make(), make()
    model[0].weight.data *= random((2, 1, 3, 3)) > 0
    save(tmp_path / "net", {**model.state_dict(), "0.weight": Sparse(model[0].weight)})
    again.load_state_dict(load(tmp_path / "net"))
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_bad_input_is_refused_with_its_numbers(tmp_path):
    for gap_bits in (0, 17):
        with pytest.raises(ValueError, match=f"{gap_bits} bits for a gap: from 1 to 16"):
            gaps_of(torch.ones(3), gap_bits)
    path = tmp_path / "net"
    num_bytes = save(path, {"w": Sparse(MASKS["some"])})
    data = path.read_bytes()
    for wrong in (data[:-1], data + b"\0"):
        path.write_bytes(wrong)
        with pytest.raises(
            ValueError, match=f"has {len(wrong)} bytes; its header says {num_bytes}"
        ):
            load(path)
    unknown = Shared(torch.ones(2), torch.ones(3), torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="symbols 0 to 3: from 0 to 2"):
        save(path, {"w": unknown})
    with pytest.raises(ValueError, match="0 to 4 in 2 bits: 0 to 3"):
        save(path, {"w": unknown._replace(indices=torch.tensor([0, 4]))}, with_huffman=False)
