"""`predict` reads an answer in any form and says one line about it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from pedagogy.exercises import hint, predict
from pedagogy.exercises.prediction import judge
from tests.exercises.toys import BYTES


def test_a_prediction_has_no_hints(capsys):
    hint("toy_bytes")
    assert capsys.readouterr().out == (
        "'toy_bytes' is a prediction: there are no hints and no solution, "
        "predict('toy_bytes', answer) answers it\n"
    )


def test_an_exercise_is_not_predicted(capsys):
    predict("toy_mean", 3)
    assert capsys.readouterr().out == (
        "toy_mean: 'toy_mean' is an exercise: write the function, and check(toy_mean) says what "
        "it does\n"
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "not answered yet"),
        (4000, "correct: 4000 bytes. 32 bits are 4 bytes."),
        (4030.0, "correct: 4000 bytes. 32 bits are 4 bytes."),
        (1000, "not 1000 bytes: that is the count: each number has 4 bytes."),
        (5000, "not 5000 bytes; it is less than that"),
        (300, "not 300 bytes; it is more than that"),
        ("4000", "correct: 4000 bytes. 32 bits are 4 bytes."),
        ("5_000", "not 5000 bytes; it is less than that"),
        ("many", "not 'many'; a number was asked for"),
        ("nan", "not nan bytes; a number was asked for"),
        (True, "not True; a number was asked for"),
        (torch.ones(2), "not [1, 1]; a number was asked for"),
    ],
)
def test_a_prediction_is_answered_in_one_line(answer, text, capsys):
    predict("toy_bytes", answer)
    assert capsys.readouterr().out == f"toy_bytes: {text}\n"


ALL_FORMS = [4000, 4000.0, Fraction(8000, 2), Decimal(4000), np.int64(4000), np.float32(4000)]
ALL_FORMS += [torch.tensor(4000), torch.tensor([[4000.0]]), np.array([4000])]
ALL_FORMS += ["4000", "4e3", " 4,000 ", "4_000", "8000/2", "8_000 / 2.0", "400000%", "4000 bytes"]


@pytest.mark.parametrize("answer", ALL_FORMS, ids=repr)
def test_a_number_may_be_given_in_any_form(answer):
    assert judge(replace(BYTES, tolerance=0.0), answer).startswith("correct: 4000 bytes")


@pytest.mark.parametrize(("answer", "key"), [("1/5", 0.2), ("20%", 0.2), ("3.5e6", 3_500_000)])
def test_a_number_in_text_is_read(answer, key):
    assert judge(replace(BYTES, key=key, tolerance=1e-12), answer).startswith("correct")
    assert judge(replace(BYTES, key=2 * key), answer).endswith("it is more than that")


@pytest.mark.parametrize("answer", ["1/0", "", "1/2/3", "%", "a/b", "1e3e3", [4000]])
def test_what_is_no_number_is_told_that_one_was_asked_for(answer):
    assert judge(BYTES, answer).endswith("a number was asked for")


@pytest.mark.parametrize(
    "answer", ["9" * 400, "9" * 5000, 10**400, "inf", float("inf")], ids=lambda x: str(x)[:4]
)
def test_a_number_beyond_all_bounds_is_too_large(answer):
    text = judge(BYTES, answer)
    assert text.endswith(" bytes; it is less than that")
    assert len(text) < 100


def test_a_large_number_is_told_in_full():
    text = judge(replace(BYTES, key=3e6, tolerance=0.0, because=""), 2_500_000.5)
    assert text == "not 2.5e+06 bytes; it is more than that"
    assert judge(replace(BYTES, key=3e6), 3_000_000).startswith("correct: 3,000,000 bytes.")


def test_a_list_may_be_given_as_a_tensor_or_as_text():
    column = replace(BYTES, key=[3.0, 1.0], unit="", mistakes=[([3.0, 2.0], "rank 1's.")])
    for answer in (torch.tensor([3, 1]), np.array([3.0, 1.0]), (3, 1), ["3", "1"]):
        assert judge(column, answer).startswith("correct: [3, 1]")
    assert judge(column, torch.tensor([3, 2])) == "not [3, 2]: rank 1's."
    assert judge(column, 3) == "not 3; a list of 2 was asked for, such as [?, ?]"
    assert judge(column, [3]) == "not [3]; a list of 2 was asked for"


@pytest.mark.parametrize("answer", [2, 2.5, True, ["backward"], "sideways"])
def test_a_question_of_words_says_among_which_to_choose(answer):
    phase = replace(BYTES, key="backward", unit="", mistakes=[("forward", "no."), ("step", "no.")])
    assert judge(phase, answer).endswith("; say 'backward', 'forward' or 'step'")
    assert judge(phase, " Backward ").startswith("correct")


def test_a_question_of_truth_asks_for_true_or_false():
    truth = replace(BYTES, key=True, unit="", mistakes=[])
    assert judge(truth, "yes") == "not 'yes'; say True or False"
    assert judge(truth, False) == "not False; think again, then run the next cells and see"


def test_an_unknown_prediction_is_answered_with_the_nearest_one(capsys):
    predict("toy_byte", 1)
    assert capsys.readouterr().out == (
        "toy_byte: no prediction is called 'toy_byte'; did you mean 'toy_bytes'?\n"
    )
