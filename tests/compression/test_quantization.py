"""Integers with one scale, and two values: nearest, in range, and gradients straight through."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from pedagogy.compression import (
    Binary,
    Quantized,
    binarize,
    clamp_latent,
    quantize,
    sign,
    to_integers,
)

SHAPES = ((), (1,), (9,), (5, 7), (2, 3, 2, 2))
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def random(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_nearest(to_integers, tensor, bits):
    """Within range, the largest at its end, nobody more than half a scale away."""
    integers, scale = to_integers(tensor, bits)
    largest = 2 ** (bits - 1) - 1
    assert (integers.dtype, integers.shape, scale.shape) == (torch.int16, tensor.shape, ())
    assert integers.abs().max() <= largest
    wide, scale = tensor.double(), scale.double()
    error = (wide - integers.double() * scale).abs()
    slack = wide.abs().max() * torch.finfo(torch.float32).eps  # the division's own rounding
    assert (error <= scale / 2 + slack).all()
    return integers, scale


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_are_in_range_and_the_error_is_at_most_half_a_scale(bits, dtype):
    for shape in SHAPES:
        tensor = random(shape, bits).to(dtype)
        integers, scale = check_nearest(to_integers, tensor, bits)
        assert integers.abs().max() == 2 ** (bits - 1) - 1
        assert scale.item() == pytest.approx(tensor.abs().max().item() / (2 ** (bits - 1) - 1))
        found = quantize(tensor, bits)
        assert (found.dtype, found.shape) == (dtype, shape)
        back = integers.double() * scale
        torch.testing.assert_close(found.double(), back, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("bits", [2, 8, 16])
def test_zeros_and_tensors_next_to_zero_are_finite(bits):
    assert (quantize(torch.zeros(3), bits) == 0).all()
    for least in (1e-45, 3e-43, 1e-39, 1e-37, 1e-34):  # the first three are subnormal
        tensor = random((50,)).clamp(-1, 1) * least
        integers, scale = to_integers(tensor, bits)
        error = (tensor.double() - integers.double() * scale.double()).abs()
        assert (error <= scale.double() / 2 * (1 + 1e-5)).all()
        assert quantize(tensor, bits).isfinite().all()
    half = torch.tensor([6e-8, -1e-6, 6e-5], dtype=torch.float16)
    check_nearest(to_integers, half, bits)


def test_a_known_tensor_by_hand():
    integers, scale = to_integers(torch.tensor([-0.6, 0.1, 0.29, 0.7, 0.0]), 4)
    assert integers.tolist() == [-6, 1, 3, 7, 0]
    assert scale.item() == pytest.approx(0.1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_passes_straight_through(dtype):
    weight = random((4, 5)).to(dtype).requires_grad_()
    upstream = random((4, 5), 1).to(dtype)
    (quantize(weight, 3) * upstream).sum().backward()
    assert torch.equal(weight.grad, upstream)


def test_a_quantised_layer_computes_with_few_values_and_trains_the_real_ones():
    layer = nn.Linear(6, 4)
    parametrize.register_parametrization(layer, "weight", Quantized(3))
    before = layer.parametrizations.weight.original.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), 0.05)
    for _ in range(3):
        optimizer.zero_grad()
        layer(random((8, 6))).square().sum().backward()
        optimizer.step()
        assert torch.equal(layer.weight, quantize(layer.parametrizations.weight.original, 3))
        assert layer.weight.unique().numel() <= 7
    assert (layer.parametrizations.weight.original != before).all()


def check_binary(binarize, by_output):
    """Two values for each part; the mean magnitude is the best of all scales for the signs."""
    weight = random((4, 3, 2, 2)).double()
    weight[0, 0, 0, 0] = 0
    found = binarize(weight, by_output)
    for mine, part in zip(found, weight, strict=True) if by_output else [(found, weight)]:
        signs = torch.tensor([1.0 if x >= 0 else -1.0 for x in part.flatten().tolist()])
        best = torch.linalg.lstsq(signs[:, None].double(), part.flatten()[:, None]).solution.item()
        assert mine.flatten().tolist() == pytest.approx([best * s for s in signs.tolist()])
        for factor in (0.9, 1.1):
            assert (part - mine * factor).square().sum() > (part - mine).square().sum()


@pytest.mark.parametrize("by_output", [False, True])
def test_the_scale_is_the_best_in_least_squares(by_output):
    check_binary(binarize, by_output)


def test_the_gradient_of_a_binary_weight_goes_through_sign_and_scale():
    weight = torch.tensor([-2.0, -0.5, 0.25, 1.25], requires_grad=True)
    upstream = torch.tensor([1.0, -2, 3, 4])
    (binarize(weight) * upstream).sum().backward()
    scale, signs = 1.0, torch.tensor([-1.0, -1, 1, 1])  # (2 + 0.5 + 0.25 + 1.25) / 4
    through_scale = signs * (upstream * signs).sum() / 4
    through_sign = upstream * scale * torch.tensor([0.0, 1, 1, 0])
    torch.testing.assert_close(weight.grad, through_scale + through_sign)


def check_sign(sign, dtype=torch.float32):
    """C76's numbers: two values only, and no gradient beyond 1."""
    a = torch.tensor([-2, -1.5, -0.9, 0, 0.9, 1.5, 2], dtype=dtype, requires_grad=True)
    out = sign(a)
    assert out.dtype == dtype
    assert out.tolist() == [-1, -1, -1, 1, 1, 1, 1]
    out.sum().backward()
    assert a.grad.tolist() == [0, 0, 1, 1, 1, 0, 0]
    ends = torch.tensor([-1.0, 1.0], requires_grad=True)
    (sign(ends) * torch.tensor([5.0, -7.0])).sum().backward()
    assert ends.grad.tolist() == [5, -7]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sign_has_two_values_and_its_gradient_ends_at_one(dtype):
    check_sign(sign, dtype)


class Binarised(nn.Module):
    """A binary layer within another module, a quantised one, and an ordinary one."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2))
        self.rounded, self.plain = nn.Linear(2, 2), nn.Linear(2, 2)
        for part in (self.inner[0], self.inner[2]):
            parametrize.register_parametrization(part, "weight", Binary())
        parametrize.register_parametrization(self.rounded, "weight", Quantized(8))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(100).add_(1)


def check_clamp(clamp_latent):
    """Binary weights' real ones are within [-1, 1]; all else stays as it was."""
    model = Binarised()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    clamp_latent(model)
    binary = {
        "inner.0.parametrizations.weight.original",
        "inner.2.parametrizations.weight.original",
    }
    assert binary <= set(before)
    for name, parameter in model.named_parameters():
        right = before[name].clamp(-1, 1) if name in binary else before[name]
        assert torch.equal(parameter, right), name
        assert parameter.abs().max() > 1 or name in binary


def test_only_the_real_weights_behind_binary_ones_are_clamped():
    check_clamp(clamp_latent)


def test_a_binary_layer_trains_and_its_latent_weights_stay_in_range():
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    parametrize.register_parametrization(layer, "weight", Binary())
    optimizer = torch.optim.Adam(layer.parameters(), 0.3)
    latent = layer.parametrizations.weight.original
    first = sign(latent).detach().clone()
    for seed in range(8):
        optimizer.zero_grad()
        (layer(random((16, 6), seed)) - random((16, 4), seed + 50)).square().sum().backward()
        optimizer.step()
        clamp_latent(layer)
        assert latent.abs().max() <= 1
        for row, real in zip(layer.weight, latent, strict=True):
            assert row.abs().tolist() == pytest.approx([real.abs().mean().item()] * 6)
    assert (sign(latent) != first).any()


def test_bad_input_is_refused_with_its_numbers():
    for bits in (0, 1, 17):
        with pytest.raises(ValueError, match=f"{bits} bits: from 2 to 16; for one bit, binarize"):
            quantize(torch.ones(3), bits)
    for function in (lambda t: quantize(t, 8), lambda t: to_integers(t, 8), binarize):
        for strange in (math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match="1 of 2 weights are not finite"):
                function(torch.tensor([1.0, strange]))
        with pytest.raises(ValueError, match="0 of 0 weights"):
            function(torch.ones(2, 0))
    with pytest.raises(ValueError, match="a weight of 1 dimensions by output: at least 2"):
        binarize(torch.ones(3), by_output=True)
