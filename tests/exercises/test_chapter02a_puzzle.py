"""Chapter 02a's puzzle: placements that will do, and what is said of those that will not."""

from __future__ import annotations

from itertools import product

import pytest

from pedagogy.exercises import check, engine
from pedagogy.exercises.chapter02a_puzzle import COSTS, PUZZLE, ROOM, place_by_hand
from pedagogy.pipeline import gpipe, one_f_one_b, simulate
from pedagogy.pipeline.notation import parse_schedule


def said(function) -> str:
    return engine.explain(PUZZLE, function)


def _orders(m: int) -> list[str]:
    """All lines of m forwards and m backwards, each in order of the micro-batches."""

    def go(f: int, b: int, line: tuple) -> list[str]:
        if b == m:
            return [" ".join(line)]
        more = go(f + 1, b, (*line, f"F{f}")) if f < m else []
        return more + (go(f, b + 1, (*line, f"B{b}")) if b < f else [])

    return go(0, 0, ())


def test_no_placement_beats_the_reference_even_with_more_memory():
    best = float("inf")
    for lines in product(_orders(4), repeat=3):
        try:
            best = min(best, simulate(parse_schedule("\n".join(lines)), **COSTS).makespan)
        except ValueError:  # a dead-lock
            continue
    mine = simulate(parse_schedule(place_by_hand()), **COSTS)
    assert mine.makespan == best == 1 + 4 * (2 + 4) + 2
    assert max(mine.peak_in_flight) == ROOM
    assert simulate(one_f_one_b(3, 4), **COSTS).makespan == 28
    assert simulate(gpipe(3, 4), **COSTS).makespan == 30


def test_another_placement_of_the_same_length_and_lists_are_accepted():
    last_holds_two = place_by_hand().replace("F0 B0 F1 B1 F2 B2", "F0 B0 F1 F2 B1 B2")
    assert said(lambda: last_holds_two).startswith(engine.CORRECT)
    assert said(lambda: parse_schedule(place_by_hand())).startswith(engine.CORRECT)
    assert said(lambda: place_by_hand().strip().splitlines()).startswith(engine.CORRECT)


def test_a_list_of_too_few_lines_is_refused_as_such():
    assert "each of the 3 ranks, not 2 of them" in said(lambda: ["F0 F1 F2 B0 F3 B1 B2 B3"] * 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("F0 G0", "'G0' is no action"),
        ("F0 B0\nF0 B0\nF0 B0", "there are 3 stages and 1 micro-batches in the answer"),
        ("F0 F1 F2 B0 F3 B1 B2 B3\n" * 2, "each of the 3 ranks, not 2 of them"),
        ("F0 F1 F2 F3 B0 B1 B2 B3\n" * 3, "rank 0 holds 4 micro-batches at once"),
        ("F0 B0 F1 F2 B1 F3 B2 B3\n" * 3, "rank 1, the slow one, waits from 3 to 6"),
        ("B0 F0 F1 F2 F3 B1 B2 B3\n" * 3, "B0@0 stands on rank 0 without F0@0 before it"),
        ("F0@0 F1@1 B0@0", "F1@1 stands on rank 0, which holds stage 0"),
    ],
)
def test_a_placement_that_will_not_do_is_answered_with_the_reason(text, reason):
    if text.count("\n") == 0:
        text = "\n".join([text] * 3)
    assert reason.casefold() in said(lambda: text).casefold()


def test_check_draws_the_placement_over_the_reference(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("pedagogy.notebook.show", shown.append)

    def mine():
        return "F0 F1 F2 B0 F3 B1 B2 B3\nF0 F1 B0 F2 B1 F3 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3"

    mine.__name__ = "place_by_hand"
    check(mine)
    (figure,) = shown
    assert figure.get_label() == "Your schedule takes 28, the reference 27."
    titles = [text.get_text() for text in figure.texts]
    assert {"Yours", "Reference"} <= set(titles)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert "takes 28, and 27 is possible" in capsys.readouterr().out


@pytest.mark.parametrize("answer", [None, "F0", 3])
def test_check_draws_nothing_for_a_stub_or_what_cannot_run(answer, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("pedagogy.notebook.show", shown.append)

    def mine():
        return answer

    mine.__name__ = "place_by_hand"
    check(mine)
    assert shown == []
    assert capsys.readouterr().out.startswith("place_by_hand: not ")
