"""The explorer of recorded gradients says what was recorded, over all its controls."""

import pytest
import torch

from pedagogy.precision import GradientRecord, histogram_of
from pedagogy.widgets.chapter05 import ALL, counted, gradient_range_explorer
from tests.widgets.driving import assert_every_control_moves, assert_three_trials_draw


def record(step, layer, kind, *powers):
    return GradientRecord(step, layer, kind, histogram_of(2.0 ** torch.tensor(powers)))


RECORDS = {
    "GPT": [
        record(0, "head", "weight", -8.0, -10.0),
        record(0, "head", "activation", -30.0, -20.0, -12.0, -9.0),
        record(9, "head", "weight", -9.0, -11.0),
        record(9, "head", "weight", -3.0),  # its bias
        record(9, "head", "activation", -31.0, -22.0),
        record(9, "dropout", "activation", -40.0, -26.0),
    ],
    "ConvNet": [
        record(step, "first", kind, -5.0, -6.0)
        for step in (0, 9)
        for kind in ("weight", "activation")
    ],
}


def gradients():
    return gradient_range_explorer(RECORDS)


ranges = pytest.mark.parametrize("explorer", [gradients], indirect=True)


def chosen(explorer, label):
    (trial,) = [trial for trial in explorer.try_this if trial.label == label]
    return explorer.set(**trial.values), trial.outcome


@ranges
def test_every_control_can_be_moved_over_its_whole_range(explorer):
    assert_every_control_moves(explorer)
    assert_three_trials_draw(explorer)


def test_all_layers_are_the_sum_of_the_layers_and_a_layers_tensors_are_added():
    by_place = counted(RECORDS)
    assert by_place["GPT", 9, "head", "weight"].num_values == 3
    assert by_place["GPT", 9, ALL, "activation"].num_values == 4
    assert by_place["GPT", 0, ALL, "activation"].num_values == 4
    assert ("GPT", 9, "dropout", "weight") not in by_place


@ranges
def test_the_shares_are_those_of_what_is_chosen(explorer):
    explorer.set(model="GPT", step=0, layer="head", kind="activation", log2_scale=0, format="fp16")
    assert "of activation gradients 25% become zero, 25% subnormal" in explorer.readout
    explorer.set(log2_scale=5)
    assert "of activation gradients 0% become zero, 50% subnormal" in explorer.readout
    explorer.set(log2_scale=0, format="fp8 e5m2")
    assert "50% become zero, 0% subnormal" in explorer.readout
    explorer.set(step=9)
    assert "100% become zero" in explorer.readout


@ranges
def test_the_menu_of_layers_is_that_of_the_model_and_a_layer_without_weights_says_so(explorer):
    explorer.set(model="ConvNet", layer="first")
    assert list(explorer.controls["layer"].options) == [ALL, "first"]
    explorer.set(layer="dropout", model="GPT", kind="weight", step=9)
    assert explorer.values["layer"] == "dropout"
    assert explorer.readout.endswith("dropout has no weight gradients.")
    explorer.controls["model"].value = "ConvNet"
    assert explorer.values["layer"] == ALL
    assert explorer.error is None


@ranges
def test_the_axis_stays_where_it_is_while_the_scale_moves(explorer):
    limits = []
    for scale in (0, 7, 20):
        explorer.set(log2_scale=scale)
        limits.append([ax.get_xlim() for ax in explorer.figure.axes])
    assert limits[0] == limits[1] == limits[2]


@ranges
def test_the_outcomes_are_counted_in_the_records(explorer):
    """At step 9 the activations are 2^-31, -22, -40 and -26; the largest value is 2^-3."""
    _, outcome = chosen(explorer, "no loss scale")
    assert outcome.startswith("in fp16 75% of the activation gradients become zero, and 0% of")
    assert "of activation gradients 75% become zero" in explorer.readout
    _, outcome = chosen(explorer, "the largest scale")
    assert explorer.values["log2_scale"] == 18
    assert outcome.startswith("2^18, the most without an overflow: 0% of")
    assert "of weight gradients 0% become zero, 0% subnormal, 0% infinite" in explorer.readout
    explorer.set(log2_scale=19)
    assert "33.3% infinite" in explorer.readout
    _, outcome = chosen(explorer, "bf16 instead")
    assert outcome.startswith("0% of the activation")
    assert "activation gradients 0% become zero" in explorer.readout


def test_models_recorded_at_other_steps_or_none_are_refused():
    for wrong in ({}, {"GPT": []}, {**RECORDS, "MLP": [record(3, "a", "weight", 1.0)]}):
        with pytest.raises(ValueError, match="the same steps for all"):
            gradient_range_explorer(wrong)
