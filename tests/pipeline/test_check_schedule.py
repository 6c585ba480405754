"""What is refused: lists that would hang, lists with holes, and counts that do not fit."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pedagogy.pipeline import (
    Action,
    check_schedule,
    gpipe,
    gpipe_recomputing,
    interleaved,
    interleaved_in_rounds,
    naive,
    noam,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    pipedream_replicated,
    simulate,
    zero_bubble_h1,
    zero_bubble_h2,
)
from tests.pipeline.grids import (
    NAMED,
    Costs,
    home_of,
    needs_of,
    random_schedules,
    slow_times,
    swapped,
)

STANDS = re.compile(
    r"rank (\d+) stands at (\w)(\d+)@(\d+) and waits for (\w)(\d+)@(\d+) of rank (\d+)"
)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(random_schedules(), st.sampled_from(NAMED)),
    st.integers(0, 2**32),
    st.integers(1, 4),
)
def test_exactly_what_cannot_finish_is_refused_and_the_circle_is_one(schedule, seed, swaps):
    changed = swapped(schedule, random.Random(seed), swaps)
    num_stages = 1 + max(a.stage for actions in changed for a in actions)
    _, end = slow_times(changed, Costs(*[[Fraction(1)] * num_stages] * 5))
    if len(end) == sum(map(len, changed)):
        event("runs")
        assert check_schedule(changed).num_stages == num_stages
        return
    event("dead-locks")
    with pytest.raises(ValueError, match="wait for each other in a circle") as raised:
        check_schedule(changed)
    with pytest.raises(ValueError, match=re.escape(str(raised.value))):
        simulate(changed)
    circle = STANDS.findall(str(raised.value))
    assert len(circle) == str(raised.value).count("stands") > 0
    home, needs = home_of(changed), needs_of(changed)
    for i, (rank, kind, k, stage, for_kind, for_k, for_stage, of) in enumerate(circle):
        stuck = (kind, int(stage), int(k))
        missing = (for_kind, int(for_stage), int(for_k))
        assert stuck == next(a for a in changed[int(rank)] if tuple(a) not in end)
        assert missing in needs[stuck]
        assert missing not in end
        assert home[missing[1:]] == int(of)
        assert of == circle[(i + 1) % len(circle)][0]


def actions(*text: str) -> list[list[Action]]:
    """A schedule from text: stage r on rank r."""
    return [
        [Action(word[0], stage, int(word[1:])) for word in line.split()]
        for stage, line in enumerate(text)
    ]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (actions("B0 F0"), "circle: rank 0 stands at B0@0 and waits for F0@0 of rank 0$"),
        (
            actions("F0 B0 F1 B1", "F1 B1 F0 B0"),  # micro-batches in another order on one rank
            "circle: rank 0 stands at B0@0 and waits for B0@1 of rank 1; "
            "rank 1 stands at F1@1 and waits for F1@0 of rank 0$",
        ),
        (
            actions("F0 F1 B0 B1", "F0 F1 B1 B0", "F0 B0 F1 B1"),  # 1F1B, two backwards exchanged
            None,
        ),
        (actions("F0 W0 B0"), "rank 0 stands at W0@0 and waits for B0@0 of rank 0"),
        (actions("F0 U0 B0"), "rank 0 stands at U0@0 and waits for B0@0 of rank 0"),
        (actions("F0 B0 U0 W0"), "rank 0 stands at U0@0 and waits for W0@0 of rank 0"),
        (actions("F0 B0 R0"), "rank 0 stands at B0@0 and waits for R0@0 of rank 0"),
        (actions("R0 F0 B0"), "rank 0 stands at R0@0 and waits for F0@0 of rank 0"),
    ],
)
def test_an_order_that_hangs_is_refused_with_the_circle_and_one_that_only_waits_is_not(
    schedule, message
):
    if message is None:
        assert check_schedule(schedule)
    else:
        with pytest.raises(ValueError, match=message):
            check_schedule(schedule)


# --- lists with holes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([], "no action on these ranks: all"),
        ([[], [Action("F", 0, 0), Action("B", 0, 0)]], r"no action on these ranks: \[0\]"),
        (actions("F0 F1 B0"), "B1@0 is missing: with 1 stages and 2 micro-batches"),
        (actions("F0 B0", "B0"), "F0@1 is missing: with 2 stages and 1 micro-batches"),
        (actions("F1 B1"), "F0@0 is missing"),
        ([[Action("F", 1, 0), Action("B", 1, 0)]], "F0@0 is missing: with 2 stages"),
        (actions("F0 F0 B0"), "F0@0 stands in the schedule twice"),
        (actions("F0 B0") * 2, "F0@0 stands in the schedule twice"),
        (actions("F0 B0 X0"), r"\('X', 0, 0\) is no action: the kinds are F, B, W, R, U"),
        ([[("FB", 0, 0)]], r"\('FB', 0, 0\) is no action"),
        ([[("", 0, 0), ("B", 0, 0)]], r"\('', 0, 0\) is no action"),
        ([[(None, 0, 0)]], r"\(None, 0, 0\) is no action"),
        ([[("F", -1, 0), ("B", -1, 0)]], r"\('F', -1, 0\) is no action: .* count from 0"),
        ([[("F", -3, 0), ("B", -3, 0)]], r"\('F', -3, 0\) is no action: .* count from 0"),
        ([[("F", 0, -2)]], r"\('F', 0, -2\) is no action: .* count from 0"),
        (
            [[Action("F", 0, 0)], [Action("B", 0, 0)]],
            "B0@0 stands on rank 1, but other actions of micro-batch 0 at stage 0 on rank 0",
        ),
        (
            [[Action("F", 0, 0), Action("B", 0, 0)], [Action("U", 0, 0)]],
            "U0@0 stands on rank 1, but other actions of micro-batch 0 at stage 0 on rank 0",
        ),
    ],
)
def test_a_list_with_a_hole_is_refused_with_the_action_it_is_about(schedule, message):
    for refuse in (check_schedule, simulate):
        with pytest.raises(ValueError, match=message):
            refuse(schedule)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"forward": [1, 1]}, "forward has 2 numbers; .* one for each of the 3 stages"),
        ({"backward": [1, 1, -1]}, "backward is .*finite, and not below 0"),
        ({"communication": -1}, "communication is -1; a time is finite"),
        ({"recompute": float("nan")}, "recompute is nan"),
        ({"weight": 3}, "stage 0: weight is 3, more than the whole backward, 2.0"),
        ({"forward": 0, "backward": 0, "weight": 0}, "no action takes any time"),
    ],
)
def test_impossible_times_are_refused(costs, message):
    with pytest.raises(ValueError, match=message):
        simulate(zero_bubble_h1(3, 3), **costs)
    if "weight" in costs and costs["weight"] > 0:
        assert simulate(one_f_one_b(3, 3), **costs)  # it has no W, so its time does not matter


def test_a_time_of_an_action_that_is_not_there_is_no_time():
    found = simulate(gpipe(2, 2))
    for action in [Action("W", 0, 0), Action("F", 2, 0), Action("F", 0, -1), Action("F", 0, 2)]:
        assert action not in found.start
        with pytest.raises(KeyError):
            found.end[action]


# --- counts that do not fit -------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        naive,
        gpipe,
        gpipe_recomputing,
        one_f_one_b,
        pipedream,
        zero_bubble_h1,
        zero_bubble_h2,
        lambda p, m: interleaved(p, m, 2),
        lambda p, m: interleaved(2, p, m),
        lambda p, m: interleaved_in_rounds(p, m, 2),
        lambda p, m: pipedream_2bw(p, 2, m),
        lambda p, m: pipedream_2bw(2, p, m),
        lambda p, m: pipedream_replicated([1, p], m),
    ],
)
@pytest.mark.parametrize(("p", "m", "named"), [(0, 4, 0), (4, 0, 0), (4, -1, -1), (2.0, 4, 2.0)])
def test_no_schedule_of_nothing_or_of_half_a_stage(make, p, m, named):
    with pytest.raises(ValueError, match=f"is {named}; it must be a whole number, 1 or more"):
        make(p, m)


def test_minibatches_that_replicas_cannot_share_are_refused_with_the_nearest_that_they_can():
    for replicas, count, nearest in [([3, 1], 7, "6 or 9"), ([2, 3], 7, "6 or 12"), ([3], 2, "3")]:
        with pytest.raises(ValueError, match=rf"{count} minibatches over .*; {nearest} would do"):
            pipedream_replicated(replicas, count)
        for fits in map(int, nearest.split(" or ")):
            assert check_schedule(pipedream_replicated(replicas, fits)).num_microbatches == fits
    with pytest.raises(ValueError, match="num_stages is 0"):
        noam([])


def test_2bw_refuses_a_batch_that_is_shorter_than_the_pipeline():
    with pytest.raises(ValueError, match=r"3 micro-batches a batch in 4 stages: .* at least 4"):
        pipedream_2bw(4, 2, 3)
    assert check_schedule(pipedream_2bw(4, 2, 4)).num_microbatches == 8
