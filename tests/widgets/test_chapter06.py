"""The explorer of chapter 06 says what the closed forms say, over all its controls."""

import pytest

from pedagogy.costs.accumulation import gpt_peak_bytes
from pedagogy.costs.communication import all_reduce_seconds, ring_all_reduce_bytes
from pedagogy.costs.memory import gpt_parameters
from pedagogy.widgets.chapter06 import ALPHA, BETA, accumulation_explorer, costs, peak
from tests.widgets.driving import assert_every_control_moves, assert_three_trials_draw


@pytest.fixture
def explorer():
    made = accumulation_explorer()
    yield made
    made.close()


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


def test_every_control_can_be_moved_over_its_whole_range(explorer):
    assert_every_control_moves(explorer)
    assert_three_trials_draw(explorer)


def test_costs_are_the_closed_forms():
    ks, memory, seconds, sent = costs(8, 4, 0.5, 1.0)
    gradient_bytes = 4 * gpt_parameters(2, 64, 256, 64)
    assert ks == [1, 2, 4, 8]
    found = {kind: values[2] for kind, values in memory.items()}
    assert found == gpt_peak_bytes(2, 64, 4, 64, 8, 4)
    wait = all_reduce_seconds(gradient_bytes, 4, ALPHA, BETA)
    assert seconds == pytest.approx([8 + 0.5 * k + wait for k in ks])
    once = ring_all_reduce_bytes(gradient_bytes, 4)
    assert sent == {
        "once a window": [once] * 4,
        "for each micro-batch": [once * k for k in ks],
    }


def test_a_k_above_the_batch_is_the_batch_and_said(explorer):
    explorer.set(batch=8, k=64)
    assert explorer.readout.endswith("k is 8, not 64: a batch of 8 has no more pieces.")
    assert explorer.readout.startswith("With k = 8 ")


def test_the_smallest_k_that_fits_is_said_or_that_none_does(explorer):
    explorer.set(batch=64, limit=10e6)
    peaks = {k: sum(peak(64, k).values()) for k in (4, 8)}
    assert peaks[8] <= 10e6 < peaks[4]
    assert "The smallest k that fits 10 MB is 8." in explorer.readout
    explorer.set(limit=2e6)
    assert "No k fits 2 MB." in explorer.readout
    assert "smallest" not in explorer.readout


def test_try_all_at_once_the_peak_is_activations(explorer):
    chosen(explorer, "all at once")
    held = peak(64, 1)
    assert round(held["activations"] / sum(held.values()), 2) == 0.98
    assert explorer.readout.startswith("With k = 1 ")


def test_try_the_floor_is_what_no_k_lowers(explorer):
    chosen(explorer, "the floor")
    held = peak(64, 64)
    assert round(1 - held["activations"] / sum(held.values()), 2) == 0.68
    floor = sum(held.values()) - held["activations"]
    assert all(sum(peak(64, k).values()) > floor for k in (2, 8, 64))


def test_try_free_launches_cost_no_time(explorer):
    chosen(explorer, "free launches")
    assert "(1.00 times)" in explorer.readout
    explorer.set(t0=2e-3)
    assert "(1.00 times)" not in explorer.readout
