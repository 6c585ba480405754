"""`check` says one line about any function, whatever the function does."""

from __future__ import annotations

import pytest
import torch

from pedagogy.exercises import attempt, check, engine, hint, predict, solution
from pedagogy.exercises.registry import register, unregister
from tests.exercises.toys import AVERAGE, BYTES, MEAN, toy_average, toy_mean


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """The toys are registered during a test, and no hint was given yet."""
    monkeypatch.setattr(engine, "_hints_given", {})
    register(MEAN, AVERAGE, BYTES)
    yield
    unregister(MEAN, AVERAGE, BYTES)


def said(function, capsys, name="toy_mean") -> str:
    """The one line that check prints about this function."""
    function.__name__ = name
    check(function)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    return out.removeprefix(f"{name}: ").rstrip("\n")


def raises_not_implemented(x):
    raise NotImplementedError("write me")


@pytest.mark.parametrize("stub", [lambda x: None, raises_not_implemented])
def test_a_stub_is_not_attempted_yet(stub, capsys):
    assert said(stub, capsys) == "not attempted yet (it returns None)"


def test_the_reference_is_correct(capsys):
    check(toy_mean)
    assert capsys.readouterr().out == "toy_mean: correct, in 2 of 2 cases\n"


def test_a_known_mistake_is_explained(capsys):
    text = said(lambda x: torch.sum(x), capsys)
    assert text == (
        "not yet. For (tensor([1, 2])): it is 3, and 1.5 was expected. "
        "This is the sum: divide by the number of elements."
    )


def test_an_unknown_mistake_says_what_differs(capsys):
    assert said(lambda x: x.max(), capsys) == (
        "not yet. For (tensor([1, 2])): it is 2, and 1.5 was expected."
    )


def test_an_error_names_the_line_of_the_learners_own_code(capsys):
    def raises(x):
        return x[7]  # there is no seventh

    text = said(raises, capsys)
    assert text.startswith("not yet. It raises IndexError: index 7 is out of bounds")
    assert "`return x[7] # there is no seventh`" in text


def test_an_error_like_a_known_mistakes_is_explained(capsys):
    text = said(lambda x: x.sum() / x.numel, capsys)
    assert "TypeError" in text
    assert text.endswith("numel is a method: call it.")


def test_another_error_of_the_same_type_is_not_explained(capsys):
    text = said(lambda x: x.sum() / "two", capsys)
    assert "TypeError" in text
    assert "numel" not in text


def test_an_endless_loop_is_stopped(capsys, monkeypatch):
    monkeypatch.setattr(attempt, "HERE_SECONDS", 0.3)

    def loops(x):
        while True:
            x = x + 1

    assert said(loops, capsys).startswith("not yet. No end after")


def test_an_input_changed_in_place_is_named(capsys):
    def changes(x):
        x += 1
        return x.mean() - 1

    text = said(changes, capsys)
    assert text.startswith("not yet. It changes its argument `x` in place.")
    assert text.endswith("div_ writes into the caller's tensor: use /.")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda x: [x.mean()], "it is a list ([1.5]), and a number was expected."),
        (lambda x: x, "it is a Tensor (tensor([1, 2])), and a number was expected."),
        (lambda x: x.mean() * float("nan"), "it is NaN (0/0, or inf - inf, somewhere on the way)."),
        (lambda x: str(x.mean()), "it is a str ('tensor(1.5000)'), and a number was expected."),
    ],
)
def test_a_wrong_kind_of_answer_is_named(answer, problem, capsys):
    assert said(answer, capsys) == f"not yet. For (tensor([1, 2])): {problem}"


def test_a_wrong_number_of_arguments_is_an_error_like_any_other(capsys):
    assert "positional argument" in said(lambda: 1, capsys)


def test_even_an_exit_is_answered(capsys):
    def leaves(x):
        raise SystemExit(3)

    assert said(leaves, capsys).startswith("not yet. It raises SystemExit: 3")


def test_an_unknown_function_is_told_what_exercises_there_are(capsys):
    text = said(lambda x: x, capsys, name="no_such")
    assert "no exercise is called 'no_such'" in text
    assert "toy_mean" in text


def test_what_is_no_function_is_told_so(capsys):
    check(3)
    assert capsys.readouterr().out == "check takes the function itself, check(name), not 3\n"


def test_on_ranks_a_stub_is_not_attempted_and_the_reference_is_correct(capsys):
    assert said(lambda group, x: None, capsys, "toy_average").startswith("not attempted yet")
    check(toy_average)
    assert capsys.readouterr().out == "toy_average: correct, in 2 of 2 cases on 2 ranks\n"


def test_on_ranks_a_wrong_answer_names_the_rank_and_the_reason(capsys):
    def only_on_rank_1(group, x):
        result = toy_average(group, x)
        return result + group.rank

    text = said(only_on_rank_1, capsys, "toy_average")
    assert text.startswith("not yet. On rank 1, for (tensor([2, 4])): 2 of 2 elements differ")


def test_on_ranks_a_dead_lock_is_explained(capsys):
    def both_receive(group, x):
        other = group.recv(1 - group.rank)
        group.send(x, 1 - group.rank)
        return (x + other) / 2

    text = said(both_receive, capsys, "toy_average")
    assert "rank 1: recv (rank 0)" in text
    assert text.endswith("Both ranks receive first, so neither ever sends: let one send first.")


def test_on_ranks_an_error_is_told_in_one_line(capsys):
    def divides(group, x):
        return x / (1 // group.rank)

    text = said(divides, capsys, "toy_average")
    assert text.startswith("not yet. Rank 0 raised ZeroDivisionError: integer")
    assert "`return x / (1 // group.rank)`" in text


def test_on_ranks_an_endless_loop_is_stopped(capsys, monkeypatch):
    monkeypatch.setattr(attempt, "RANK_SECONDS", 1.0)

    def loops(group, x):
        while True:
            x = x + 1

    assert said(loops, capsys, "toy_average").startswith("not yet. No end after")


def test_on_ranks_a_missed_target_is_told_and_explained(capsys):
    def twice(group, x):
        toy_average(group, x)
        return toy_average(group, x)

    text = said(twice, capsys, "toy_average")
    assert text.startswith("not yet. The numbers are right, but a rank sends")
    assert text.endswith("Each value crosses the wire twice: once is enough.")


def test_hints_come_one_by_one(capsys):
    for _ in range(3):
        hint("toy_mean")
    assert capsys.readouterr().out.splitlines() == [
        "Hint 1 of 2: What does x.sum() give?",
        "Hint 2 of 2: How many elements are there?",
        "No more hints. solution('toy_mean') shows one way to write it.",
    ]


def test_a_solution_shows_the_reference(monkeypatch):
    shown = []
    monkeypatch.setattr("pedagogy.notebook.show", shown.append)
    solution("toy_mean")
    assert shown == [toy_mean]


def test_two_chapters_cannot_share_a_name():
    from dataclasses import replace

    with pytest.raises(ValueError, match=r"toy and 99 both register 'toy_mean'"):
        register(replace(MEAN, chapter="99"))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "not answered yet"),
        (4000, "correct: 4000 bytes. 32 bits are 4 bytes."),
        (4030.0, "correct: 4000 bytes. 32 bits are 4 bytes."),
        (1000, "not 1000 bytes: that is the count: each number has 4 bytes."),
        (5000, "not 5000 bytes; it is less than that"),
        (300, "not 300 bytes; it is more than that"),
        ("4000", "not '4000'; a number was asked for"),
        (torch.ones(2), "not tensor([1, 1]); a number was asked for"),
    ],
)
def test_a_prediction_is_answered_in_one_line(answer, text, capsys):
    predict("toy_bytes", answer)
    assert capsys.readouterr().out == f"toy_bytes: {text}\n"


def test_an_unknown_prediction_is_told_what_predictions_there_are(capsys):
    predict("nope", 1)
    assert "toy_bytes" in capsys.readouterr().out
