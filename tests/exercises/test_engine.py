"""`check` says one line about any function, whatever the function does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pedagogy.exercises import attempt, check, hint, solution
from pedagogy.exercises.registry import register
from tests.exercises.toys import MEAN, said, toy_mean


def raises_not_implemented(x):
    raise NotImplementedError("write me")


def computes_and_forgets(x):
    x = x.sum()


@pytest.mark.parametrize("stub", [lambda x: None, raises_not_implemented, computes_and_forgets])
def test_a_stub_is_not_attempted_yet(stub, capsys):
    assert said(stub, capsys) == "not attempted yet (it returns None)"


def test_a_function_observed_to_change_nothing_is_not_attempted_yet(capsys):
    def observe(function, x):
        function(x)
        return x

    changes = replace(MEAN, reference=lambda x: x.zero_(), observe=observe, mistakes=[])
    register(changes)
    assert said(computes_and_forgets, capsys).startswith("not attempted yet")
    assert said(lambda x: x.zero_(), capsys).startswith("correct")


def documented(x, group=None):
    """The mean, to be written."""


def passes(x):
    pass


def has_dots(x): ...


def returns_none(x):
    # write it here
    return None


@pytest.mark.parametrize("stub", [documented, passes, has_dots, returns_none, lambda *x: None])
def test_a_stub_without_a_body_is_seen_without_a_call(stub):
    assert attempt.has_no_body(stub)


def yields(x):
    yield


async def waits(x):
    pass


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: 0,
        lambda x: print(),
        raises_not_implemented,
        computes_and_forgets,
        yields,
        waits,
        torch.sum,
        replace,
    ],
)
def test_whatever_else_a_function_does_is_a_body(function):
    assert not attempt.has_no_body(function)


def test_the_reference_is_correct(capsys):
    check(toy_mean)
    assert capsys.readouterr().out == "toy_mean: correct, in 2 of 2 cases\n"


def test_a_known_mistake_is_explained(capsys):
    text = said(lambda x: torch.sum(x), capsys)
    assert text == (
        "not yet. This is the sum: divide by the number of elements. "
        "For (tensor([1, 2])): it is 3, and 1.5 was expected."
    )


def test_a_label_stands_for_the_arguments_of_its_case(capsys):
    register(replace(MEAN, labels=("two elements", "three elements")))
    text = said(lambda x: torch.where(x.sum() > 9, x.sum(), x.mean()), capsys)
    assert text == "not yet. In the case three elements: it is 18, and 6 was expected."


def test_each_case_has_a_label_or_none_has():
    with pytest.raises(ValueError, match=r"toy_mean has 2 cases and 1 labels"):
        replace(MEAN, labels=("two elements",))


def test_many_arguments_are_told_in_a_line(capsys):
    many = tuple(torch.arange(6.0) * index for index in range(8))
    register(replace(MEAN, reference=lambda *xs: 1.0, cases=[many], mistakes=[]))
    text = said(lambda *xs: 2.0, capsys)
    assert text.startswith("not yet. For (tensor([0, 0, 0, 0, 0, 0]), ")
    assert text.endswith("...): it is 2, and 1 was expected.")
    assert len(text) < 200


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


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        (lambda x: (x > 0) @ (x > 0), "not implemented for 'Bool'"),
        (lambda x: x.to_sparse().view(2), "Could not run 'aten::view'"),
    ],
)
def test_what_pytorch_has_not_implemented_is_an_attempt(operation, problem, capsys):
    text = said(operation, capsys)
    assert text.startswith("not yet. It raises NotImplementedError: ")
    assert problem in text
    assert len(text) < 600


def test_an_error_that_speaks_of_not_implemented_error_is_an_attempt(capsys):
    def refuses(x):
        raise ValueError("a NotImplementedError is no answer")

    assert said(refuses, capsys).startswith("not yet. It raises ValueError: a NotImplementedError")


def test_an_error_without_a_text_is_named_by_its_class(capsys):
    class Speechless(Exception):
        def __str__(self):
            raise ValueError("no text")

    def raises(x):
        raise Speechless

    text = said(raises, capsys)
    assert text.startswith("not yet. It raises Speechless (line ")


def test_an_error_like_a_known_mistakes_is_explained(capsys):
    text = said(lambda x: x.sum() / x.numel, capsys)
    assert text.startswith("not yet. numel is a method: call it. It raises TypeError")


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
    assert text == (
        "not yet. div_ writes into the caller's tensor: use /. "
        "It changes its argument `x` in place."
    )


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


@pytest.mark.parametrize(
    ("name", "advice"),
    [("toy_maen", "did you mean 'toy_mean'?"), ("q", "check its spelling")],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(name, advice, capsys):
    text = said(lambda x: x, capsys, name=name)
    assert text == f"cannot be checked: no exercise is called {name!r}; {advice}"
    hint(name)
    assert capsys.readouterr().out == f"no exercise is called {name!r}; {advice}\n"


def test_what_is_no_name_is_told_so(capsys):
    hint([3])
    assert "the name of an exercise in quotes is asked for, not [3]" in capsys.readouterr().out


def test_what_is_no_function_is_told_so(capsys):
    check(3)
    assert capsys.readouterr().out == "check takes the function itself, check(name), not 3\n"


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
    with pytest.raises(ValueError, match=r"toy and 99 both register 'toy_mean'"):
        register(replace(MEAN, chapter="99"))
