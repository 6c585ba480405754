"""Sums of which every rounding is known, against numpy's fp16 arithmetic, term by term."""

import numpy as np
import pytest
import torch

from pedagogy.precision import dot, matmul
from pedagogy.precision.schemes import Fp16AccumulatedLinear

HALF, SINGLE = torch.float16, torch.float32
NUMPY = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}


def by_hand(x, y, dtype, accumulate):
    """numpy, one number at a time: every operation on scalars rounds to their type."""
    dtype, accumulate = NUMPY[dtype], NUMPY[accumulate]
    total = accumulate(0)
    for a, b in zip(x, y, strict=True):
        total = accumulate(total + accumulate(dtype(a) * dtype(b)))
    return total


def numbers(*shape, seed=0):
    """Positive and negative, of several sizes, exact in fp32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 8


@pytest.mark.parametrize(
    ("dtype", "accumulate"), [(HALF, HALF), (HALF, SINGLE), (SINGLE, SINGLE), (SINGLE, HALF)]
)
def test_a_dot_product_is_numpys_term_by_term(dtype, accumulate):
    x, y = numbers(3, 300, seed=1), numbers(3, 300, seed=2)
    found = dot(x, y, dtype, accumulate)
    assert found.dtype == accumulate
    expected = [
        by_hand(*pair, dtype, accumulate) for pair in zip(x.numpy(), y.numpy(), strict=True)
    ]
    assert found.tolist() == [float(one) for one in expected]


def test_the_order_is_from_left_to_right():
    small, large = [0.25] * 8, [1024.0]
    one = torch.ones(9)
    assert dot(torch.tensor(small + large), one, HALF, HALF).item() == 1026
    assert dot(torch.tensor(large + small), one, HALF, HALF).item() == 1024


@pytest.mark.parametrize(
    ("dtype", "counted"), [(HALF, 2048), (torch.bfloat16, 256), (SINGLE, 10_000)]
)
def test_ones_stop_counting_where_the_next_number_is_two_away(dtype, counted):
    ones = torch.ones(10_000)
    assert dot(ones, ones, dtype, dtype).item() == counted
    assert dot(ones, ones, dtype, SINGLE).item() == 10_000


def test_a_sum_in_fp16_overflows_where_one_in_fp32_does_not():
    x = torch.full((3,), 40_000.0)
    assert dot(x, torch.ones(3), HALF, HALF).item() == float("inf")
    assert dot(x, torch.ones(3), HALF, SINGLE).item() == 120_000


def test_a_matrix_product_is_a_dot_product_for_each_element():
    a, b = numbers(4, 37, seed=3), numbers(37, 3, seed=4)
    for dtypes in ((HALF, HALF), (HALF, SINGLE), (torch.bfloat16, torch.bfloat16)):
        found = matmul(a, b, *dtypes)
        assert found.dtype == dtypes[1]
        expected = dot(a[:, None, :].expand(4, 3, 37), b.T[None].expand(4, 3, 37), *dtypes)
        assert torch.equal(found, expected)


def test_this_machines_own_product_takes_fp16_and_adds_in_fp32():
    ones = torch.ones(8192, dtype=HALF)
    assert (ones @ ones).item() == (ones[None] @ ones[:, None]).item() == 8192
    assert (ones.expand(16, -1) @ ones[:, None].expand(-1, 16)).unique().tolist() == [8192]
    assert dot(ones, ones, HALF, HALF).item() == 2048


def test_a_linear_layer_without_fp32_inside_rounds_forward_and_both_gradients():
    layer = Fp16AccumulatedLinear(20, 3).half()
    x = numbers(2, 5, 20).half().requires_grad_()
    gradient = numbers(2, 5, 3, seed=5).half()
    y = layer(x)
    y.backward(gradient)
    weight, rows, back = layer.weight.detach().numpy(), x.detach().view(10, 20).numpy(), gradient
    back = back.view(10, 3).numpy()
    for i in range(10):
        for j in range(3):
            summed = by_hand(rows[i], weight[j], HALF, HALF)
            assert y.view(10, 3)[i, j].item() == summed + layer.bias.detach().numpy()[j]
        for k in range(20):
            assert x.grad.view(10, 20)[i, k].item() == by_hand(back[i], weight[:, k], HALF, HALF)
    for j in range(3):
        for k in range(20):
            expected = by_hand(back[:, j], rows[:, k], HALF, HALF)
            assert layer.weight.grad[j, k].item() == expected


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\): must be equal"):
        dot(torch.ones(2), torch.ones(3), HALF, SINGLE)
    with pytest.raises(ValueError, match="must be equal, with the sum over the last"):
        dot(torch.tensor(1.0), torch.tensor(1.0), HALF, SINGLE)
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 3\): must be \(m, n\) and \(n, k\)"):
        matmul(torch.ones(2, 3), torch.ones(2, 3), HALF, SINGLE)
