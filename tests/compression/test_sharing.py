"""Weight sharing: k-means against scikit-learn's and a plain loop; the codebook's gradient."""

import math
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import nn
from torch.nn.utils import parametrize

from pedagogy.compression import SharedWeight, index_bits, share_weights, sharing_ratio


def random(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def squares(weight, codebook, indices):
    """The sum of squared errors, in float64."""
    return (weight.double() - codebook.double()[indices]).square().sum().item()


def check_against_scikit(share, k, seed):
    """From the same evenly spaced start, Lloyd's algorithm ends in the same values."""
    weight = random((40, 5), seed)
    start = torch.linspace(weight.min(), weight.max(), k, dtype=torch.float64)
    right = KMeans(k, init=start[:, None].numpy(), n_init=1, tol=0, max_iter=1000)
    right.fit(weight.double().reshape(-1, 1).numpy())
    codebook, indices = share(weight, k)
    assert indices.shape == weight.shape
    assert (codebook.dtype, indices.dtype) == (torch.float32, torch.int64)
    theirs = torch.from_numpy(right.cluster_centers_).flatten()
    torch.testing.assert_close(codebook.double(), theirs, rtol=1e-6, atol=1e-6)
    assert indices.flatten().tolist() == right.labels_.tolist()


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])  # with these no value is without weights
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_from_the_same_start_it_is_scikit_learns_k_means(k, seed):
    check_against_scikit(share_weights, k, seed)


def lloyd(numbers, values):
    """k-means with lists, one number at a time; None where a value has no numbers."""
    while True:
        mine = [min(range(len(values)), key=lambda j: abs(x - values[j])) for x in numbers]
        groups = [
            [x for x, i in zip(numbers, mine, strict=True) if i == j] for j in range(len(values))
        ]
        if not all(groups):
            return None
        means = [math.fsum(group) / len(group) for group in groups]
        if means == values:
            return values, mine
        values = means


def check_against_loop(share, seed):
    """Starts in any order; at least half of them leave no value without weights."""
    numbers = random((9,), seed).double()
    compared = 0
    for start in combinations(numbers.tolist(), 3):
        right = lloyd(numbers.tolist(), list(start))
        if right is not None:
            codebook, indices = share(numbers, 3, torch.tensor(start, dtype=torch.float64))
            assert codebook.tolist() == pytest.approx(right[0], rel=1e-12, abs=1e-12)
            assert indices.tolist() == right[1]
            compared += 1
    assert compared > 42


@pytest.mark.parametrize("seed", range(10))
def test_on_a_few_numbers_it_is_a_plain_loop_from_any_start(seed):
    check_against_loop(share_weights, seed)


def check_finite(share):
    """A value for which no weight is left stays what it was."""
    codebook, indices = share(torch.tensor([0.0, 0, 0, 10]), 3, torch.tensor([0.0, 10, 20]))
    assert codebook.tolist() == [0, 10, 20]
    assert indices.tolist() == [0, 0, 0, 1]


def test_a_value_without_weights_stays_where_nothing_is_left_to_improve():
    check_finite(share_weights)


def best_squares(numbers, k):
    """The least possible sum of squares: the sorted numbers cut in k pieces in every way."""
    numbers = sorted(numbers)
    least = math.inf
    for cuts in combinations(range(1, len(numbers)), k - 1):
        ends = [0, *cuts, len(numbers)]
        pieces = [numbers[a:b] for a, b in pairwise(ends)]
        means = [sum(piece) / len(piece) for piece in pieces]
        least = min(
            least,
            sum((x - m) ** 2 for piece, m in zip(pieces, means, strict=True) for x in piece),
        )
    return least


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=9), st.integers(1, 6))
def test_it_ends_where_nothing_improves_and_never_below_the_best(numbers, k):
    weight = torch.tensor(numbers)
    codebook, indices = share_weights(weight, k)
    assert codebook.isfinite().all()
    distances = (weight.double()[:, None] - codebook.double()).abs()
    chosen = distances.gather(1, indices[:, None])[:, 0]
    assert (chosen <= distances.amin(1) + 1e-5).all()  # each weight has the nearest value
    for i in indices.unique():
        assert codebook[i].item() == pytest.approx(weight[indices == i].mean().item(), abs=1e-4)
    if k <= len(numbers):
        least = best_squares(weight.tolist(), k)
        assert squares(weight, codebook, indices) >= least * (1 - 1e-6) - 1e-8
    if k >= len(set(numbers)):
        assert torch.equal(codebook[indices], weight)


def check_error_never_grows(share, weight, k, start=None):
    """Round after round, values that begin without weights included."""
    errors = [squares(weight, *share(weight, k, start, max_rounds=n)) for n in range(25)]
    assert all(math.isfinite(error) for error in errors)
    # the codebook is rounded once, at the end: a mean's error enters only squared
    slack = weight.numel() * (torch.finfo(weight.dtype).eps * weight.abs().max().item()) ** 2
    for before, after in pairwise(errors):
        assert after <= before * (1 + 1e-9) + slack
    assert errors[-1] < errors[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_error_never_grows_from_round_to_round(dtype):
    weight = (random((300,)) ** 3).to(dtype)
    check_error_never_grows(share_weights, weight, 16)
    mostly_zero = weight * (weight.abs() > 1)
    check_error_never_grows(share_weights, mostly_zero, 16)
    check_error_never_grows(share_weights, weight, 4, torch.tensor([50.0, 60, 70, 80]))


def test_values_without_weights_go_where_the_error_is_largest():
    weight = torch.tensor([0.0, 0, 0, 1, 10, 11, 20])
    codebook, indices = share_weights(weight, 5, torch.full((5,), 100.0))
    assert torch.equal(codebook[indices], weight)


@pytest.mark.parametrize("scale", [1e38, 1e-40, 0.0])
def test_huge_tiny_and_zero_weights_have_finite_values(scale):
    weight = random((50,)).clamp(-3, 3) * scale
    codebook, indices = share_weights(weight, 8)
    assert codebook.isfinite().all()
    spread = (weight.double().max() - weight.double().min()).item()
    assert (weight.double() - codebook.double()[indices]).abs().max() <= spread / 2


def check_gradient(shared_class):
    """Each value's gradient is the sum over its weights; a pruned weight adds nothing."""
    layer = nn.Linear(6, 4)
    codebook, indices = share_weights(layer.weight, 3)
    mask = (random((4, 6), 4) > 0).float()
    shared = shared_class(codebook, indices, mask)
    parametrize.register_parametrization(layer, "weight", shared)
    x, upstream = random((5, 6), 1), random((5, 4), 2)
    torch.testing.assert_close(layer.weight.detach(), codebook[indices] * mask, rtol=0, atol=0)
    (layer(x) * upstream).sum().backward()
    of_weights = upstream.T @ x
    expected = [
        sum(
            of_weights[i, j].item()
            for i in range(4)
            for j in range(6)
            if indices[i, j] == value and mask[i, j]
        )
        for value in range(3)
    ]
    assert shared.codebook.grad.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert layer.parametrizations.weight.original.grad is None


def test_a_values_gradient_is_the_sum_of_its_weights_gradients():
    check_gradient(SharedWeight)


def test_training_changes_the_values_and_shares_them_still():
    layer = nn.Linear(6, 4)
    codebook, indices = share_weights(layer.weight, 3)
    parametrize.register_parametrization(layer, "weight", SharedWeight(codebook, indices))
    optimizer = torch.optim.Adam(layer.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        layer(random((5, 6))).square().sum().backward()
        optimizer.step()
    trained = layer.parametrizations.weight[0].codebook
    assert (trained != codebook).all()
    assert torch.equal(layer.weight, trained[indices])
    assert layer.weight.unique().numel() == 3
    names = layer.parametrizations.weight[0].state_dict()
    assert set(names) == {"codebook", "indices"}


def test_bits_of_an_index_are_whole():
    for k in range(1, 70):
        bits = index_bits(k)
        assert 2**bits >= k
        assert bits == 0 or 2 ** (bits - 1) < k
    assert index_bits(2**50 + 1) == 51  # more than a float logarithm can tell


def test_bad_input_is_refused_with_its_numbers():
    weight = torch.ones(4)
    with pytest.raises(ValueError, match="0 values for 4 weights: at least 1"):
        share_weights(weight, 0)
    with pytest.raises(ValueError, match="0 of 0 weights"):
        share_weights(torch.ones(0), 2)
    for strange in (math.nan, math.inf):
        with pytest.raises(ValueError, match="1 of 2 weights are not finite"):
            share_weights(torch.tensor([1.0, strange]), 2)
        with pytest.raises(ValueError, match="1 of 2 weights are not finite"):
            share_weights(weight, 2, torch.tensor([strange, 1.0]))
    with pytest.raises(ValueError, match="3 values to start with, of 2"):
        share_weights(weight, 2, torch.ones(3))
    with pytest.raises(ValueError, match="0 clusters"):
        index_bits(0)
    with pytest.raises(ValueError, match="0 weights of 32 bits"):
        sharing_ratio(0, 32, 4)
    with pytest.raises(ValueError, match="9 weights of 0 bits"):
        sharing_ratio(9, 0, 1)
