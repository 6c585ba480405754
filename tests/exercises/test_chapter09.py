"""Chapter 09: the references do what the package does; answers as readers write them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from pedagogy.compression import (
    Binary,
    Masks,
    clamp_latent,
    distillation_loss,
    files,
    index_bits,
    magnitude_mask,
    share_weights,
    sharing_ratio,
    sign,
)
from pedagogy.exercises import engine, prediction
from pedagogy.exercises.chapter09 import PRUNE, prune_step
from pedagogy.exercises.chapter09_file import COMPRESS, compress, decompress
from pedagogy.exercises.chapter09_predictions import (
    BYTES,
    MOVED,
    RANK,
    RATIO,
    SQUARED,
    SVD,
    THROUGH,
    ZEROS,
)
from pedagogy.exercises.chapter09_teacher import SOFT_AND_HARD, soft_and_hard_loss
from pedagogy.exercises.chapter09_values import ONE_BIT, SHARED, VALUES, binary_step, shared_values


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- the references -------------------------------------------------------------------------------


def test_C69_a_pruned_weight_stays_zero_under_momentum():
    weight, mask, momentum = torch.tensor([1.0]), torch.ones(1), torch.zeros(1)
    weight, mask, momentum = prune_step(weight, mask, momentum, torch.ones(1), 0.0, 0.1)
    assert momentum.item() == 1
    weight, mask, momentum = prune_step(weight, mask, momentum, torch.zeros(1), 1.0, 0.1)
    assert weight.item() == 0
    assert prediction.judge(MOVED, -0.09).startswith("correct")
    assert "it remembers" in prediction.judge(MOVED, 0)


def test_C70_four_zeros_of_eight_and_then_six():
    weight = torch.arange(1.0, 9.0) / 10
    mask, still = torch.ones(8), torch.zeros(8)
    for sparsity, zeros in ((0.5, 4), (0.75, 6)):
        weight, mask, still = prune_step(weight, mask, still, torch.zeros(8), sparsity, 0.1)
        assert mask.tolist() == [0] * zeros + [1] * (8 - zeros)
    assert prune_step(*torch.ones(4, 8), 0.5, 0.1)[1].sum() == 4


def test_pruning_is_that_of_the_package_with_pytorch_s_optimizer():
    parameter = nn.Parameter(normal(30))
    optimizer, masks = torch.optim.SGD([parameter], lr=0.1, momentum=0.9), Masks()
    mine = (parameter.detach().clone(), torch.ones(30), torch.zeros(30))
    for step, sparsity in enumerate((0.2, 0.5, 0.5, 0.9)):
        masks.prune([parameter], sparsity)
        parameter.grad = normal(30, seed=step)
        optimizer.step()
        masks.apply()
        mine = prune_step(*mine, normal(30, seed=step), sparsity, 0.1)
        torch.testing.assert_close(mine[0], parameter.detach())
        assert torch.equal(mine[1], masks.of[parameter])


@pytest.mark.parametrize("label", [label for label in VALUES if "C71" in label])
def test_C71_empty_clusters_leave_no_nan_and_no_error(label):
    values, start = map(torch.tensor, VALUES[label])
    codebook, indices = shared_values(values, start)
    assert codebook.isfinite().all()
    assert torch.equal(codebook[indices], values)


def test_shared_values_are_the_package_s():
    for seed in range(3):
        values, start = normal(60, seed=seed), torch.tensor([1.5, -1.0, 0.3, 0.0])
        codebook, indices = shared_values(values, start)
        torch.testing.assert_close((codebook, indices), share_weights(values, 4, start))


def test_C72_the_ratio_counts_the_codebook_and_whole_bits():
    assert prediction.judge(RATIO, 6.957).startswith("correct")
    assert "whole number of bits" in prediction.judge(RATIO, 8.16)
    assert sharing_ratio(16, 32, 4) == pytest.approx(3.2)


def test_C73_and_C74_two_matrices_can_be_larger_than_one():
    assert prediction.judge(RANK, 338).startswith("correct")
    assert "more than 512,000" in prediction.judge(RANK, 339)
    assert prediction.judge(SVD, 26_845_184 / 16_777_216).startswith("correct")


def test_C76_the_gradient_passes_between_minus_1_and_1():
    latent = torch.tensor([-2, -1.5, -0.9, 0, 0.9, 1.5, 2])
    binary, after = binary_step(latent, torch.ones_like, 0.25)
    assert binary.tolist() == [-1, -1, -1, 1, 1, 1, 1]
    expected = (latent - 0.25 * torch.tensor([0, 0, 1, 1, 1, 0, 0])).clamp(-1, 1)
    assert torch.equal(after, expected)
    assert prediction.judge(THROUGH, [0, 1, 1, 1, 0]).startswith("correct")


def test_binary_steps_are_the_package_s():
    layer, optimum = nn.Linear(4, 1, bias=False), normal(4)
    parametrize.register_parametrization(layer, "weight", Binary())
    behind = layer.parametrizations.weight.original
    latent = behind.detach().flatten().clone()
    for _ in range(5):
        behind.grad = None
        (sign(behind) - optimum).square().sum().backward()
        with torch.no_grad():
            behind -= 0.3 * behind.grad
        clamp_latent(layer)
        _, latent = binary_step(latent, lambda binary: 2 * (binary - optimum), 0.3)
        torch.testing.assert_close(latent, behind.detach().flatten())


@pytest.mark.parametrize(
    ("temperature", "loss", "slope"),
    [(1, 1.1504, -0.1438), (2, 1.2806, -0.1601), (4, 1.3196, -0.1650), (20, 1.3328, -0.1666)],
)
def test_C75_loss_and_gradient_keep_their_size(temperature, loss, slope):
    student = torch.tensor([[1.0, 2.0, 3.0]] * 4, requires_grad=True)
    teacher, labels = torch.tensor([[3.0, 2.0, 1.0]] * 4), torch.zeros(4, dtype=torch.int64)
    mine = soft_and_hard_loss(student, teacher, labels, temperature, 1.0)
    mine.backward()
    assert mine.item() == pytest.approx(loss, abs=5e-5)
    assert student.grad[:, 0].tolist() == pytest.approx([slope] * 4, abs=5e-5)
    assert prediction.judge(SQUARED, 400).startswith("correct")


def test_the_bits_are_as_many_as_in_the_package_s_file():
    weight = normal(500)
    for sparsity, k, gap_bits in ((0.95, 8, 3), (0.5, 5, 1), (0.9, 1, 4)):
        codebook, bits = compress(weight, sparsity, k, gap_bits)
        mask = magnitude_mask(weight, sparsity)
        gaps = files.gaps_of(mask, gap_bits)
        assert len(bits) == gap_bits * len(gaps) + index_bits(k) * int(mask.sum())
        back = decompress(codebook, bits, gap_bits, 500)
        assert torch.equal(back != 0, mask != 0)
        assert torch.equal(back[mask != 0], codebook[share_weights(weight[mask != 0], k)[1]])


def test_bits_by_hand():
    """Gaps 3 and 2 in 2 bits: 3 and no weight, 0; then 2. Two values: one bit each."""
    codebook = torch.tensor([-1.0, 2.0])
    weight = decompress(codebook, "11" + "00" + "1" + "10" + "0", 2, 8)
    assert weight.tolist() == [0, 0, 0, 2, 0, 0, -1, 0]
    with pytest.raises(ValueError, match="in the middle"):
        decompress(codebook, "110", 2, 8)
    with pytest.raises(ValueError, match="at place 1 of 1"):
        decompress(codebook, "011", 2, 1)


def test_a_mask_costs_bytes_in_training():
    assert prediction.judge(BYTES, [4 * 4, 4 * 5]).startswith("correct")


def test_zeros_in_a_full_tensor_are_multiplied_and_stored():
    assert prediction.judge(ZEROS, [64 * 300, 4 * 64 * 300]).startswith("correct")
    assert "does not look" in prediction.judge(ZEROS, [1920, 76800])
    assert "5 bits" in prediction.judge(ZEROS, [1920, 1920 * (32 + 5) // 8])


# --- answers as a reader would write them ---------------------------------------------------------


def with_topk(weight, mask, momentum, gradient, sparsity, lr):
    size = weight.abs() + mask  # a pruned weight is 0, and its mask too
    mask = torch.ones_like(mask)
    mask[size.topk(round(sparsity * weight.numel()), largest=False).indices] = 0
    momentum = (momentum * 0.9 + gradient) * mask
    return mask * weight - lr * momentum, mask, momentum


def with_kthvalue(weight, mask, momentum, gradient, sparsity, lr):
    number = round(sparsity * weight.numel())
    if number:
        mask = mask * (weight.abs() > weight.abs().kthvalue(number).values).float()
    momentum = 0.9 * momentum + gradient
    return (weight - lr * momentum) * mask, mask, momentum


def masked_gradient(weight, mask, momentum, gradient, sparsity, lr):
    mask = magnitude_mask(weight, sparsity, mask)
    weight = weight * mask
    momentum = 0.9 * momentum + gradient * mask
    return weight - lr * momentum, mask, momentum


def mask_last(weight, mask, momentum, gradient, sparsity, lr):
    momentum = 0.9 * momentum + gradient
    weight = weight - lr * momentum
    mask = magnitude_mask(weight, sparsity, mask)
    return weight * mask, mask, momentum


def running_mean(weight, mask, momentum, gradient, sparsity, lr):
    mask = magnitude_mask(weight, sparsity, mask)
    momentum = 0.9 * momentum + (1 - 0.9) * gradient
    return (weight - lr * momentum) * mask, mask, momentum


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (mask_last, "chosen after the step"),
        (running_mean, "by a tenth"),
        (with_topk, "correct"),
        (with_kthvalue, "A threshold prunes all"),
        (masked_gradient, "remembers gradients from before"),
        (lambda weight, *others: weight, "Three tensors were asked for"),
    ],
)
def test_pruning_is_explained(answer, says):
    assert says in engine.explain(PRUNE, answer)


def of_the_package(values, start):
    return share_weights(values, len(start), start)


def without_a_test_for_empty(values, start):
    for _ in range(50):
        indices = torch.cdist(values[:, None], start[:, None]).argmin(1)
        one_hot = functional.one_hot(indices, len(start)).float()
        start = values @ one_hot / one_hot.sum(0)
    return start, indices


def with_clamp(values, start):
    for _ in range(50):
        indices = (values[:, None] - start[None]).pow(2).argmin(1)
        counts = indices.bincount(minlength=len(start))
        start = torch.zeros(len(start)).index_add(0, indices, values) / counts.clamp(min=1)
    return start, indices


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (of_the_package, "correct"),
        (with_clamp, "correct"),
        (without_a_test_for_empty, "the mean of nothing"),
        (lambda values, start: (start, values), "integers, the number"),
        (lambda values, start: start, "Two tensors were asked for"),
    ],
)
def test_shared_values_are_explained(answer, says):
    assert says in engine.explain(SHARED, answer)


def with_autograd(latent, gradient_of, lr):
    latent = latent.requires_grad_()
    binary = sign(latent)
    binary.backward(gradient_of(binary.detach()))
    return binary.detach(), (latent - lr * latent.grad).detach().clamp(-1, 1)


def clipped_first(latent, gradient_of, lr):
    binary = latent.sign()
    return binary, (latent - lr * gradient_of(binary).clip(-1, 1)).clip(-1, 1)


def one_step(latent, gradient_of, lr, at="binary", after=False, above=torch.ge):
    binary = torch.where(above(latent, 0), 1.0, -1.0)
    gradient = gradient_of(binary if at == "binary" else latent) * (latent.abs() <= 1)
    latent = (latent - lr * gradient).clamp(-1, 1)
    return torch.where(above(latent, 0), 1.0, -1.0) if after else binary, latent


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (one_step, "correct"),
        (partial(one_step, at="latent"), "asked for at the real weights"),
        (partial(one_step, after=True), "those after the step"),
        (partial(one_step, above=torch.gt), "0 becomes -1"),
        (lambda latent, of, lr: one_step(latent, of, -lr), "goes up the gradient"),
        (with_autograd, "correct"),
        (clipped_first, "and 1 was expected"),
        (lambda latent, gradient_of, lr: latent, "Two tensors were asked for"),
    ],
)
def test_binary_steps_are_explained(answer, says):
    assert says in engine.explain(ONE_BIT, answer)


def with_kl_div(student, teacher, labels, temperature, alpha, reduction="mean"):
    soft = functional.kl_div(
        functional.log_softmax(student / temperature, -1),
        functional.softmax(teacher.detach() / temperature, -1),
        reduction=reduction,
    )
    hard = functional.cross_entropy(student, labels)
    return alpha * temperature**2 * soft + (1 - alpha) * hard


def temperature_once(student, teacher, labels, temperature, alpha):
    soft = distillation_loss(student, teacher, labels, temperature, 1.0) / temperature
    return alpha * soft + (1 - alpha) * functional.cross_entropy(student, labels)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (distillation_loss, "correct"),
        (lambda *given: with_kl_div(*given, reduction="batchmean"), "correct"),
        (with_kl_div, "the mean over classes too"),
        (lambda *given: with_kl_div(*given, reduction="sum"), "summed over the batch"),
        (lambda *given: distillation_loss(*given[:4], 1 - given[4]), "are exchanged"),
        (temperature_once, "T stands there once"),
        (lambda s, t, labels, *numbers: s.sum(), "the loss: it is"),
        (lambda *given: distillation_loss(*given).item(), "A scalar tensor was asked for"),
    ],
)
def test_distillation_is_explained(answer, says):
    assert says in engine.explain(SOFT_AND_HARD, answer)


def zero_by_zero(weight, sparsity, k, gap_bits, filler=""):
    mask = magnitude_mask(weight, sparsity).bool()
    codebook, indices = share_weights(weight[mask], k)
    bits, zeros, left = "", 0, iter(indices.tolist())
    for kept in mask.tolist():
        if not kept:
            zeros += 1
            continue
        while zeros >= 2**gap_bits - 1:
            bits += "1" * gap_bits + filler
            zeros -= 2**gap_bits - 1
        bits += bin(zeros)[2:].zfill(gap_bits)
        index = next(left)
        if k > 1:
            bits += bin(index)[2:].zfill(index_bits(k))
        zeros = 0
    return codebook, bits


def as_in_the_paper(weight, sparsity, k, gap_bits):
    return zero_by_zero(weight, sparsity, k, gap_bits, filler="0" * index_bits(k))


def number_first(weight, sparsity, k, gap_bits):
    places = magnitude_mask(weight, sparsity).nonzero().flatten()
    codebook, indices = share_weights(weight[places], k)
    bits, before = "", -1
    for place, index in zip(places.tolist(), indices.tolist(), strict=True):
        if k > 1:
            bits += f"{index:0{index_bits(k)}b}"
        times, gap = divmod(place - before - 1, 2**gap_bits - 1)
        bits += "1" * gap_bits * times + f"{gap:0{gap_bits}b}"
        before = place
    return codebook, bits


def escapes_as_they_come(weight, sparsity, k, gap_bits):
    """Zeros at the end are written, too."""
    codebook, bits = zero_by_zero(weight, sparsity, k, gap_bits)
    zeros = len(weight) - 1 - int(magnitude_mask(weight, sparsity).nonzero()[-1])
    return codebook, bits + "1" * gap_bits * (zeros // (2**gap_bits - 1))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (zero_by_zero, "correct"),
        (as_in_the_paper, "writes such a filler"),
        (number_first, "before the gap"),
        (escapes_as_they_come, "The reader knows n"),
        (lambda weight, *others: share_weights(weight, 4), "a string of 0 and 1"),
        (lambda weight, *others: (torch.ones(3), "01"), "cannot be read"),
    ],
)
def test_files_are_explained(answer, says):
    assert says in engine.explain(COMPRESS, answer)
