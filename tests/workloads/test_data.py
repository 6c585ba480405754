"""The data: real, deterministic, and independent of everything but seed and step."""

from __future__ import annotations

import pytest
import torch

from pedagogy.workloads import digits, digits_batch, text, text_batch


def test_text_is_bytes_with_some_outside_ascii():
    corpus = text()
    assert corpus.dtype == torch.uint8
    assert len(corpus) > 100_000
    assert int(corpus.max()) > 127
    bytes(corpus.tolist()).decode("utf-8")  # a broken join would not decode


def test_a_target_is_the_byte_after_its_input():
    inputs, targets = text_batch(4, 16)
    assert inputs.shape == targets.shape == (4, 16)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    haystack = bytes(text().tolist())
    window = bytes([*inputs[0].tolist(), int(targets[0, -1])])
    assert window in haystack


@pytest.mark.parametrize(
    "draw", [lambda **kw: text_batch(8, 16, **kw), lambda **kw: digits_batch(8, **kw)]
)
def test_a_batch_depends_on_seed_and_step_and_on_nothing_else(draw):
    first = draw(seed=3, step=5)
    torch.manual_seed(123)
    draw(seed=0, step=0)
    again = draw(seed=3, step=5)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], draw(seed=3, step=6)[0])
    assert not torch.equal(first[0], draw(seed=4, step=5)[0])
    assert not torch.equal(draw(seed=1, step=0)[0], draw(seed=0, step=1)[0])


def test_batches_do_not_share_memory_with_the_corpus_or_each_other():
    inputs, targets = text_batch(2, 8)
    inputs.zero_()
    assert int(text_batch(2, 8)[0].sum()) > 0
    assert torch.equal(targets, text_batch(2, 8)[1])


def test_digits_are_normalised_by_the_training_images_and_split_without_overlap():
    train_x, train_y, test_x, test_y = digits()
    assert train_x.shape == (1437, 1, 8, 8)
    assert test_x.shape == (360, 1, 8, 8)
    assert train_x.dtype == torch.float32
    assert train_y.dtype == torch.int64
    assert abs(float(train_x.mean())) < 1e-6
    assert abs(float(train_x.std(correction=0)) - 1) < 1e-6
    assert set(test_y.tolist()) == set(range(10))
    assert len(train_y) + len(test_y) == 1797


def test_digits_pair_each_image_with_its_own_label():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    label_of = {bytes(i.astype("uint8")): y for i, y in zip(images, labels, strict=True)}
    train_x, train_y, test_x, test_y = digits()
    for x, y in ((train_x, train_y), (test_x, test_y)):
        zero = x.min()  # the pixel value 0
        step = (x.max() - zero) / 16
        pixels = ((x - zero) / step).round().to(torch.uint8).flatten(1)
        assert [label_of[bytes(row)] for row in pixels.tolist()] == y.tolist()
        assert abs(float(zero) + images.mean() / images.std()) < 0.02  # of all, not of training


@pytest.mark.parametrize(("batch", "sequence"), [(0, 8), (-1, 8), (2, 0), (2, 10**9)])
def test_impossible_sizes_are_refused_with_the_numbers(batch, sequence):
    with pytest.raises(ValueError, match=f"batch {batch} and sequence {sequence}"):
        text_batch(batch, sequence)


def test_an_empty_batch_of_digits_is_refused():
    with pytest.raises(ValueError, match="batch 0"):
        digits_batch(0)
