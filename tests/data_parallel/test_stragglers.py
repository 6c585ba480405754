"""The clocks of the three ways to live with a straggler, against grids that a reader would draw."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.data_parallel.stragglers import (
    simulate_asynchronous,
    simulate_backup_workers,
    simulate_synchronous,
)

durations = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def spans(simulation, worker):
    return [(e.kind, e.name, e.start, e.end) for e in simulation.events if e.rank == worker]


def test_a_synchronous_step_lasts_as_long_as_its_slowest_worker():
    found = simulate_synchronous((1, 3), 6)
    assert [update.time for update in found.updates] == [3, 6]
    assert [set(update.workers) for update in found.updates] == [{1, 2}, {1, 2}]
    assert spans(found, 1) == [
        ("compute", "0", 0, 1), ("wait", "", 1, 3), ("compute", "1", 3, 4), ("wait", "", 4, 6),
    ]  # fmt: skip
    assert spans(found, 2) == [("compute", "0", 0, 3), ("compute", "1", 3, 6)]
    assert found.staleness == [0, 0]


def test_the_first_two_of_three_drop_what_comes_later():
    found = simulate_backup_workers((1, 1, 3), 1, 4)
    assert [(update.workers, update.time) for update in found.updates] == [
        ((1, 2), 1), ((1, 2), 2), ((1, 2), 3), ((1, 2), 4),
    ]  # fmt: skip
    assert spans(found, 3) == [("dropped", "dropped", 0, 3), ("dropped", "dropped", 3, 4)]


def test_a_late_worker_joins_the_step_under_way():
    found = simulate_backup_workers((2, 2, 3), 1, 7)
    assert [update.workers for update in found.updates] == [(1, 2), (1, 2), (1, 2)]
    assert spans(found, 3) == [
        ("dropped", "dropped", 0, 3), ("dropped", "dropped", 3, 6), ("compute", "3", 6, 7),
    ]  # fmt: skip


def test_an_asynchronous_worker_reads_what_the_others_have_made():
    found = simulate_asynchronous((1, 3), None, 4)
    assert [(u.workers, u.read_version, u.time) for u in found.updates] == [
        ((1,), 0, 1), ((1,), 1, 2), ((1,), 2, 3), ((2,), 0, 3), ((1,), 3, 4),
    ]  # fmt: skip
    assert found.staleness == [0, 0, 0, 3, 1]
    assert not any(event.kind == "wait" for event in found.events)


def test_with_a_bound_of_0_the_barrier_is_back():
    found = simulate_asynchronous((1, 3), 0, 6)
    assert [(u.workers, u.time) for u in found.updates] == [
        ((1,), 1),
        ((2,), 3),
        ((1,), 4),
        ((2,), 6),
    ]
    assert [s for s in spans(found, 1) if s[0] == "wait"] == [
        ("wait", "", 1, 3),
        ("wait", "", 4, 6),
    ]


@given(durations, st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_no_gradient_is_staler_than_the_bound_allows(units, bound):
    found = simulate_asynchronous(units, bound, 30)
    assert max(found.staleness, default=0) <= (len(units) - 1) * (2 * bound + 1)
    clocks = dict.fromkeys(range(1, len(units) + 1), 0)
    for update in found.updates:
        clocks[update.workers[0]] += 1
        assert max(clocks.values()) - min(clocks.values()) <= bound + 1


@given(durations, st.data())
@settings(max_examples=60, deadline=None)
def test_every_worker_is_always_accounted_for(units, data):
    backups = data.draw(st.integers(0, len(units) - 1))
    bound = data.draw(st.one_of(st.none(), st.integers(0, 3)))
    for found in (
        simulate_synchronous(units, 17),
        simulate_backup_workers(units, backups, 17),
        simulate_asynchronous(units, bound, 17),
    ):
        for worker in range(1, len(units) + 1):
            lane = spans(found, worker)
            assert lane[0][2] == 0
            assert lane[-1][3] == 17
            assert all(one[3] == other[2] for one, other in pairwise(lane))


@given(durations, st.data())
@settings(max_examples=40, deadline=None)
def test_each_step_uses_as_many_gradients_as_are_waited_for(units, data):
    backups = data.draw(st.integers(0, len(units) - 1))
    found = simulate_backup_workers(units, backups, 25)
    assert {len(set(update.workers)) for update in found.updates} <= {len(units) - backups}
    assert found.staleness == [0] * len(found.updates)


def test_rates_count_what_was_used():
    found = simulate_backup_workers((1, 1, 3), 1, 12)
    assert found.updates_per_unit(12) == 1
    assert found.gradients_per_unit(12) == 2


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: simulate_synchronous((), 1), "at least one worker"),
        (lambda: simulate_synchronous((1, 0), 1), "positive times"),
        (lambda: simulate_backup_workers((1, 1), 2, 1), "num_backups is 2 of 2 workers"),
        (lambda: simulate_asynchronous((1, 1), -1, 1), "staleness_bound is -1"),
    ],
)
def test_bad_input_is_refused_with_its_numbers(call, says):
    with pytest.raises(ValueError, match=says):
        call()
