"""The explorer of stragglers says what is true, over all its controls."""

import pytest

from pedagogy.plots.lanes import blocks
from pedagogy.widgets.chapter01_asynchronous import (
    LONG,
    NO_BOUND,
    simulations,
    slowdowns,
    straggler_explorer,
)


@pytest.fixture
def explorer():
    made = straggler_explorer()
    yield made
    made.close()


def rates(values):
    return [one.gradients_per_unit(LONG) for one in simulations(**values, end=LONG).values()]


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return rates(explorer.set(**values).values)


@pytest.mark.parametrize("workers", [2, 3, 6])
def test_N09_every_setting_is_drawn_at_one_size(explorer, workers):
    for slowdown in (1.0, 2.5, 6.0):
        for backups in (0, 2):
            for bound in (0, 4, NO_BOUND):
                explorer.set(
                    workers=workers, slowdown=slowdown, backup_workers=backups,
                    staleness_bound=bound,
                )  # fmt: skip
                assert explorer.error is None
                assert tuple(explorer.figure.get_size_inches()) == (10.0, 5.6)


def test_lanes_hold_the_spans_of_all_three_ways(explorer):
    explorer.set(workers=2, slowdown=3.0, backup_workers=1, staleness_bound=NO_BOUND)
    ax = explorer.figure.axes[0]
    assert {rank for rank, _, _ in blocks(ax, "other")} == {1, 2, 4, 7, 8}  # 5 is always dropped
    assert {rank for rank, _, _ in blocks(ax, "dropped")} == {5}
    assert {rank for rank, _, _ in blocks(ax, "wait")} == {1}


def test_the_readout_names_the_rates(explorer):
    explorer.set(workers=4, slowdown=4.0, backup_workers=1, staleness_bound=NO_BOUND)
    assert "takes 4 times as long: synchronous steps use 1.00 gradients" in explorer.readout


def test_try_nobody_is_slow_asynchronous_gains_next_to_nothing(explorer):
    synchronous, backed, free = chosen(explorer, "nobody is slow")
    assert synchronous <= free <= 1.03 * synchronous
    assert backed == pytest.approx(0.75 * synchronous, rel=0.02)


def test_try_a_straggler_of_4_leaves_a_quarter_and_the_first_3_lose_nothing(explorer):
    values = explorer.values | {"slowdown": 1.0, "backup_workers": 1}
    even = rates(values)
    synchronous, backed, free = chosen(explorer, "a straggler of 4x")
    assert synchronous == pytest.approx(even[0] / 4, rel=0.03)
    assert backed == pytest.approx(even[1], rel=0.01)
    assert free > 3 * synchronous


def test_try_a_bound_of_0_brings_the_barrier_back(explorer):
    synchronous, _, free = chosen(explorer, "a bound of 0")
    assert free == pytest.approx(synchronous, rel=0.05)


def test_the_last_worker_is_the_straggler_and_no_two_others_are_equal():
    assert slowdowns(4, 3.0) == (1.0, 1.01, 1.02, 3.0)
