"""Low rank: the error that Eckart and Young say, and where the two layers are fewer numbers."""

import math

import pytest
import torch
from torch import nn

from pedagogy.compression import break_even_rank, low_rank

SHAPES = ((5, 5), (4, 7), (7, 4), (1, 6), (6, 1))


def layer(out, in_, bias=True, dtype=torch.float64):
    torch.manual_seed(out * 10 + in_)
    return nn.Linear(in_, out, bias, dtype=dtype)


def check_error(make, out, in_, rank):
    """Squared error = the sum of the squares of the singular values left out."""
    linear = layer(out, in_)
    thin = make(linear, rank)
    product = thin[1].weight @ thin[0].weight
    values = torch.linalg.eigvalsh(linear.weight @ linear.weight.T).flip(0).clamp(min=0)
    left_out = values[rank:].sum().item()
    assert (linear.weight - product).square().sum().item() == pytest.approx(left_out, abs=1e-12)
    assert (thin[0].weight.shape, thin[1].weight.shape) == ((rank, in_), (out, rank))
    x = torch.randn(3, in_, dtype=torch.float64)
    expected = x @ product.T + linear.bias
    torch.testing.assert_close(thin(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_is_the_singular_values_left_out_at_every_rank(shape):
    for rank in range(1, min(shape) + 1):
        check_error(low_rank, *shape, rank)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_at_full_rank_it_is_the_layer_and_its_gradient_reaches_both(shape, bias):
    linear = layer(*shape, bias=bias)
    thin = low_rank(linear, min(shape))
    x = torch.randn(3, shape[1], dtype=torch.float64)
    torch.testing.assert_close(thin(x), linear(x), rtol=1e-12, atol=1e-12)
    assert thin[0].bias is None
    assert (thin[1].bias is not None) == bias
    thin(x).sum().backward()
    assert all(p.is_leaf and p.grad.abs().sum() > 0 for p in thin.parameters())


def check_no_better(make):
    """No gradient step lowers the error: it is the least of its rank."""
    linear = layer(6, 8)
    thin = make(linear, 3)
    (linear.weight.detach() - thin[1].weight @ thin[0].weight).square().sum().backward()
    for part in thin:
        torch.testing.assert_close(
            part.weight.grad, torch.zeros_like(part.weight), rtol=0, atol=1e-12
        )
    # both train at the same pace: the factors are of the same size
    assert thin[0].weight.norm().item() == pytest.approx(thin[1].weight.norm().item())


def test_the_two_layers_are_the_best_of_their_rank_and_of_equal_size():
    check_no_better(low_rank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_stay(dtype):
    linear = layer(4, 6, dtype=dtype)
    thin = low_rank(linear, 4)
    assert {p.dtype for p in thin.parameters()} == {dtype}
    product = thin[1].weight.double() @ thin[0].weight.double()
    error = (linear.weight.double() - product).abs().max().item()
    assert error < 4 * torch.finfo(dtype).eps


def check_break_even(largest):
    """By trying every rank: the largest that is smaller than the matrix, or 0."""
    for m in range(1, 31):
        for n in range(1, 31):
            smaller = [r for r in range(1, 31) if r * (m + n) < m * n]
            assert largest(m, n) == max(smaller, default=0), (m, n)


def test_the_break_even_rank_is_what_trying_every_rank_finds():
    check_break_even(break_even_rank)


def test_bad_input_is_refused_with_its_numbers():
    for rank in (0, -1, 5):
        with pytest.raises(ValueError, match=f"rank {rank} of a matrix of 4 by 6: from 1 to 4"):
            low_rank(layer(4, 6), rank)
    with pytest.raises(ValueError, match="a matrix of 0 by 3: both at least 1"):
        break_even_rank(0, 3)
    broken = layer(4, 6)
    with torch.no_grad():
        broken.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="1 of 24 weights are not finite"):
        low_rank(broken, 2)


def test_a_convolution_is_refused_by_name():
    with pytest.raises(ValueError, match="type Conv2d: must be Linear"):
        low_rank(nn.Conv2d(3, 4, 1), 2)
