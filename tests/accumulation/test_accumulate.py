"""A batch in pieces has the gradient of the whole, on one rank and on several."""

import sys

import cloudpickle
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pedagogy.accumulation import accumulate, num_items
from pedagogy.ranks import launch
from pedagogy.workloads import MLP, ConvNet, digits_batch
from tests.accumulation.batches import (
    IGNORED,
    Weight,
    assert_same,
    awkward,
    awkward_batches,
    gpt,
    gpt_batches,
    gradients,
    items,
    labels_of,
    mean_loss,
    summed,
    total,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PROBLEMS = [(awkward, awkward_batches), (gpt, gpt_batches)]


def large_batch(make_model, microbatches):
    """Mean loss and gradients of one process that holds everything."""
    model = make_model()
    loss = mean_loss(model, microbatches)
    loss.backward()
    return loss.detach(), gradients(model)


@pytest.mark.parametrize(("make_model", "make_batches"), PROBLEMS)
def test_unequal_micro_batches_with_ignored_labels_are_one_large_batch(make_model, make_batches):
    model, microbatches = make_model(), make_batches()
    loss, expected = large_batch(make_model, microbatches)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)  # from something before: replaced
    found = accumulate(model, microbatches, summed, labels_of)
    assert_same(gradients(model), expected)
    assert found.shape == ()
    torch.testing.assert_close(found, loss, rtol=1e-12, atol=0)
    assert sum(g is None for g in expected.values()) >= 1  # frozen or unused


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    ignored=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
@example(sizes=[0], ignored=0.0, seed=0)
@example(sizes=[3, 2], ignored=1.0, seed=0)
@settings(max_examples=25, deadline=None)
def test_any_cut_of_any_batch_is_one_large_batch_or_nothing(sizes, ignored, seed):
    microbatches = awkward_batches(sizes, seed, ignored)
    model = awkward()
    found = accumulate(model, microbatches, summed, labels_of)
    if sum(int(labels_of(m)) for m in microbatches):
        loss, expected = large_batch(awkward, microbatches)
        assert_same(gradients(model), expected)
        torch.testing.assert_close(found, loss, rtol=1e-10, atol=0)
    else:
        assert found == 0
        assert all(g is None or (g == 0).all() for g in gradients(model).values())


CUTS = {1: [(5,)], 2: [(1, 4), (0, 5)], 3: [(2, 0, 3)], 4: [(1, 1, 0, 3)]}


def on_ranks(group, all_cuts):
    """Every problem, its micro-batches dealt out by `cuts`: how many each rank gets."""
    torch.set_num_threads(1)
    found = []
    for cuts in all_cuts:
        for make_model, make_batches in PROBLEMS:
            model, start = make_model(), sum(cuts[: group.rank])
            mine = make_batches()[start : start + cuts[group.rank]]
            loss = accumulate(model, mine, summed, labels_of, group)
            found.append((loss, gradients(model)))
    return found


@pytest.mark.parametrize("size", CUTS)
def test_ranks_with_different_numbers_of_micro_batches_or_none_are_one_large_batch(size):
    expected = [large_batch(make, batches()) for make, batches in PROBLEMS] * len(CUTS[size])
    for rank in launch(on_ranks, size, CUTS[size]):
        for (loss, grads), (mean, right) in zip(rank, expected, strict=True):
            torch.testing.assert_close(loss, mean, rtol=1e-10, atol=0)
            assert_same(grads, right)


def test_C04_every_token_weighs_the_same():
    model = Weight()
    microbatches = [items(1, 1, 1, 1), items(6)]
    accumulate(model, microbatches, total, len)
    assert model.w.grad == 2.0
    naive = sum(m.mean() for m in microbatches) / len(microbatches)
    assert naive == 3.5


def mean_of_means(model, microbatches):
    """The popular form: each micro-batch's mean, divided by their number."""
    for microbatch in microbatches:
        share = summed(model, microbatch) / labels_of(microbatch) / len(microbatches)
        share.backward()


def test_C04_the_mean_of_means_is_right_for_equal_counts_only():
    for sizes, equal in (((3, 3, 3), True), ((4, 1, 4), False)):
        microbatches = awkward_batches(sizes, ignored=0.0)
        microbatches[1] = (microbatches[1][0], microbatches[0][1][: sizes[1]])
        model = awkward()
        mean_of_means(model, microbatches)
        _, expected = large_batch(awkward, microbatches)
        if equal:
            assert_same(gradients(model), expected)
        else:
            with pytest.raises(AssertionError):
                assert_same(gradients(model), expected, 1e-3)


def all_ignored_on_rank_1(group):
    """Three labels on rank 0 and none on rank 1; also ranks with nothing at all."""
    model = Weight()
    mine = [items(1, 1, 1) if group.rank == 0 else items()]
    loss = accumulate(model, mine, total, len, group)
    nothing = Weight()
    accumulate(nothing, [], total, len, group)
    constant = Weight()
    zero = torch.zeros(())
    accumulate(constant, mine, lambda m, x: total(m, x) if len(x) else zero, len, group)
    return loss.item(), model.w.grad.item(), nothing.w.grad, constant.w.grad.item()


def test_C08_a_rank_whose_labels_are_all_ignored_adds_nothing_and_no_nan():
    assert list(launch(all_ignored_on_rank_1, 2)) == [(0.0, 1.0, None, 1.0)] * 2
    model = awkward()
    ignored = [(x, torch.full_like(y, IGNORED)) for x, y in awkward_batches((3,))]
    assert mean_loss(model, ignored).isnan()  # PyTorch's mean is 0/0
    assert accumulate(model, ignored, summed, labels_of) == 0


def difference(make_model):
    """Largest difference of a gradient: four micro-batches of 8 digits, or one of 32."""
    images, labels = digits_batch(32)
    images = images.double()
    found = []
    for parts in (1, 4):
        torch.manual_seed(0)
        model = make_model().double()
        pieces = zip(images.chunk(parts), labels.chunk(parts), strict=True)
        accumulate(model, list(pieces), summed, labels_of)
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return (found[0] - found[1]).abs().max().item()


def test_batch_norm_is_the_exception():
    assert difference(lambda: MLP((64, 13, 10))) < 1e-14
    assert difference(ConvNet) > 1e-3


def test_an_in_place_sum_of_16_bit_gradients_does_not_overflow():
    model = Weight().half()
    parts = [items(*[600.0] * 100).half() for _ in range(2)]
    accumulate(model, parts, lambda m, x: m(x).float().sum(), len)
    assert model.w.grad == pytest.approx(600, rel=2e-3)  # the sum, 120,000, is beyond 65,504


def test_counts_and_losses_that_cannot_be_right_are_refused():
    model = Weight()
    for count in (-1, 2.5, torch.tensor(1.5)):
        with pytest.raises(ValueError, match=r"items in a micro-batch: must be a whole number"):
            accumulate(model, [items(1)], total, lambda x, count=count: count)
    with pytest.raises(ValueError, match=r"shape \(3,\): it must sum its losses"):
        accumulate(model, [items(1, 2, 3)], lambda m, x: m(x), len)
    assert num_items([]) == 0
    assert num_items([2.0, torch.tensor(3), True]) == 6
