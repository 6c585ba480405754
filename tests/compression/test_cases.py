"""Cases from the trackers of other projects, each after its number."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from pedagogy.compression import (
    Binary,
    Masks,
    binarize,
    break_even_rank,
    clamp_latent,
    distillation_loss,
    index_bits,
    low_rank,
    magnitude_mask,
    share_weights,
    sharing_ratio,
    sign,
)
from pedagogy.compression.files import Packed, load, save, section_bytes

OPTIMIZERS = {
    "SGD": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), -0.09),
    "Adam": (lambda p: torch.optim.Adam(p, 0.1), -0.0670),
}


@pytest.mark.parametrize(("make", "returns_as"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_C69_a_pruned_weight_does_not_come_back_through_momentum(make, returns_as):
    for held in (True, False):
        weight = nn.Parameter(torch.tensor([0.5]))
        optimizer, masks = make([weight]), Masks()
        weight.grad = torch.ones(1)
        optimizer.step()
        masks.prune([weight], 1.0)
        assert weight.item() == 0
        weight.grad = torch.ones(1) * masks.of[weight]
        optimizer.step()
        assert weight.item() == pytest.approx(returns_as, abs=5e-5)
        if held:
            masks.apply()
            assert weight.item() == 0


def test_C70_masks_of_already_pruned_weights():
    weight = nn.Parameter(torch.arange(1, 9) / 10)
    masks = Masks()
    masks.prune([weight], 0.5)
    assert weight.tolist() == pytest.approx([0, 0, 0, 0, 0.5, 0.6, 0.7, 0.8])
    assert masks.sparsity == 4 / 8
    masks.prune([weight], 0.75)
    assert weight.tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 0.7, 0.8])
    assert masks.sparsity == 6 / 8
    for number in range(10):
        equal = torch.full((9,), -0.3)
        assert (magnitude_mask(equal, number / 9) == 0).sum() == number
    regrown = torch.tensor([9.0, 1, 2, 3])  # the first was pruned, and has been moved since
    assert magnitude_mask(regrown, 0.5, torch.tensor([0.0, 1, 1, 1])).tolist() == [0, 0, 1, 1]


def test_C71_values_without_weights_are_not_nan():
    for weight, k, start in (
        (torch.tensor([0.0, 0, 0, 10]), 3, torch.tensor([0.0, 10, 20])),
        (torch.full((6,), 0.7), 4, None),
    ):
        codebook, indices = share_weights(weight, k, start)
        assert codebook.isfinite().all()
        assert torch.equal(codebook[indices], weight)
        assert len(codebook) == k
    assert [index_bits(k) for k in (1, 2, 3, 4, 5, 8, 9, 256)] == [0, 1, 2, 2, 3, 3, 4, 8]


def test_C72_the_ratio_has_whole_bits_and_a_codebook():
    assert sharing_ratio(16, 32, 4) == 3.2
    assert sharing_ratio(100, 32, 4) == pytest.approx(9.756, abs=5e-4)
    assert sharing_ratio(100, 32, 5) == pytest.approx(6.957, abs=5e-4)
    fractional = 3200 / (100 * math.log2(5) + 160)
    assert fractional == pytest.approx(8.16, abs=0.01)


def numbers(module):
    return sum(p.numel() for p in module.parameters())


def test_C73_low_rank_can_make_a_layer_bigger():
    layer = nn.Linear(1000, 512)
    bias = 512  # stands once
    for rank, weights in ((400, 604_800), (338, 511_056), (339, 512_568)):
        assert numbers(low_rank(layer, rank)) == weights + bias
    assert break_even_rank(512, 1000) == 338


def test_C74_keeping_four_fifths_of_the_singular_values_makes_a_square_layer_bigger():
    side = 40
    layer = nn.Linear(side, side, bias=False)
    assert numbers(low_rank(layer, 32)) == 1.6 * side**2
    assert numbers(low_rank(layer, 16)) == 0.8 * side**2  # a fifth removed needs 0.4 of them
    # the matrix of 4096 by 4096: 3,277 values are 1.60 times as many numbers
    assert break_even_rank(4096, 4096) == 2047
    assert 3277 * (4096 + 4096) == 26_845_184 > 4096**2
    assert 1638 * 8192 <= 0.8 * 4096**2 < 1639 * 8192


def test_C75_t_squared_and_the_mean_over_the_batch():
    teacher = torch.tensor([[3.0, 2, 1]] * 4, requires_grad=True)
    labels = torch.zeros(4, dtype=torch.int64)
    expected = {1: (1.1504, -0.1438), 2: (1.2806, -0.1601), 4: (1.3196, -0.1650),
                20: (1.3328, -0.1666)}  # fmt: skip
    for temperature, (value, slope) in expected.items():
        student = torch.tensor([[1.0, 2, 3]] * 4, requires_grad=True)
        loss = distillation_loss(student, teacher, labels, temperature, 1.0)
        loss.backward()
        assert loss.item() == pytest.approx(value, abs=5e-5)
        assert student.grad[:, 0].tolist() == pytest.approx([slope] * 4, abs=6e-5)
        assert teacher.grad is None
    at_two = [functional.log_softmax(t / 2, 1) for t in (student.detach(), teacher.detach())]
    both = functional.kl_div(*at_two, reduction="none", log_target=True).mean().item()
    assert 4 * both == pytest.approx(0.4269, abs=5e-5)  # over classes as well: a third


def test_C76_binary_weights_in_training_and_in_a_file(tmp_path):
    a = torch.tensor([-2, -1.5, -0.9, 0, 0.9, 1.5, 2], requires_grad=True)
    out = sign(a)
    out.sum().backward()
    assert out.tolist() == [-1, -1, -1, 1, 1, 1, 1]
    assert a.grad.tolist() == [0, 0, 1, 1, 1, 0, 0]
    layer = nn.Linear(64, 32, bias=False)
    parametrize.register_parametrization(layer, "weight", Binary())
    latent = layer.parametrizations.weight.original
    with torch.no_grad():
        latent.mul_(100)
    clamp_latent(layer)
    assert latent.abs().max() <= 1
    # training holds the real weights, and computes with the binary ones beside them
    assert sum(p.nbytes for p in layer.parameters()) == 4 * 2048
    assert layer.weight.data_ptr() != latent.data_ptr()
    scale = latent.detach().abs().mean(1, keepdim=True)
    packed = Packed(sign(latent), scale, 1)
    assert section_bytes(packed) == {"integers": 2048 / 8, "scale": 4 * 32}
    save(tmp_path / "net", {"weight": packed})
    assert torch.equal(load(tmp_path / "net")["weight"], binarize(latent, True).detach())
