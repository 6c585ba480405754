"""Formats against PyTorch's casts and numpy's, over random and edge values, bit by bit."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.precision import FORMATS, bit_fields, format_of, round_to

FP16, BF16, FP32, TF32 = (FORMATS[name] for name in ("fp16", "bf16", "fp32", "tf32"))
STORED = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}


def values(dtype):
    """Random numbers over the whole range of fp32, and neighbours and midpoints of each format."""
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.randn(4000, generator=generator, dtype=torch.float64)
    numbers = mantissas * torch.exp2(torch.randint(-155, 130, (4000,), generator=generator))
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan]
    for one in FORMATS.values():
        for at in (one.smallest, one.smallest_normal, 1.0, 1.0 + one.epsilon, one.max):
            edges += [at * (1 + k * one.epsilon / 4) for k in range(-4, 5)]
        edges += [one.smallest * k / 4 for k in range(12)]
    edges = torch.tensor(edges, dtype=torch.float64)
    return torch.cat([numbers, edges, -edges]).to(dtype)


def assert_same(actual, expected):
    """Bit for bit, the sign of zero included; any NaN equals any."""
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    known = ~expected.isnan()
    assert torch.equal(actual.signbit()[known], expected.signbit()[known])


@pytest.mark.parametrize("one", [FP16, BF16, FP32, FORMATS["fp8 e5m2"]], ids=lambda f: f.name)
def test_values_of_fp32_are_rounded_as_pytorch_casts_them(one):
    x = values(torch.float32)
    assert_same(round_to(x, one), x.to(one.dtype).float())


def test_e4m3_is_rounded_as_pytorch_casts_it_up_to_its_largest_number_and_stays_there():
    x = values(torch.float32)
    one = FORMATS["fp8 e4m3"]
    assert one.max == torch.finfo(one.dtype).max == 448
    within = x[x.abs() <= 448]
    assert_same(round_to(within, one), within.to(one.dtype).float())
    assert round_to(torch.tensor([500.0, -1e30, math.inf]), one).tolist() == [448, -448, 448]


def test_values_of_fp64_are_rounded_once_as_numpy_rounds_them():
    x = values(torch.float64)
    with np.errstate(over="ignore"):
        assert_same(round_to(x, FP16), torch.from_numpy(x.numpy().astype("f2").astype("f8")))
        assert_same(round_to(x, FP32), torch.from_numpy(x.numpy().astype("f4").astype("f8")))
    above_the_middle = torch.tensor([1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)
    assert round_to(above_the_middle, FP16).item() == 1 + 2.0**-10  # by way of fp32 it would be 1


def test_tf32_drops_13_bits_of_an_fp32_number_to_the_nearest_even():
    x = values(torch.float32)
    x = x[x.isfinite()]
    bits = x.view(torch.int32).to(torch.int64)
    kept = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF  # a carry may reach the exponent
    assert_same(round_to(x, TF32), kept.to(torch.int32).view(torch.float32))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.0**-25, 0.0),
        (1.0001 * 2.0**-25, 2.0**-24),
        (1 + 2.0**-11, 1.0),
        (1 + 1 / 2047, 1.0009765625),
        (1 + 3 * 2.0**-11, 1 + 2.0**-9),  # a tie, to the even one above
        (65519.99, 65504.0),
        (65520.0, math.inf),
        (2.0**-14 * (1 - 2.0**-12), 2.0**-14),  # the largest subnormal number's upper neighbour
    ],
)
def test_published_facts_about_fp16(value, expected):
    for dtype in (torch.float32, torch.float64):
        assert round_to(torch.tensor([value, -value], dtype=dtype), FP16).tolist() == [
            expected,
            -expected,
        ]
    with np.errstate(over="ignore"):
        assert np.float16(value) == expected


def test_every_number_of_a_16_bit_format_stays_what_it_is():
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for one in (FP16, BF16):
        numbers = patterns.view(one.dtype).float()
        assert_same(round_to(numbers, one), numbers)


@given(st.floats(width=32, allow_nan=False), st.sampled_from(list(FORMATS.values())))
@settings(max_examples=200, deadline=None)
def test_rounding_twice_changes_nothing_and_no_number_of_the_format_is_nearer(value, one):
    x = torch.tensor(value, dtype=torch.float64)
    once = round_to(x, one)
    assert_same(round_to(once, one), once)
    if abs(value) <= one.max:
        step = max(one.smallest, 2.0 ** math.frexp(value)[1] * one.epsilon / 2)
        assert abs(once - x) <= step / 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_a_format_says_of_itself_is_what_pytorch_says(dtype):
    one, info = format_of(dtype), torch.finfo(dtype)
    assert (one.max, one.smallest_normal) == (info.max, info.smallest_normal)
    assert (one.epsilon, one.bits) == (info.eps, info.bits)
    assert torch.tensor(1, dtype=STORED[dtype]).view(dtype).item() == one.smallest


@pytest.mark.parametrize("dtype", STORED)
def test_bit_fields_are_the_bits_in_memory(dtype):
    one = format_of(dtype)
    x = values(torch.float32)[::23]
    x = torch.cat([x, values(torch.float32)[4000:4100]]).to(dtype)
    x = x[~x.isnan()]
    for value, stored in zip(x.tolist(), x.view(STORED[dtype]).tolist(), strict=True):
        assert "".join(bit_fields(value, one)) == f"{stored % 2**one.bits:0{one.bits}b}"


def test_bit_fields_of_any_format_read_back_give_the_rounded_value():
    for one in FORMATS.values():
        for value in (*values(torch.float32)[4005::11].tolist(), math.pi, -1e-3, one.max):
            rounded = round_to(torch.tensor(value, dtype=torch.float64), one).item()
            sign, exponent, mantissa = bit_fields(value, one)
            e, m = int(exponent, 2), int(mantissa, 2) * one.epsilon
            if not math.isfinite(rounded):
                assert "0" not in exponent
                assert ("1" in mantissa) == math.isnan(rounded)
                continue
            read = 2.0 ** (e - one.bias) * (1 + m) if e else 2.0 ** (1 - one.bias) * m
            assert (-1) ** int(sign) * read == rounded
            assert len(sign + exponent + mantissa) == one.bits


def test_signs_of_zero_and_of_nan_are_kept_and_infinity_has_an_empty_mantissa():
    assert bit_fields(-0.0, FP16) == ("1", "00000", "0000000000")
    assert bit_fields(-1e9, FP16) == ("1", "11111", "0000000000")
    negative_nan = struct.unpack(">d", b"\xff\xf8\0\0\0\0\0\0")[0]
    sign, exponent, mantissa = bit_fields(negative_nan, BF16)
    assert (sign, exponent) == ("1", "1" * 8)
    assert "1" in mantissa
    assert bit_fields(math.nan, FORMATS["fp8 e4m3"])[1:] == ("1111", "111")  # its only NaN


def test_what_cannot_hold_the_rounded_values_is_refused():
    with pytest.raises(ValueError, match=r"torch.float16: must be float32 or float64"):
        round_to(torch.ones(2, dtype=torch.float16), BF16)
    with pytest.raises(ValueError, match=r"no format for torch.int32: choose one of .*bfloat16"):
        format_of(torch.int32)
