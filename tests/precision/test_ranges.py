"""Shares of a tensor's values by what fp16 and bf16 make of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.precision.ranges import KINDS, range_shares

EDGES = [
    (0.0, "zero"),
    (-0.0, "zero"),
    (2.0**-25, "underflow"),
    (1.0001 * 2.0**-25, "subnormal"),  # and not zero, though it is below 2^-24
    (2.0**-24, "subnormal"),
    (2.0**-14 - 2.0**-24, "subnormal"),
    (2.0**-14 * (1 - 2.0**-12), "normal"),  # rounded up to the first normal number
    (2.0**-14, "normal"),
    (65519.99, "normal"),
    (65520.0, "overflow"),
    (math.inf, "overflow"),
    (math.nan, "overflow"),
]


@pytest.mark.parametrize(("value", "kind"), EDGES)
def test_a_value_has_the_kind_of_what_fp16_makes_of_it(value, kind):
    for sign in (1, -1):
        shares = range_shares(torch.tensor([sign * value]), torch.float16)
        assert shares == {other: float(other == kind) for other in KINDS}


def test_the_shares_are_counts_over_all_values_in_the_order_of_the_kinds():
    values = torch.tensor([value for value, _ in EDGES]).view(3, 4).t()
    shares = range_shares(values, torch.float16)
    assert tuple(shares) == KINDS
    counts = {kind: sum(other == kind for _, other in EDGES) for kind in KINDS}
    assert shares == pytest.approx({kind: count / 12 for kind, count in counts.items()})


def test_the_popular_limit_of_2_to_the_minus_24_is_wrong_by_two():
    values = torch.arange(1, 1001) * 2.0**-24 / 1000  # evenly up to fp16's smallest number
    shares = range_shares(values, torch.float16)
    assert shares["underflow"] == 0.5
    assert shares["subnormal"] == 0.5


def test_bf16_has_the_range_of_fp32():
    values = torch.tensor([1e-38, 2.0**-126, 1e-8, 65520.0, 3.3e38])
    assert range_shares(values, torch.bfloat16)["normal"] == 0.8
    assert range_shares(values, torch.float16)["normal"] == 0.0


@given(st.lists(st.floats(width=32), min_size=1), st.sampled_from(["float16", "bfloat16"]))
@settings(max_examples=100, deadline=None)
def test_the_shares_sum_to_1_whatever_the_values(values, dtype):
    assert sum(range_shares(torch.tensor(values), getattr(torch, dtype)).values()) == pytest.approx(
        1, abs=1e-12
    )


def test_C37_small_gradients_become_zero_in_fp16_and_a_loss_scale_moves_them_into_range():
    gradients = torch.tensor([1e-8, 2.9e-8, 3e-8])
    assert gradients.half().tolist() == [0, 0, 2.0**-24]
    assert range_shares(gradients, torch.float16)["underflow"] == pytest.approx(2 / 3)
    scaled = gradients * 65536
    assert range_shares(scaled, torch.float16)["normal"] == 1
    assert scaled.half()[0].item() == pytest.approx(6.55e-4, rel=1e-3)
    torch.testing.assert_close(scaled.half().float() / 65536, gradients, rtol=2**-11, atol=0)


def test_nothing_and_dtypes_that_are_no_format_are_refused():
    with pytest.raises(ValueError, match=r"shape \(0, 3\) has no values"):
        range_shares(torch.empty(0, 3), torch.float16)
    with pytest.raises(ValueError, match=r"no format for torch.float64"):
        range_shares(torch.ones(1), torch.float64)
