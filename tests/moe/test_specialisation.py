"""Mutual information by hand, and what the shuffle leaves of it."""

import math

import pytest
import torch

from pedagogy.moe import joint_counts, mutual_information, shuffled_information, token_classes
from pedagogy.moe.specialisation import CLASSES


def test_bytes_have_the_class_that_a_reader_would_give_them():
    ids = torch.tensor(list(b"aZ7 \n.,\xff")).view(2, 4)
    named = [[CLASSES[i] for i in row] for row in token_classes(ids).tolist()]
    assert named == [
        ["letter", "letter", "digit", "space"],
        ["space", "punctuation", "punctuation", "punctuation"],
    ]


def test_tokens_are_counted_by_class_and_expert():
    classes, experts = torch.tensor([[0, 0], [3, 1]]), torch.tensor([[1], [1], [0], [2]])
    counts = joint_counts(classes, experts, 3)
    assert counts.tolist() == [[0, 2, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="4 classes for 3 choices"):
        joint_counts(classes, experts[:3], 3)


def test_mutual_information_is_worked_by_hand():
    assert mutual_information(torch.tensor([[4, 0], [0, 4]])) == pytest.approx(1)  # one bit
    assert mutual_information(torch.tensor([[2, 6], [1, 3]])) == pytest.approx(0, abs=1e-12)
    # p = 3/8 and 1/8, both sums 1/2: 2 (3/8 log2(3/2) + 1/8 log2(1/2))
    expected = 0.75 * math.log2(1.5) - 0.25
    assert mutual_information(torch.tensor([[3, 1], [1, 3]])) == pytest.approx(expected)
    with pytest.raises(ValueError, match="no tokens"):
        mutual_information(torch.zeros(4, 2))


def test_shuffling_keeps_the_loads_and_cuts_the_relation():
    classes = torch.arange(400) % 4
    related = mutual_information(joint_counts(classes, classes, 4))
    chance = shuffled_information(classes, classes.view(-1, 1), 4, shuffles=20)
    assert related == pytest.approx(2)
    # nine degrees of freedom: the mean is about 9 / (2 n ln 2) bits
    assert sum(chance) / 20 == pytest.approx(9 / (800 * math.log(2)), rel=0.5)
    assert chance == shuffled_information(classes, classes, 4, shuffles=20)
    assert chance != shuffled_information(classes, classes, 4, shuffles=20, seed=1)
    alone = shuffled_information(classes, torch.zeros_like(classes), 4, shuffles=3)
    assert alone == pytest.approx([0, 0, 0], abs=1e-12)  # one expert tells nothing
