"""How an exercise is checked: by its outcome, and by the outcomes of known mistakes.

The problem: "wrong" teaches little, and a traceback from three processes teaches less. What a
learner wants to know is *which* idea went astray.

So an exercise brings, beside its reference, the mistakes that people make, each a working function
with one sentence. `check` runs the learner's function on all cases; if the outcome is not the
reference's, it runs the mistakes too, and where one of them does exactly the same (the same wrong
numbers, the same error, the same dead-lock, the same target missed), its sentence is the answer:

    [1] blank       every case gives None, or the stub itself raises -> not attempted yet
                    NotImplementedError
    [2] the same    as the reference, and within the targets         -> correct
    [3] a mistake's outcome                                          -> why, and what differs
    [4] anything else                                                -> what differs

What it costs: the mistakes run only after a wrong answer, and each of them once per session.
Targets are functions that look at the finished attempt (its trace, its function) and complain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pedagogy.exercises.attempt import Outcome, arguments_of, attempt, has_no_body
from pedagogy.exercises.compare import brief, difference, shortened
from pedagogy.exercises.registry import find

NOT_ATTEMPTED = "not attempted yet"
CORRECT = "correct"


@dataclass(frozen=True, eq=False)
class Exercise:
    """A function to write.

    `name` is the stub's. A case is a tuple of arguments, or a function of the rank that makes one
    (needed for modules and for arguments that differ by rank). `labels`, a few words for each case,
    stand for its arguments in what `check` says. With `ranks`, the function is called as
    `function(group, *arguments)` on that many ranks. `observe(function, *arguments)` makes the
    call itself and returns what is compared: for functions that change something in place.
    `mistakes` are pairs of a function and the sentence that explains it. A target is a function of
    (function, outcome) that returns a complaint or None. Numbers agree within
    `tolerance * max(1, |expected|)`. `picture(function)`, a Figure, is shown after an attempt.
    """

    name: str
    title: str
    chapter: str
    reference: Callable
    cases: Sequence[Any]
    mistakes: Sequence[tuple[Callable, str]]
    hints: Sequence[str]
    ranks: int | None = None
    targets: Sequence[Callable[[Callable, Outcome], str | None]] = ()
    tolerance: float = 1e-5
    observe: Callable | None = None
    labels: Sequence[str] = ()
    picture: Callable | None = None

    def __post_init__(self) -> None:
        if self.labels and len(self.labels) != len(self.cases):
            raise ValueError(
                f"{self.name} has {len(self.cases)} cases and {len(self.labels)} labels; "
                "give each case a label, or none"
            )


@dataclass(frozen=True)
class Verdict:
    """`kind` is "blank", "correct", "value", "target" or the kind of an outcome that went wrong."""

    kind: str
    detail: str
    outcome: Outcome


_hints_given: dict[str, int] = {}


def check(stub: Callable) -> None:
    """One line is printed: not attempted yet, correct, or what is wrong and why. Never raises."""
    name = getattr(stub, "__name__", None)
    if name is None:
        print(f"check takes the function itself, check(name), not {brief(stub)}")
        return
    try:
        exercise = find(name, Exercise)
        text = explain(exercise, stub)
    except Exception as error:
        exercise, text = None, f"cannot be checked: {error}"
    print(" ".join(f"{name}: {text}".split()))
    if exercise and exercise.picture and not text.startswith(NOT_ATTEMPTED):
        _show_picture(exercise.picture, stub)


def hint(name: str | Callable) -> None:
    """The exercise's next hint is printed; each call gives one more."""
    exercise = _find_or_say(name)
    if exercise is None:
        return
    given = _hints_given.get(exercise.name, 0)
    if given >= len(exercise.hints):
        print(f"No more hints. solution({exercise.name!r}) shows one way to write it.")
        return
    _hints_given[exercise.name] = given + 1
    print(f"Hint {given + 1} of {len(exercise.hints)}: {exercise.hints[given]}")


def solution(name: str | Callable) -> None:
    """The source of the exercise's reference is displayed."""
    from pedagogy.notebook import show

    exercise = _find_or_say(name)
    if exercise is not None:
        show(exercise.reference)


def explain(exercise: Exercise, function: Callable) -> str:
    """What `check` says about this function, without its name."""
    verdict = judge(exercise, function)
    if verdict.kind == "blank":
        return f"{NOT_ATTEMPTED} (it returns None)"
    if verdict.kind == "correct":
        where = f" on {exercise.ranks} ranks" if exercise.ranks else ""
        return f"{CORRECT}, in {len(exercise.cases)} of {len(exercise.cases)} cases{where}"
    for mistake, why in exercise.mistakes:
        if _same(verdict, known_verdict(exercise, mistake), exercise.tolerance):
            return f"not yet. {why} {_sentence(verdict.detail)}"
    return f"not yet. {_sentence(verdict.detail)}"


def judge(exercise: Exercise, function: Callable) -> Verdict:
    """What this function does, beside what the reference does."""
    if has_no_body(function):  # seen without starting any rank
        return Verdict("blank", "", Outcome("value"))
    wanted = _reference_outcome(exercise)
    outcome = _outcome(exercise, function)
    if _is_blank(exercise, outcome):
        return Verdict("blank", "", outcome)
    if outcome.kind != "value":
        return Verdict(outcome.kind, outcome.detail, outcome)
    found = _first_difference(exercise, outcome, wanted)
    if found:
        return Verdict("value", found, outcome)
    for target in exercise.targets:
        complaint = target(function, outcome)
        if complaint:
            return Verdict("target", f"the numbers are right, but {complaint}", outcome)
    return Verdict("correct", "", outcome)


known_verdict = cache(judge)
_untouched = cache(lambda exercise: _outcome(exercise, lambda *arguments: None))


def bytes_sent_at_most(limit: int) -> Callable[[Callable, Outcome], str | None]:
    """A target for exercises on ranks: over all cases, no rank sends more than `limit` bytes."""

    def target(function: Callable, outcome: Outcome) -> str | None:
        trace = outcome.trace
        sent = max(trace.bytes_sent(rank=rank) for rank in range(len(outcome.value)))
        if sent <= limit:
            return None
        return f"a rank sends {sent:,} bytes, and {limit:,} are enough"

    return target


def messages_only(function: Callable, outcome: Outcome) -> str | None:
    """A target for exercises on ranks: the trace holds sends and receives, and nothing else."""
    others = sorted({event.kind for event in outcome.trace} - {"send", "recv"})
    if not others:
        return None
    return (
        f"it uses the collective {', '.join(others)}; write it with messages alone (send, recv "
        "and exchange)"
    )


def _show_picture(picture: Callable, stub: Callable) -> None:
    from pedagogy.notebook import show

    drawn = attempt(picture, [(stub,)], None, None)
    if drawn.kind == "value":
        show(drawn.value[0][0])


def _find_or_say(name: str | Callable) -> Exercise | None:
    try:
        return find(getattr(name, "__name__", name), Exercise)
    except LookupError as error:
        print(error)
        return None


def _outcome(exercise: Exercise, function: Callable) -> Outcome:
    return attempt(function, exercise.cases, exercise.ranks, exercise.observe)


@cache
def _reference_outcome(exercise: Exercise) -> Outcome:
    outcome = _outcome(exercise, exercise.reference)
    if outcome.kind != "value":
        raise RuntimeError(f"the reference itself failed here: {outcome.detail}")
    return outcome


def _is_blank(exercise: Exercise, outcome: Outcome) -> bool:
    if outcome.kind == "blank":
        return True
    if outcome.kind != "value":
        return False
    if exercise.observe is None:
        return all(result is None for results in outcome.value for result in results)
    untouched = _untouched(exercise)
    return untouched.kind == "value" and _first_difference(exercise, outcome, untouched) is None


def _first_difference(exercise: Exercise, got: Outcome, want: Outcome) -> str | None:
    for rank, (answers, wanted) in enumerate(zip(got.value, want.value, strict=True)):
        for index, (answer, right) in enumerate(zip(answers, wanted, strict=True)):
            found = difference(answer, right, exercise.tolerance)
            if found:
                where = f"on rank {rank}, " if exercise.ranks else ""
                return f"{where}{_name_of_case(exercise, index, rank)}: {found}"
    return None


def _name_of_case(exercise: Exercise, index: int, rank: int) -> str:
    if exercise.labels:
        return f"in the case {exercise.labels[index]}"
    arguments = ", ".join(brief(one) for one in arguments_of(exercise.cases[index], rank))
    return f"for ({shortened(arguments, 120)})"


def _same(one: Verdict, other: Verdict, tolerance: float) -> bool:
    if one.kind != other.kind:
        return False
    if one.kind == "target":
        return one.detail == other.detail
    return difference(one.outcome.value, other.outcome.value, tolerance) is None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
