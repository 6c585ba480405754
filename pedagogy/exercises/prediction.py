"""Questions answered before anything runs: `predict("name", answer)`.

The key is computed by the package when it is asked for, never typed, so a prediction cannot drift
from what the chapter then measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pedagogy.exercises.compare import brief, difference
from pedagogy.exercises.registry import find

NOT_ANSWERED = "not answered yet"


@dataclass(frozen=True)
class Prediction:
    """A question whose answer is a number, a word, a truth value, or a list of these.

    `key` and each wrong answer in `mistakes` (pairs of answer and explanation) are values or
    functions without arguments. A number is right within `tolerance`, relative to the key (and
    absolute where the key is below 1). `because` is said after the right answer.
    """

    name: str
    chapter: str
    question: str
    key: Any
    tolerance: float = 0.01
    unit: str = ""
    mistakes: Sequence[tuple[Any, str]] = ()
    because: str = ""


def predict(name: str, answer: Any = None) -> None:
    """One line is printed: not answered yet, correct, or what the answer overlooks."""
    try:
        text = judge(find(name, Prediction), answer)
    except Exception as error:  # a reader's answer may be anything
        text = str(error)
    print(" ".join(f"{name}: {text}".split()))


def judge(prediction: Prediction, answer: Any) -> str:
    """What is to be said about this answer, without the prediction's name."""
    if answer is None:
        return NOT_ANSWERED
    key = _value(prediction.key)
    if _agree(answer, key, prediction.tolerance):
        return f"correct: {_quantity(key, prediction.unit)}. {prediction.because}"
    for wrong, why in prediction.mistakes:
        if _agree(answer, _value(wrong), prediction.tolerance):
            return f"not {_quantity(answer, prediction.unit)}: {why}"
    return f"not {_quantity(answer, prediction.unit)}{_direction(answer, key)}"


def _value(value: Any) -> Any:
    return value() if callable(value) else value


def _agree(answer: Any, key: Any, tolerance: float) -> bool:
    if isinstance(answer, str) and isinstance(key, str):
        return answer.strip().casefold() == key.strip().casefold()
    return difference(answer, key, tolerance) is None


def _quantity(value: Any, unit: str) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, int) and number:
        text = f"{value:,}" if abs(value) >= 10_000 else str(value)
    else:
        text = brief(value)
    return f"{text} {unit}".strip() if number else text


def _direction(answer: Any, key: Any) -> str:
    """For numbers, on which side the answer lies; for other kinds, which kind was asked for."""
    numbers = (int, float)
    if isinstance(key, numbers) and not isinstance(key, bool):
        if not isinstance(answer, numbers) or isinstance(answer, bool):
            return "; a number was asked for"
        return "; it is less than that" if answer > key else "; it is more than that"
    if type(answer) is not type(key):
        return f"; a {type(key).__name__} was asked for"
    return "; think again, then run the next cells and see"
