"""The explorer of chapter 07 says what the simulation says, over all its controls."""

import pytest

from pedagogy.costs.compute import gpt_training_flops
from pedagogy.costs.offload import hidden_from_batch, layer_copies
from pedagogy.costs.precision import DEVICES
from pedagogy.plots import style
from pedagogy.widgets.chapter07 import (
    LINKS,
    SEQUENCE,
    forward_seconds,
    hidden_from,
    layer_bytes,
    offload_explorer,
    step,
)
from tests.widgets.driving import assert_every_control_moves, assert_three_trials_draw

LINK = LINKS[2][1]
PLAIN = {"layers": 6, "hidden": 4096, "gpu": "A100", "link": LINK, "kind": "equal"}


@pytest.fixture
def explorer():
    made = offload_explorer()
    yield made
    made.close()


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    explorer.set(**values)
    return step(**values)


def test_every_control_can_be_moved_over_its_whole_range(explorer):
    assert_every_control_moves(explorer)
    assert_three_trials_draw(explorer)


def test_a_step_is_made_of_flops_and_bytes():
    forward = gpt_training_flops(1, 4096, SEQUENCE, 2, 0) / 3 / (DEVICES["A100"].tensor_16 / 2)
    assert forward_seconds(4096, 2, "A100") == pytest.approx(forward)
    copy = 2 * (12 * 4096**2 + 13 * 4096) / LINK
    found = step(batch=2, prefetch=0, **PLAIN)
    assert found.stall == pytest.approx(copy * layer_copies(6, 0))
    assert found.makespan == pytest.approx(found.stall + 6 * 3 * forward)
    plain, mixture, *_ = layer_bytes(4, 4096, "unequal")
    assert mixture == 3 * plain


@pytest.mark.parametrize(("prefetch", "link"), [(1, LINKS[0][1]), (2, LINK), (4, LINKS[3][1])])
def test_equal_layers_are_hidden_from_the_batch_of_the_closed_form_on(prefetch, link):
    reached = DEVICES["A100"].tensor_16 / 2
    expected = hidden_from_batch(4096, SEQUENCE, reached, link)
    found = hidden_from(**PLAIN | {"link": link}, prefetch=prefetch)
    assert found == expected
    stalls = [step(**PLAIN | {"link": link}, batch=b, prefetch=prefetch).stall for b in (found, 64)]
    assert stalls == pytest.approx([layer_bytes(1, 4096, "equal")[0] / link] * 2)


def test_copies_that_are_waited_for_are_never_hidden(explorer):
    assert hidden_from(**PLAIN, prefetch=0) is None
    explorer.set(prefetch=0)
    assert explorer.readout.endswith("so the link is not hidden at any batch.")


def test_the_readout_is_one_sentence_of_what_was_simulated(explorer):
    explorer.set(batch=2, prefetch=1)
    found = step(batch=2, prefetch=1, **PLAIN)
    two = 2 * layer_bytes(1, 4096, "equal")[0]
    assert explorer.readout.startswith(
        f"With prefetch 1 the device waits {found.stall_fraction:.0%} of "
        f"{style.seconds_text(found.makespan)} and holds at most {style.bytes_text(two)} "
    )
    assert explorer.readout.endswith("so the link is hidden from batch 5 on.")
    assert explorer.readout.count(". ") == 0


def test_try_a_larger_batch_only_the_first_copy_is_waited_for(explorer):
    first = layer_bytes(1, 4096, "equal")[0] / LINK
    assert chosen(explorer, "a larger batch").stall == pytest.approx(first)
    assert step(**PLAIN, batch=2, prefetch=1).stall > 2 * first


def test_try_a_wider_model_waits_for_the_same_share(explorer):
    wide, narrow = chosen(explorer, "a wider model"), step(**PLAIN, batch=2, prefetch=1)
    assert wide.stall_fraction == pytest.approx(narrow.stall_fraction, abs=0.02)
    assert wide.makespan > 3.9 * narrow.makespan


def test_try_two_layers_ahead_helps_where_layers_are_unequal(explorer):
    stalls = {
        (kind, prefetch): step(**PLAIN | {"kind": kind}, batch=8, prefetch=prefetch).stall
        for kind in ("equal", "unequal")
        for prefetch in (1, 2)
    }
    assert chosen(explorer, "two layers ahead").stall == stalls["unequal", 2]
    assert stalls["unequal", 2] < 0.8 * stalls["unequal", 1]
    assert stalls["equal", 2] == pytest.approx(stalls["equal", 1])
