"""Masks: exactly so many zeros, the smallest, and they stay whatever the optimizer remembers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pedagogy.compression import Masks, magnitude_mask, prune_kernels, rising_sparsity

SHAPES = ((), (1,), (7,), (3, 5), (2, 3, 4), (2, 3, 3, 3))
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.05),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1),
}


def random(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def smallest(magnitudes, number):
    """The places of the smallest; of equal ones, those that come first."""
    return set(sorted(range(len(magnitudes)), key=lambda i: (magnitudes[i], i))[:number])


def check_mask(mask_of, weight, sparsity, earlier=None):
    """Against a sorted list: exactly round(s n) zeros, earlier ones first, then the smallest."""
    mask = mask_of(weight, sparsity, earlier)
    assert mask.shape == weight.shape
    assert mask.dtype == weight.dtype
    sizes = [abs(x) for x in weight.flatten().tolist()]
    if earlier is not None:
        before = earlier.flatten().tolist()
        sizes = [size if kept else -1 for size, kept in zip(sizes, before, strict=True)]
    zeros = smallest(sizes, round(sparsity * weight.numel()))
    expected = [0.0 if i in zeros else 1.0 for i in range(len(sizes))]
    assert mask.flatten().tolist() == expected


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sparsity", [0, 0.1, 0.5, 0.9, 1])
def test_exactly_so_many_of_the_smallest_are_zero_in_any_shape(shape, sparsity):
    check_mask(magnitude_mask, random(shape), sparsity)
    check_mask(magnitude_mask, random((*shape, 2))[..., 0], sparsity)  # not contiguous


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30),
    st.floats(0, 1),
)
def test_equal_magnitudes_are_cut_exactly_and_earlier_zeros_go_first(numbers, sparsity):
    weight = torch.tensor([float(n) for n, _ in numbers])
    check_mask(magnitude_mask, weight, sparsity)
    check_mask(magnitude_mask, weight, sparsity, torch.tensor([float(kept) for _, kept in numbers]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_have_masks_of_their_own(dtype):
    check_mask(magnitude_mask, random((5, 9)).to(dtype), 0.4, (random((5, 9), 1) > 0).to(dtype))


def test_the_weight_is_not_touched_and_gets_no_gradient():
    weight = nn.Parameter(random((4, 4)))
    before = weight.detach().clone()
    assert not magnitude_mask(weight, 0.5).requires_grad
    assert torch.equal(weight, before)


def check_masks_survive(masks_class, make):
    """Moments from before the pruning move pruned weights; after `apply` they are 0 again."""
    weight, bias = nn.Parameter(random((6, 5))), nn.Parameter(random((5,), 1))
    optimizer, masks = make([weight, bias]), masks_class()

    def step(seed):
        for parameter in (weight, bias):
            parameter.grad = random(parameter.shape, seed)
        optimizer.step()

    for seed in range(5):
        step(seed)
    masks.prune([weight], 0.6)
    pruned = masks.of[weight] == 0
    assert pruned.sum() == 18
    assert (weight[pruned] == 0).all()
    for seed in range(5, 35):
        step(seed)
        masks.apply()
        assert (weight[pruned] == 0).all()
        assert (weight[~pruned] != 0).all()
    assert (bias != 0).all()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_pruned_weights_stay_exactly_zero_over_many_steps(make):
    check_masks_survive(Masks, make)


def check_iterative(masks_class, make):
    """Rising sparsity with training between: each target exactly, and no zero comes back.

    After the last step of each round pruned weights have moved, and are to be pruned all the same.
    """
    parameters = [nn.Parameter(random((7, 11))), nn.Parameter(torch.ones(13))]
    optimizer, masks, zeros = make(parameters), masks_class(), [None, None]
    for sparsity in rising_sparsity(0.9, 5):
        masks.prune(parameters, sparsity)
        for i, parameter in enumerate(parameters):
            now = parameter == 0
            assert now.sum() == round(sparsity * parameter.numel())
            assert zeros[i] is None or (now >= zeros[i]).all()
            zeros[i] = now
        for seed in range(3):
            for parameter in parameters:
                parameter.grad = random(parameter.shape, seed)
            masks.apply()
            optimizer.step()
    assert masks.sparsity == (round(0.9 * 77) + round(0.9 * 13)) / 90


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_iterative_pruning_reaches_its_targets_exactly(make):
    check_iterative(Masks, make)


def test_zeros_are_counted_exactly_and_without_masks_there_are_none():
    assert Masks().sparsity == 0
    weight = nn.Parameter(torch.ones(1001, dtype=torch.bfloat16))  # 1001 is no bfloat16
    masks = Masks()
    masks.prune([weight], 0)
    assert masks.sparsity == 0
    masks.prune([weight], 1 / 1001)
    assert masks.sparsity == 1 / 1001


def test_a_pruned_weight_is_zero_even_where_an_update_was_no_number():
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    masks = Masks({weight: torch.tensor([0.0, 1.0])})
    with torch.no_grad():
        weight.fill_(math.nan)
    masks.apply()
    assert weight[0] == 0
    assert weight[1].isnan()


def check_kernels(prune, fraction):
    """Whole kernels, those of least sum, against a loop over all of them."""
    conv = nn.Conv2d(3, 4, 2)
    with torch.no_grad():
        conv.weight.copy_(random(conv.weight.shape))
        conv.weight[1, 2] = torch.tensor([[0.0, 0], [0, 9]])  # one large number, a large sum
    before = conv.weight.detach().clone()
    sums = [
        sum(abs(x) for x in before[o, i].flatten().tolist()) for o in range(4) for i in range(3)
    ]
    mask = prune(conv, fraction)
    zeros = smallest(sums, round(12 * fraction))
    for place in range(12):
        out, in_ = divmod(place, 3)
        assert (mask[out, in_] == (place not in zeros)).all()
    assert torch.equal(conv.weight, before * mask)
    assert isinstance(conv.weight, nn.Parameter)


@pytest.mark.parametrize("fraction", [0, 0.3, 0.5, 1])
def test_whole_kernels_of_the_least_sum_are_zero(fraction):
    check_kernels(prune_kernels, fraction)


def test_sparsity_rises_fast_at_first_and_ends_exactly():
    found = rising_sparsity(0.8, 4)
    assert found[-1] == 0.8
    rises = [b - a for a, b in zip([0, *found], found, strict=False)]
    assert rises == sorted(rises, reverse=True)
    assert found[1] == pytest.approx(0.8 * (1 - 0.5**3))
    assert rising_sparsity(0.3, 1) == [0.3]


def test_bad_input_is_refused_with_its_numbers():
    weight = torch.ones(4)
    for sparsity in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=f"sparsity is {sparsity}: must be from 0 to 1"):
            magnitude_mask(weight, sparsity)
        with pytest.raises(ValueError, match=f"{sparsity}: must be from 0 to 1"):
            rising_sparsity(sparsity, 3)
        with pytest.raises(ValueError, match=f"{sparsity}: must be from 0 to 1"):
            prune_kernels(nn.Conv2d(1, 1, 1), sparsity)
    for strange in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="1 of 3 weights are not finite"):
            magnitude_mask(torch.tensor([1.0, strange, 2.0]), 0.5)
    with pytest.raises(ValueError, match="0 of 0 weights"):
        magnitude_mask(torch.ones(0, 3), 0.5)
    with pytest.raises(ValueError, match=r"a mask of \(4,\) for a weight of \(2, 2\)"):
        magnitude_mask(torch.ones(2, 2), 0.5, torch.ones(4))
    with pytest.raises(ValueError, match="0 times: at least 1"):
        rising_sparsity(0.5, 0)


def test_a_linear_layer_has_no_kernels():
    with pytest.raises(ValueError, match="type Linear: must be Conv2d"):
        prune_kernels(nn.Linear(3, 4), 0.5)
