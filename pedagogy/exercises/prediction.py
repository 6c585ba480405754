"""Questions answered before anything runs: `predict("name", answer)`.

The key is computed by the package when it is asked for, never typed, so a prediction cannot drift
from what the chapter then measures.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pedagogy.exercises.compare import brief, difference
from pedagogy.exercises.registry import find

NOT_ANSWERED = "not answered yet"


@dataclass(frozen=True)
class Prediction:
    """A question whose answer is a number, a word, a truth value, or a list of these.

    `key` and each wrong answer in `mistakes` (pairs of answer and explanation) are values or
    functions without arguments. A number is right within `tolerance`, relative to the key (and
    absolute where the key is below 1); it may be written as text: "3.5e6", "1/5", "20%", "1_000".
    `because` is said after the right answer.
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
    answer = _in_the_form_of(key, answer, prediction.unit)
    if _agree(answer, key, prediction.tolerance):
        return f"correct: {_quantity(key, prediction.unit)}. {prediction.because}"
    for wrong, why in prediction.mistakes:
        if _agree(answer, _value(wrong), prediction.tolerance):
            return f"not {_quantity(answer, prediction.unit)}: {why}"
    if _is_percent(prediction, key, answer):
        return f"not {brief(answer)}: as a share, {brief(answer / 100)}, or '{brief(answer)}%'"
    text = f"not {_quantity(answer, prediction.unit)}; "
    choices = _choices(prediction, key)
    if choices and not any(_agree(answer, choice, 0.0) for choice in choices):
        return text + f"say {_or(choices)}"
    return text + _advice(answer, key)


def _is_percent(prediction: Prediction, key: Any, answer: Any) -> bool:
    """Whether a share was asked for, and this is one in percent, right or with a known mistake."""
    if prediction.unit or not (_is_number(key) and 0 < key < 1):
        return False
    if not (_is_number(answer) and 1 < answer <= 100):
        return False
    shares = [key, *(_value(wrong) for wrong, _ in prediction.mistakes)]
    return any(_agree(answer / 100, share, prediction.tolerance) for share in shares)


def _value(value: Any) -> Any:
    return value() if callable(value) else value


def _agree(answer: Any, key: Any, tolerance: float) -> bool:
    if isinstance(answer, str) and isinstance(key, str):
        return answer.strip().casefold() == key.strip().casefold()
    return difference(answer, key, tolerance) is None


def _in_the_form_of(key: Any, answer: Any, unit: str) -> Any:
    """The answer as what the key is, where it can be read as that; else as it was given."""
    if isinstance(answer, (torch.Tensor, np.ndarray, np.generic)):
        several = isinstance(key, (list, tuple)) or math.prod(answer.shape) != 1
        answer = answer.tolist() if several else answer.item()
    if isinstance(key, (list, tuple)) and isinstance(answer, (list, tuple)):
        if len(key) != len(answer):
            return answer
        return [_in_the_form_of(one, other, "") for one, other in zip(key, answer, strict=True)]
    if not _is_number(key):
        return answer
    if isinstance(answer, str):
        return _read(answer, unit)
    fraction = isinstance(answer, numbers.Number) and not isinstance(answer, (int, complex))
    return float(answer) if fraction else answer


def _read(text: str, unit: str) -> Any:
    """The number that is written in the text, or the text."""
    plain = text.strip().removesuffix(unit).replace(" ", "").replace(",", "")
    percent = plain.endswith("%")
    try:
        parts = [_whole_or_float(part) for part in plain.removesuffix("%").split("/")]
        if len(parts) > 2:
            return text
        value = parts[0] if len(parts) == 1 else parts[0] / parts[1]
    except (ValueError, ArithmeticError):
        return text
    return value / 100 if percent else value


def _whole_or_float(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _quantity(value: Any, unit: str) -> str:
    if not _is_number(value):
        return brief(value)
    if not 10_000 <= abs(value) < 1e15 or value != int(value):
        return f"{brief(value)} {unit}".strip()
    return f"{int(value):,} {unit}".strip()


def _choices(prediction: Prediction, key: Any) -> list[Any]:
    """The answers among which a question of words or of truth lets one choose."""
    if isinstance(key, bool):
        return [True, False]
    if not isinstance(key, str):
        return []
    wrong = [_value(answer) for answer, _ in prediction.mistakes]
    return sorted({key, *(answer for answer in wrong if isinstance(answer, str))})


def _or(choices: Sequence[Any]) -> str:
    *first, last = map(repr, choices)
    return f"{', '.join(first)} or {last}" if first else "a word in quotes"


def _advice(answer: Any, key: Any) -> str:
    """For numbers, on which side the answer lies; for other kinds, which kind was asked for."""
    if _is_number(key):
        if not _is_number(answer) or answer != answer:
            return "a number was asked for"
        return "it is less than that" if answer > key else "it is more than that"
    if isinstance(key, (list, tuple)):
        if not isinstance(answer, (list, tuple)):
            return f"a list of {len(key)} was asked for, such as [{', '.join('?' for _ in key)}]"
        if len(answer) != len(key):
            return f"a list of {len(key)} was asked for"
    return "think again, then run the next cells and see"
