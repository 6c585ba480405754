"""Each test knows the toys, and no hint has been given yet."""

from __future__ import annotations

import pytest

from pedagogy.exercises import engine
from pedagogy.exercises.registry import register, unregister
from tests.exercises.toys import AVERAGE, BYTES, MEAN


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """The toys are registered during a test, and no hint was given yet."""
    monkeypatch.setattr(engine, "_hints_given", {})
    register(MEAN, AVERAGE, BYTES)
    yield
    unregister(MEAN, AVERAGE, BYTES)
