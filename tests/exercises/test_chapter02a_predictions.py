"""Chapter 02a: what `predict` says to natural answers, right and wrong."""

from __future__ import annotations

import pytest

from pedagogy.exercises import prediction
from pedagogy.exercises.chapter02a_predictions import (
    AT_4P,
    BUBBLE,
    MESSAGES,
    PEAKS,
    UTILISATION,
)
from pedagogy.exercises.chapter02a_stuck import DRAIN, SLOW


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (BUBBLE, "3/19"),
        (BUBBLE, "15.8%"),
        (BUBBLE, 0.16),
        (AT_4P, 0.18),
        (AT_4P, "7/39"),
        (MESSAGES, "7/3"),
        (MESSAGES, 2.33),
        (PEAKS, (8, 4)),
    ],
)
def test_a_right_prediction_may_be_written_in_many_ways(asked, answer):
    assert prediction.judge(asked, answer).startswith("correct")


def test_negligible_is_asked_for_as_a_number():
    assert "put a number on it" in prediction.judge(AT_4P, "negligible")
    assert "the line fills and drains" in prediction.judge(AT_4P, 0)


@pytest.mark.parametrize(
    ("asked", "answer", "advice"),
    [
        (UTILISATION, 25, "as a share, 0.25, or '25%'"),
        (UTILISATION, 75, "as a share, 0.75, or '75%'"),
        (BUBBLE, 15.8, "as a share, 0.158, or '15.8%'"),
        (AT_4P, 17.9, "as a share"),
        (AT_4P, "25%", "32 steps are the work alone"),
        (AT_4P, 0.2, "the whole time is 39 steps"),
        (AT_4P, 0.05, "7 of the 32"),
        (SLOW, 15 + 8 * 6, "7 times the slow one, 6, not 8 times"),
        (SLOW, 36, "slow for each of the 8"),
        (DRAIN, [9, 3], "the forward is no part of it"),
    ],
)
def test_a_natural_wrong_prediction_is_explained(asked, answer, advice):
    assert advice in prediction.judge(asked, answer)


def test_a_number_that_is_no_share_is_not_read_as_percent():
    assert prediction.judge(UTILISATION, 30).endswith("it is less than that")
    assert prediction.judge(SLOW, 5700).endswith("it is less than that")


def test_the_two_bubbles_that_are_asked_for_differ():
    assert abs(AT_4P.key() - BUBBLE.key()) > AT_4P.tolerance + BUBBLE.tolerance
