"""`check` says one line about a function on ranks, whatever the ranks do."""

from __future__ import annotations

from dataclasses import replace

import torch

from pedagogy.exercises import attempt, check, engine
from pedagogy.exercises.engine import messages_only
from pedagogy.exercises.registry import register
from tests.exercises.toys import AVERAGE, MEAN, said, toy_average, toy_mean


def test_no_rank_starts_for_a_stub_without_a_body(monkeypatch, capsys):
    def starts(*arguments, **options):
        raise AssertionError("ranks were started")

    monkeypatch.setattr("pedagogy.ranks.launch", starts)
    engine._reference_outcome.cache_clear()
    assert said(lambda group, x: None, capsys, "toy_average").startswith("not attempted yet")


def test_on_ranks_a_label_follows_the_rank(capsys):
    register(replace(AVERAGE, labels=("a ramp", "ones")))
    text = said(lambda group, x: 5 * x, capsys, "toy_average")
    assert text.startswith("not yet. On rank 0, in the case a ramp: 2 of 2 elements differ")


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
    assert text.startswith("not yet. Both ranks receive first, so neither ever sends: let one")
    assert "rank 1: recv (rank 0)" in text


def test_on_ranks_an_error_is_told_in_one_line(capsys):
    def divides(group, x):
        return x / (1 // group.rank)

    text = said(divides, capsys, "toy_average")
    assert text.startswith("not yet. Rank 0 raised ZeroDivisionError: integer")
    assert "`return x / (1 // group.rank)`" in text


def test_on_ranks_a_stub_that_raises_is_not_attempted_and_an_operation_that_does_is(capsys):
    def stub(group, x):
        if group.rank == 0:
            raise NotImplementedError("write me")
        return group.recv(0)

    assert said(stub, capsys, "toy_average").startswith("not attempted yet")

    def refuses(group, x):
        if group.rank == 0:
            raise ValueError("a NotImplementedError is no answer")
        return group.recv(0)

    text = said(refuses, capsys, "toy_average")
    assert text.startswith("not yet. Rank 0 raised ValueError: a NotImplementedError")

    text = said(lambda group, x: (x > 0) @ (x > 0), capsys, "toy_average")
    assert "raised NotImplementedError" in text


def test_on_ranks_an_error_of_several_lines_is_told_whole(capsys):
    def disagrees(group, x):
        return group.all_reduce(x[: 1 + group.rank])

    text = said(disagrees, capsys, "toy_average")
    assert "of the same shape and dtype: rank 0: all_reduce sum of (1,) float32; rank 1: " in text
    assert "`return group.all_reduce(x[: 1 + group.rank])`" in text
    assert "were stopped" not in text


def test_on_ranks_a_collective_is_told_where_messages_are_asked_for(capsys):
    register(replace(AVERAGE, targets=[messages_only], mistakes=[]))
    check(toy_average)
    assert ": correct" in capsys.readouterr().out
    text = said(lambda group, x: group.all_reduce(x, "mean"), capsys, "toy_average")
    assert text == (
        "not yet. The numbers are right, but it uses the collective all_reduce; write it with "
        "messages alone (send, recv and exchange)."
    )


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
    assert text.startswith(
        "not yet. Each value crosses the wire twice: once is enough. "
        "The numbers are right, but a rank sends"
    )


def test_reference_mistakes_and_untouched_arguments_are_observed_once_for_all_attempts():
    observed = []

    def observe(function, x):
        observed.append(function)
        return {"mean": function(x)}

    exercise = replace(MEAN, observe=observe, mistakes=[(torch.sum, "This is the sum.")])
    for _ in range(2):
        assert engine.explain(exercise, torch.amax).startswith("not yet.")
        assert engine.explain(exercise, toy_mean).startswith(engine.CORRECT)
    cases = len(exercise.cases)
    # the reference on its own, and as two attempts; each attempt at something else
    assert observed.count(toy_mean) == 3 * cases
    assert observed.count(torch.amax) == 2 * cases
    assert observed.count(torch.sum) == cases
    assert len(observed) == 7 * cases  # and once the function that does nothing
