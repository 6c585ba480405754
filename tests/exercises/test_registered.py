"""Every exercise and prediction of the book keeps what `check` and `predict` promise."""

from __future__ import annotations

import pytest

from pedagogy.exercises import engine, prediction
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import all_items
from tests.exercises.toys import AVERAGE, BYTES, MEAN

EXERCISES = [MEAN, AVERAGE, *all_items(Exercise)]
PREDICTIONS = [BYTES, *all_items(Prediction)]

each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
each_prediction = pytest.mark.parametrize("asked", PREDICTIONS, ids=lambda one: one.name)
each_mistake = pytest.mark.parametrize(
    ("exercise", "mistake", "why"),
    [
        pytest.param(exercise, mistake, why, id=f"{exercise.name}-{number}")
        for exercise in EXERCISES
        for number, (mistake, why) in enumerate(exercise.mistakes, start=1)
    ],
)


@each_exercise
def test_a_blank_stub_is_not_attempted_yet(exercise):
    text = engine.explain(exercise, lambda *arguments: None)
    assert text.startswith(engine.NOT_ATTEMPTED)


@each_exercise
def test_the_reference_is_correct(exercise):
    assert engine.explain(exercise, exercise.reference).startswith(engine.CORRECT)


@each_mistake
def test_each_known_mistake_gets_its_own_explanation(exercise, mistake, why, monkeypatch):
    if exercise.ranks:  # one launch for each mistake: its verdict, beside those of the others
        monkeypatch.setattr(engine, "judge", engine.known_verdict)
    text = engine.explain(exercise, mistake)
    assert text.startswith(f"not yet. {why} ")


@each_exercise
def test_an_exercise_offers_hints_and_explains_mistakes(exercise):
    assert exercise.hints
    assert exercise.mistakes
    assert all(why.endswith(".") for _, why in exercise.mistakes)


@each_prediction
def test_the_key_is_correct_and_each_wrong_answer_is_named(asked):
    key = asked.key() if callable(asked.key) else asked.key
    assert prediction.judge(asked, key).startswith("correct")
    for wrong, why in asked.mistakes:
        wrong = wrong() if callable(wrong) else wrong
        assert prediction.judge(asked, wrong).endswith(why)


@each_prediction
def test_no_answer_is_not_answered_yet(asked):
    assert prediction.judge(asked, None) == prediction.NOT_ANSWERED
