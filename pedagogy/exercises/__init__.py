"""Exercises and predictions: `check` a function, `predict` a number, ask for `hint` or `solution`.

A chapter gives a stub that returns None; the reader fills it in and calls `check(stub)`, which
never raises and prints one line: not attempted yet, correct, or what is wrong and why. The "why"
comes from comparing the answer with those of known mistakes (`pedagogy.exercises.engine`).

`chapter00.py`, `chapter01.py`, ... hold the exercises of one chapter each and register them; they
are imported when a name is first looked up.
"""

from pedagogy.exercises.engine import check, hint, solution
from pedagogy.exercises.prediction import predict

__all__ = ["check", "hint", "predict", "solution"]
