"""The simulator, against a slow second one."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.pipeline import Action, gpipe, interleaved, one_f_one_b, pipedream, simulate
from tests.pipeline.grids import (
    NAMED,
    cost_lists,
    home_of,
    message,
    needs_of,
    random_schedules,
    slow_times,
)


@st.composite
def schedules_with_costs(draw):
    """A random schedule or one of the named ones, and costs, with or without communication."""
    schedule = draw(st.one_of(random_schedules(), st.sampled_from(NAMED)))
    num_stages = 1 + max(a.stage for actions in schedule for a in actions)
    return schedule, draw(cost_lists(num_stages, idle_wire=draw(st.booleans())))


@settings(max_examples=150, deadline=None)
@given(schedules_with_costs())
def test_every_time_is_that_of_the_slow_simulator_to_the_last_digit(case):
    schedule, costs = case
    start, end = slow_times(schedule, costs)
    found = simulate(schedule, **vars(costs))
    assert dict(found.start) == start
    assert dict(found.end) == end
    assert len(found.start) == sum(map(len, schedule))
    makespan = max(end.values())
    assert type(found.makespan) is Fraction
    assert found.makespan == makespan
    work = [sum(end[a] - start[a] for a in actions) for actions in schedule]
    span = [end[actions[-1]] - start[actions[0]] for actions in schedule]
    assert (found.busy, found.span) == (work, span)
    assert found.span_bubble == [s - w for s, w in zip(span, work, strict=True)]
    idle = sum(makespan - each for each in work)
    assert found.bubble_fraction == idle / (len(schedule) * makespan)
    assert found.bubble_ratio == idle / sum(work)


@settings(max_examples=80, deadline=None)
@given(schedules_with_costs())
def test_what_is_in_flight_is_what_has_started_and_not_ended(case):
    schedule, costs = case
    start, end = slow_times(schedule, costs)
    found = simulate(schedule, **vars(costs))
    for rank, actions in enumerate(schedule):
        held = {(s, k) for _, s, k in actions}
        ends = {(s, k): end.get(("W", s, k), end["B", s, k]) for s, k in held}
        curve = found.in_flight(rank)
        assert curve[0] == (0, 0)
        assert curve[-1] == (max(ends.values()), 0)
        assert [time for time, _ in curve] == sorted(time for time, _ in curve)
        now = dict(curve)  # of several counts at one time, the last
        for time, count in now.items():
            assert count == sum(start["F", s, k] <= time < ends[s, k] for s, k in held)
        assert found.peak_in_flight[rank] == max(count for _, count in curve)
        assert found.peak_in_flight[rank] == max(now.values())


@settings(max_examples=80, deadline=None)
@given(schedules_with_costs())
def test_waits_work_and_the_tail_make_up_the_makespan_and_each_wait_ends_when_its_cause_is_there(
    case,
):
    schedule, costs = case
    home, needs = home_of(schedule), needs_of(schedule)
    found = simulate(schedule, **vars(costs))
    for rank, actions in enumerate(schedule):
        waits = found.waits(rank)
        tail = found.makespan - found.end[actions[-1]]
        waited = sum(wait.end - wait.start for wait in waits)
        assert waited + found.busy[rank] + tail == found.makespan
        for wait in waits:
            before = actions.index(wait.action) - 1
            assert wait.rank == rank
            assert wait.start == (found.end[actions[before]] if before >= 0 else 0)
            assert wait.start < wait.end == found.start[wait.action]
            assert tuple(wait.for_action) in needs[tuple(wait.action)]
            on_its_way = message(tuple(wait.for_action), tuple(wait.action), home, costs)
            assert wait.end == found.end[wait.for_action] + on_its_way
            assert str(wait.action) in wait.reason
            assert str(wait.for_action) in wait.reason


@settings(max_examples=80, deadline=None)
@given(schedules_with_costs())
def test_there_is_an_event_for_each_action_and_each_message_that_crosses_ranks(case):
    schedule, costs = case
    start, end = slow_times(schedule, costs)
    home = home_of(schedule)
    expected = Counter(
        (home[s, k], kind, f"{kind}{k}", start[kind, s, k], end[kind, s, k], ())
        for kind, s, k in start
    )
    for action, needs in needs_of(schedule).items():
        for need in needs:
            if time := message(need, action, home, costs):
                sent = (home[need[1:]], "send", "", end[need], end[need] + time)
                expected[(*sent, (home[action[1:]],))] += 1
    found = simulate(schedule, **vars(costs)).events()
    assert Counter((e.rank, e.kind, e.name, e.start, e.end, e.peers) for e in found) == expected


def test_a_wait_says_in_a_sentence_what_is_missing():
    found = simulate(one_f_one_b(2, 2), forward=1, backward=2, communication=0.5)
    first, second = found.waits(0)[0], found.waits(1)[0]
    # F0 runs on rank 1 from 1.5 to 2.5 and B0 to 4.5; rank 0 is done with F0 and F1 at 2
    assert first[:5] == (0, 2, 5, Action("B", 0, 0), Action("B", 1, 0))
    assert first.reason == (
        "B0@0 needs the gradient of B0@1 from rank 1, which ends B0@1 at 4.5; "
        "the message takes 0.5."
    )
    assert second[:5] == (1, 0, 1.5, Action("F", 1, 0), Action("F", 0, 0))
    assert "needs the activation of F0@0 from rank 0, which ends F0@0 at 1;" in second.reason


def test_one_boundary_may_be_slow_and_the_sender_works_on_meanwhile():
    found = simulate(gpipe(3, 2), forward=1, backward=1, communication=[0, 5, 0])
    # F0 2-3 and F1 3-4 on rank 1, five later on rank 2; two boundaries back, the second of no time
    assert found.start[Action("F", 1, 1)] == 2
    assert found.start[Action("F", 2, 0)] == 7
    assert found.start[Action("B", 1, 0)] == 9 + 1 + 5
    assert found.makespan == 18


def test_whole_numbers_and_fractions_stay_exact_with_the_defaults_too():
    third = Fraction(1, 3)
    for schedule in (one_f_one_b(3, 4), pipedream(3, 4), gpipe(3, 4)):
        found = simulate(schedule, third, 2 * third)
        assert type(found.makespan) is Fraction
        assert found.makespan == 6  # (4 + 2) (1/3 + 2/3)
        assert all(wait.reason for wait in found.waits(0))  # and they can be put in words


def test_a_large_schedule_is_simulated_whole():
    found = simulate(interleaved(64, 512, 4))
    assert len(found.start) == 262_144 == 2 * 64 * 512 * 4
    assert found.makespan == 512 * 3 + 63 * 3 / 4
    assert found.peak_in_flight == [2 * (63 - rank) + 3 * 64 + 1 for rank in range(64)]
