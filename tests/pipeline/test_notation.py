"""A schedule can be written as text, and read back."""

import pytest

from pedagogy.pipeline import (
    Action,
    gpipe_recomputing,
    interleaved,
    naive,
    one_f_one_b,
    pipedream,
    schedule_text,
    zero_bubble_h2,
)
from pedagogy.pipeline.notation import parse_schedule

SCHEDULES = [
    naive(1, 1),
    gpipe_recomputing(3, 4),
    one_f_one_b(4, 12),
    interleaved(2, 4, 3),
    zero_bubble_h2(3, 5),
    pipedream(4, 5),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reading_is_the_inverse_of_writing(schedule):
    assert parse_schedule(schedule_text(schedule)) == schedule


def test_a_word_without_a_stage_belongs_to_the_stage_of_its_line():
    read = parse_schedule("\n F0  b0 \n\n F0@3, W12\n")
    assert read == [
        [Action("F", 0, 0), Action("B", 0, 0)],
        [Action("F", 3, 0), Action("W", 1, 12)],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line"),
        ("F0 B0\nF0 X0", "rank 1: 'X0' is no action"),
        ("F0 B", "rank 0: 'B' is no action"),
        ("F0@", "rank 0: 'F0@' is no action"),
        ("F-1", "rank 0: 'F-1' is no action"),
    ],
)
def test_what_is_no_action_is_named_with_its_rank(text, message):
    with pytest.raises(ValueError, match=message):
        parse_schedule(text)
