"""The evidence of chapter 06: what is called equal is, and what is called different differs."""

import pytest
import torch
from torch import nn

from pedagogy.accumulation import accumulate
from pedagogy.accumulation.evidence import (
    IGNORED,
    batch_norm_gaps,
    count,
    cut,
    gradient,
    large_batch,
    largest_gap,
    loss_sum,
    mean_of_means,
    padded_texts,
    train_digits,
    window_seconds,
)
from pedagogy.workloads import GPT, MLP, ConvNet, digits, digits_batch, text_batch

LENGTHS = [[8, 8], [1, 2], [5, 0]]


def model():
    """A GPT in float64, always the same."""
    torch.manual_seed(1)
    return GPT(layers=1, hidden=8, heads=2, sequence=8).double()


def test_behind_the_end_of_a_text_no_label_counts():
    microbatches = padded_texts(LENGTHS, 8)
    assert [count(microbatch) for microbatch in microbatches] == [16, 3, 5]
    _, labels = microbatches[1]
    assert (labels != IGNORED).tolist() == [[True] + 7 * [False], [True] * 2 + 6 * [False]]
    inputs, targets = text_batch(6, 8)
    assert torch.equal(torch.cat([x for x, _ in microbatches]), inputs)
    assert torch.equal(labels[1, :2], targets[3, :2])
    with pytest.raises(ValueError, match=r"lengths \[9\]: must be between 0 and the sequence, 8"):
        padded_texts([[9]], 8)


def test_accumulate_is_the_large_batch_and_the_mean_of_means_is_not():
    one, microbatches = model(), padded_texts(LENGTHS, 8)
    truth = large_batch(one, microbatches)
    right = gradient(one)
    assert accumulate(one, microbatches, loss_sum, count).item() == pytest.approx(truth.item())
    assert largest_gap(gradient(one), right) < 1e-12
    mean_of_means(one, microbatches)
    assert largest_gap(gradient(one), right) > 0.05


def test_the_mean_of_means_is_right_where_counts_are_equal_and_nan_where_one_is_zero():
    one, microbatches = model(), padded_texts([[4, 2], [3, 3], [1, 5]], 8)
    large_batch(one, microbatches)
    right = gradient(one)
    mean_of_means(one, microbatches)
    assert largest_gap(gradient(one), right) < 1e-12
    assert mean_of_means(one, padded_texts([[4, 2], [0, 0]], 8)).isnan()
    assert accumulate(one, padded_texts([[4, 2], [0, 0]], 8), loss_sum, count).isfinite()


def test_a_batch_is_cut_into_equal_parts_or_not_at_all():
    batch = text_batch(6, 4)
    assert [len(x) for x, _ in cut(batch, 3)] == [2, 2, 2]
    assert torch.equal(torch.cat([y for _, y in cut(batch, 3)]), batch[1])
    for number in (4, 0, 12):
        with pytest.raises(ValueError, match="must divide the batch"):
            cut(batch, number)


def test_only_batch_norm_depends_on_the_number_of_micro_batches():
    plain = batch_norm_gaps(lambda k: MLP((64, 8, 10)), (2, 4), batch=16)
    assert all(gaps.gradient < 1e-12 and gaps.statistics == 0 for gaps in plain.values())
    normed = batch_norm_gaps(lambda k: ConvNet(4), (1, 2, 8), batch=16)
    assert normed[1] == (0, 0)
    assert 0.01 < normed[2].gradient < normed[8].gradient
    assert 0.01 < normed[2].statistics < normed[8].statistics


def test_the_gap_of_the_statistics_is_computed_by_hand():
    class Normed(nn.Sequential):
        """BatchNorm first, so that its input does not depend on the micro-batch."""

        def __init__(self):
            super().__init__(nn.Flatten(), nn.BatchNorm1d(64, momentum=1.0), nn.Linear(64, 10))

    found = batch_norm_gaps(lambda k: Normed(), (2,), batch=4)[2].statistics
    images = digits_batch(4)[0].flatten(1).double()
    last, whole = ([half.mean(0), half.var(0)] for half in (images[2:], images))
    expected = (torch.cat(last) - torch.cat(whole)).norm() / torch.cat(whole).norm()
    assert found == pytest.approx(expected.item(), rel=1e-6)


def test_digits_are_trained_on_the_same_images_whatever_the_window():
    small, large = (train_digits(window, 0.05, num_microbatches=64) for window in (1, 16))
    assert small.images == large.images == [256, 512]
    assert small.losses[-1] < large.losses[-1] < 2.4  # 64 updates against 4
    scaled = train_digits(16, 16 * 0.05, num_microbatches=64)
    assert scaled.losses[-1] < large.losses[-1]


def test_the_last_window_counts_even_if_it_is_not_full():
    whole = train_digits(32, 0.05, num_microbatches=32).losses
    alone = train_digits(48, 0.05, num_microbatches=32).losses  # one window, never filled
    torch.testing.assert_close(alone, whole)


def test_a_window_of_one_is_plain_sgd():
    torch.manual_seed(3)
    plain = MLP((64, 32, 10))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    for step in range(1, 33):
        optimizer.zero_grad()
        plain.loss(*digits_batch(8, seed=3, step=step)).backward()
        optimizer.step()
    found = train_digits(1, 0.05, seed=3, num_microbatches=32).losses
    torch.testing.assert_close(found, plain.loss(*digits()[:2]).detach().reshape(1))


def test_every_window_that_is_timed_is_an_update():
    one, batch = model(), text_batch(4, 8)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    found = window_seconds(one, optimizer, batch, (1, 2), repeats=2)
    assert list(found) == [1, 2]
    assert min(found.values()) > 0
    other = model()
    for _ in range(2 * (2 + 1)):  # and one of each to warm up
        other.zero_grad()
        other.loss(*batch).backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
    for mine, right in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)
