"""Two answers agree within a tolerance, and the first difference is named."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pedagogy.exercises.compare import brief, difference

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers()
answers = st.recursive(
    numbers | st.text() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


class Silent:
    """An answer that can neither be told nor be compared."""

    def __repr__(self):
        raise ValueError("no repr")

    def __eq__(self, other):
        raise ValueError("no comparison")


def test_an_integer_with_too_many_digits_is_named_by_its_class():
    assert difference(10**5000, 7.5, 1e-6) == "it is an int, and 7.5 was expected"


@given(answers)
def test_every_answer_agrees_with_itself(answer):
    assert difference(answer, answer, 0.0) is None


@given(st.floats(-1e6, 1e6), st.floats(1e-9, 1e-2))
def test_a_number_agrees_within_the_tolerance_and_not_beyond(want, tolerance):
    allowed = tolerance * max(1.0, abs(want))
    assert difference(want + 0.9 * allowed, want, tolerance) is None
    assert difference(want + 1.1 * allowed, want, tolerance) is not None
    both = torch.tensor([want, want], dtype=torch.float64)
    assert difference(both + 0.9 * allowed, both, tolerance) is None
    assert difference(both + 1.1 * allowed, both, tolerance) is not None


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        (torch.ones(4, 3), torch.ones(3, 4), "the shape is (4, 3), and (3, 4) was expected"),
        (torch.ones(2).double(), torch.ones(2), "the dtype is torch.float64, and torch.float32"),
        ([1.0], torch.ones(1), "it is a list, and a tensor of shape (1,) was expected"),
        (torch.tensor([1.0, 5.0]), torch.ones(2), "element [1] is 5, and 1 was expected"),
        (torch.tensor([math.nan, 1.0]), torch.ones(2), "1 of 2 elements are NaN"),
        (torch.tensor([3.0]), torch.tensor([math.inf]), "element [0] is 3, and inf was expected"),
        (math.inf, 3.0, "it is inf, and 3 was expected"),
        ([1, 2], [1, 2, 3], "it has 2 elements, and 3 were expected"),
        (3, (1, 2), "it is an int, and a tuple of 2 was expected"),
        ([1, [2, 4]], [1, [2, 3]], "element 1, element 1: it is 4, and 3 was expected"),
        ({"a": 1}, {"a": 1, "b": 2}, "the dict lacks 'b'"),
        ({"a": 1, "c": 0}, {"a": 1}, "the dict has 'c' too many"),
        ({"a": 2}, {"a": 1}, "a: it is 2, and 1 was expected"),
        ({3: 2}, {3: 1}, "key 3: it is 2, and 1 was expected"),
        ({"losses": [0, 0, 9]}, {"losses": [0, 0, 1]}, "losses, element 2: it is 9, and 1 was"),
        (True, 1, "it is a bool (True), and a number was expected"),
        (10**400, 1.5, "it is 1000"),
        ("B", "A", "it is 'B', and 'A' was expected"),
        (None, 3, "it is None (None), and a number was expected"),
        (Decimal(5), 7.5, "it is Decimal('5'), and 7.5 was expected"),
        (Decimal("sNaN"), 7.5, "it is a Decimal, and 7.5 was expected"),
        (Silent(), 7.5, "it is a Silent (a Silent), and a number was expected"),
        (Silent(), (7.5,), "it is a Silent, and a tuple of 1 was expected"),
        (Silent(), "A", "it is a Silent (a Silent), and a str was expected"),
        (Silent(), object, "it is a Silent, and <class 'object'> was expected"),
        (np.array([Silent()]), torch.ones(1), "it is a ndarray, and a tensor of shape (1,) was"),
        (np.array(["a"]), [1.0], "it is a ndarray, and a list of 1 was expected"),
        (torch.eye(2).to_sparse(), torch.eye(2), "the layout is torch.sparse_coo, and torch.str"),
        (torch.eye(2).to_sparse(), 1.0, "it is a Tensor (a tensor of shape (2, 2)), and a number"),
        (torch.ones(2, device="meta"), torch.ones(2), "on the device meta, where tensors hold no"),
        (torch.tensor(1.0, device="meta"), 1.0, "it is a Tensor (a tensor of shape ()), and a num"),
    ],
)
def test_the_first_difference_is_named(got, want, says):
    assert says in difference(got, want, 1e-6)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (torch.tensor(3.0), 3.0),
        (np.float32(0.5), 0.5),
        (np.arange(3.0), torch.arange(3.0, dtype=torch.float64)),
        ((1, 2), [1, 2]),
        (torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, math.inf])),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j])),
    ],
)
def test_what_means_the_same_agrees(got, want):
    assert difference(got, want, 1e-6) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(3, 4), "a tensor of shape (3, 4)"),
        (torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), "a Sequential"),
        (torch.optim.Adam(torch.nn.Linear(2, 3).parameters()), "an Adam"),
        ({"dp": 2, "tp": 4}, "{'dp': 2, 'tp': 4}"),
    ],
)
def test_a_value_is_named_in_a_few_words(value, text):
    assert brief(value) == text


@given(answers)
def test_no_value_is_told_at_length(answer):
    assert len(brief(answer)) <= 68
    assert len(difference([answer], [object()], 0.0)) <= 200
