"""The runs of the comparison equal their recursions, and what is read from them is arithmetic."""

import numpy as np
import pytest
import torch

from pedagogy.data_parallel import replay
from pedagogy.data_parallel.asynchronous import Record, Update
from pedagogy.data_parallel.comparison import Race, asynchronous_runs, loss_of, synchronous_runs
from pedagogy.data_parallel.race_curves import (
    Curve,
    asynchronous_curve,
    by_seconds,
    by_updates,
    crossings,
    losses_after,
    overtakes_at,
    staleness_by_worker,
    synchronous_curve,
)
from pedagogy.ranks import launch

RACE = Race(workers=2, steps=4, batch=8, seconds_per_step=0.004, sizes=(64, 8, 10))


def curve(losses, seconds=None):
    seconds = seconds or list(range(len(losses)))
    return Curve(list(range(len(losses))), seconds, losses, torch.zeros(1))


def test_synchronous_runs_equal_one_process_and_no_straggler_changes_them():
    run = launch(synchronous_runs, 2, RACE, (0, 1), (1.0, 2.0))
    assert {key: len(one.seconds) for key, one in run[0].items()} == {
        (1.0, 0): 4, (1.0, 1): 4, (2.0, 0): 2, (2.0, 1): 2,
    }  # fmt: skip
    for (slowdown, seed), one in run[0].items():
        again = synchronous_curve(RACE, seed, one)
        torch.testing.assert_close(again.weights, one.weights, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(run[1][slowdown, seed].weights, one.weights, rtol=0, atol=0)
        whole = synchronous_curve(RACE, seed, run[0][1.0, seed])
        assert again.losses == pytest.approx(whole.losses[: len(again.losses)], rel=1e-6)
        assert one.seconds[-1] >= RACE.seconds  # each of its steps took that long


def test_asynchronous_runs_equal_the_recursion_of_their_records():
    runs = launch(asynchronous_runs, 3, RACE, (0, 1), (1.0, 2.0))[0]
    for (slowdown, seed), record in runs.items():
        again = asynchronous_curve(RACE, seed, record)
        torch.testing.assert_close(again.weights, record.weights, rtol=1e-5, atol=1e-6)
        assert again.updates == [0, 2, 4, 6, 8]
        other = asynchronous_curve(RACE, seed, record, RACE.learning_rate / 2)
        assert not torch.allclose(other.weights, record.weights, rtol=1e-3)
        last = [u.seconds for u in record.updates if u.worker == 2][4 // round(slowdown) - 1]
        assert last >= RACE.seconds  # the straggler does not rush before the time is over


def test_another_learning_rate_is_the_recursion_with_that_one():
    updates = [Update(1, 0, 0, 0.0, 1.0), Update(2, 0, 0, 0.0, 2.0), Update(1, 1, 1, 0.0, 3.0)]
    initial = torch.cat([p.detach().flatten() for p in RACE.model(0).parameters()])
    record = Record(0.5, initial, initial, [*updates, Update(2, 1, 2, 0.0, 4.0)])
    slower = Record(0.1, initial, initial, record.updates)
    found = asynchronous_curve(RACE, 0, record, 0.1)
    right = replay(slower, RACE.model(0), loss_of, RACE.batches(0))
    torch.testing.assert_close(found.weights, right, rtol=1e-6, atol=1e-7)
    assert found.seconds == [0.0, 2.0, 4.0]


def test_models_of_a_seed_are_equal_and_leave_the_random_state_alone():
    before = torch.get_rng_state()
    one, other = RACE.model(3), RACE.model(3)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("ours", "theirs", "where"),
    [
        ([1, 2, 3], [2, 1, 1], 1.5),  # equal distances above and below: the middle
        ([1, 2, 3], [0, 1, 1], 1.0),
        ([1, 2, 3], [2, 3, 4], None),
        ([1, 2, 3], [2, 2, 1], 2.0),
        ([1, 1, 3], [2, 2, 1], 2 + 2 / 3),
    ],
)
def test_overtaking_lies_where_the_lines_cross(ours, theirs, where):
    assert overtakes_at((1, 2, 4), ours, theirs) == pytest.approx(where)


def test_crossings_are_said_for_the_median_and_for_each_seed():
    ours = [[1.0, 2.0, 3.0]] * 3
    theirs = [[2.0, 1.0, 1.0], [0.0, 1.0, 1.0], [2.0, 3.0, 4.0]]
    text = crossings((1.0, 2.0, 4.0), ours, theirs)
    assert text.endswith("(by seed: 1.5x, 1.0x, never)")
    assert text.startswith("overtakes at 1.5x")  # the median of the losses is 2, 1, 1


def test_overtaking_needs_as_many_losses_as_slow_downs():
    with pytest.raises(ValueError, match="2 slow-downs for 3 and 2 losses"):
        overtakes_at((1, 2), [1, 2, 3], [1, 2])


def test_losses_lie_on_the_lines_between_known_points():
    curves = {(1.0, 0): curve([4, 2, 0]), (2.0, 0): curve([4, 2, 0], [0, 2, 4])}
    assert losses_after(curves, [0], [1.0, 2.0], 1.0) == [[2.0, 3.0]]


def test_panels_hold_one_line_for_each_seed():
    sync = {(s, k): curve([4 + k, 2, 1]) for s in (1.0, 2.0) for k in (0, 1)}
    race = Race(steps=2, seconds_per_step=1.0)
    panels = by_seconds(race, (0, 1), (1.0, 2.0), sync, sync)
    assert [title for title, _, _ in panels] == ["one worker 1x", "one worker 2x"]
    times, losses = panels[0][1]["synchronous"]
    assert (times[0], times[-1], np.shape(losses)) == (0.0, 2.0, (2, len(times)))
    assert [one[0] for one in losses] == [4, 5]
    assert [one[-1] for one in losses] == [1, 1]


def test_curves_over_updates_end_with_the_synchronous_run():
    sync = {(1.0, 0): curve([4, 2, 1])}
    asyn = {(1.0, 0): Curve([0, 2, 4], [0, 1, 2], [4, 3, 2], torch.zeros(1))}
    assert by_updates((0,), (1.0,), sync, asyn) == {
        "synchronous": ([0, 1, 2], [[4, 2, 1]]),
        "asyn., 1x": ([0, 2], [[4, 3]]),
    }


def test_staleness_is_counted_for_the_straggler_and_for_the_others_while_all_are_at_work():
    order = [(1, 0, 0), (1, 1, 1), (2, 0, 0), (1, 2, 2), (2, 1, 3), (2, 2, 5)]
    updates = [Update(worker, step, read, 0.0, 0.0) for worker, step, read in order]
    record = Record(0.1, torch.zeros(1), torch.zeros(1), updates)
    assert staleness_by_worker(record, 2) == {
        "fast workers": {0: 2, 1: 1},  # worker 1 has done its three steps: the rest is not counted
        "straggler": {2: 1},
    }
