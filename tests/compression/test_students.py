"""Students with few labels and with many, alone and taught."""

from __future__ import annotations

import statistics

import pytest
import torch

from pedagogy.compression import students
from pedagogy.compression.students import NUM_LABELS, WAYS, distil, record, recorded_distillation
from pedagogy.workloads import digits


def test_a_student_sees_only_the_first_labelled_digits(monkeypatch):
    images, labels, *test = digits()
    garbled = torch.where(torch.arange(len(labels)) < 50, labels, 0)
    before = distil(50, None, seed=0, steps=20)
    monkeypatch.setattr(students, "digits", lambda: (images, garbled, *test))
    assert distil(50, None, seed=0, steps=20) == before
    assert distil(1437, None, seed=0, steps=20) != before


def test_a_teacher_that_counts_for_nothing_leaves_the_student_alone():
    alone = distil(100, None, seed=1, steps=30)
    assert distil(100, 4.0, seed=1, steps=30, alpha=0.0) == alone
    assert distil(100, 4.0, seed=1, steps=30) != alone


def test_labels_that_there_are_not_are_refused():
    for count in (0, 1438):
        with pytest.raises(ValueError, match=f"{count} labelled digits: from 1 to 1437"):
            distil(count, None, seed=0)


def test_the_recorded_students_are_those_of_the_function(tmp_path):
    recorded = recorded_distillation()
    assert tuple(recorded) == NUM_LABELS
    assert all(list(ways) == list(WAYS) for ways in recorded.values())
    assert all(len(found) == 5 for ways in recorded.values() for found in ways.values())
    assert distil(50, None, seed=0) == pytest.approx(recorded[50]["alone"][0], abs=0.03)
    record(tmp_path / "again.csv", [50], [0], steps=3)
    first, *lines = (tmp_path / "again.csv").read_text().splitlines()
    assert first.startswith("# pedagogy.compression.students.distil(labels, T, seed, steps=3)")
    assert [line.split(",")[:3] for line in lines] == [["50", way, "0"] for way in WAYS]


def test_a_teacher_helps_with_few_labels_and_not_with_all():
    means = {
        count: {way: statistics.mean(found) for way, found in ways.items()}
        for count, ways in recorded_distillation().items()
    }
    gains = {count: ways["T = 4"] - ways["alone"] for count, ways in means.items()}
    assert gains[50] > 0.04
    assert gains[100] > 0.02
    assert gains[300] > 0.005
    assert gains[1437] < 0.005
