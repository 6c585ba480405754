"""The explorers of chapter 08 say what the predictions say, over all their controls."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.plots.recompute_lives import held_over_time, lives
from pedagogy.recompute import by_operation, by_policy, predict, profile, swap_or_recompute
from pedagogy.recompute.evidence import swapped
from pedagogy.widgets.chapter08 import (
    BOTH,
    KEEP,
    LINKS,
    POLICIES,
    SWAP_ALL,
    decided,
    lifetime_explorer,
    link_bandwidth,
    policy_explorer,
)
from pedagogy.workloads import GPT, text_batch
from tests.widgets.driving import assert_every_control_moves, assert_three_trials_draw

DEAR = {"convolution": 10e-3, "addmm": 4e-3, "bmm": 2e-3}
CHEAP, BACKWARD = 0.5e-3, 1.5e-3


class Deep(nn.Module):
    """Eight convolutions with BatchNorm and ReLU."""

    def __init__(self):
        super().__init__()
        layers = [
            layer
            for i in range(8)
            for layer in (nn.Conv2d(4 if i else 1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        ]
        self.features = nn.Sequential(*layers)

    def loss(self, images, targets):
        return functional.mse_loss(self.features(images).mean(), targets)


def paced(model, batch):
    """A profile whose seconds are made up, so that no machine decides what a test sees."""
    watched = profile(model, batch)
    for op in watched.operations:
        op.seconds = DEAR.get(op.name, CHEAP)
    return watched._replace(backward=tuple((BACKWARD, read) for _, read in watched.backward))


@pytest.fixture(scope="module")
def profiles():
    torch.manual_seed(0)
    return {
        "GPT": paced(GPT(256, 2, 32, 2, 32), text_batch(4, 32)),
        "ConvNet": paced(Deep(), (torch.randn(16, 1, 8, 8), torch.tensor(1.0))),
    }


@pytest.fixture
def policies(profiles):
    made = policy_explorer(profiles)
    yield made
    made.close()


@pytest.fixture
def lifetimes(profiles):
    made = lifetime_explorer(profiles)
    yield made
    made.close()


def chosen(explorer, label, **values):
    """The values of a trial, as they stand after it was pressed."""
    (trial,) = [trial for trial in explorer.try_this if trial.label == label]
    explorer.set(**trial.values, **values)
    assert explorer.error is None
    return explorer.values


def fitting(explorer):
    return explorer.readout.rsplit("within the budget: ", 1)[1].rstrip(".").split(", ")


def test_every_control_of_the_policies_can_be_moved_over_its_whole_range(policies):
    assert_every_control_moves(policies)
    assert_three_trials_draw(policies)


def test_every_control_of_the_lifetimes_can_be_moved_over_its_whole_range(lifetimes):
    assert_every_control_moves(lifetimes)
    assert_three_trials_draw(lifetimes)


def test_what_takes_long_acts_on_release(policies, lifetimes):
    for explorer in (policies, lifetimes):
        for name in ("budget", "link"):
            assert explorer.controls[name].continuous_update is False


def test_each_policy_is_the_chapters_own(profiles):
    watched, bandwidth = profiles["ConvNet"], link_bandwidth(profiles["ConvNet"], 4)
    saved = sum(one.nbytes for one in watched.saved.values())
    assert bandwidth == pytest.approx(4 * saved / watched.seconds)
    expected = {
        KEEP: predict(watched, {}),
        SWAP_ALL: swapped(watched, bandwidth).prediction,
        "by operation": by_operation(watched, bandwidth).prediction,
        BOTH: swap_or_recompute(watched, int(0.7 * watched.peak), bandwidth).prediction,
        **{policy: by_policy(watched, policy).prediction for policy in ("speed", "memory", "cost")},
    }
    assert set(expected) == set(POLICIES)
    for policy, prediction in expected.items():
        assert decided(watched, policy, 0.7, 4).prediction == prediction
    assert expected[KEEP].peak == watched.peak


@pytest.mark.parametrize("model", ["GPT", "ConvNet"])
def test_the_points_are_those_of_the_predictions(policies, profiles, model):
    policies.set(model=model, budget=0.8, link=4)
    (ax,) = policies.figure.axes
    found = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in ax.lines
        if line.get_gid() == "predicted"
    ]
    predictions = [decided(profiles[model], policy, 0.8, 4).prediction for policy in POLICIES]
    assert found == [(one.seconds, one.peak) for one in predictions]
    fit = [
        policy
        for policy, one in zip(POLICIES, predictions, strict=True)
        if one.peak <= 0.8 * profiles[model].peak
    ]
    assert fitting(policies) == fit


def test_a_budget_out_of_reach_is_said_and_the_other_points_stay(policies, profiles):
    with pytest.raises(ValueError, match="is not reached"):
        decided(profiles["ConvNet"], BOTH, 0.05, 1)
    policies.controls["budget"].options = [("5 %", 0.05)]
    policies.set(model="ConvNet", budget=0.05, link=1)
    assert "swap or recompute finds no choice that fits; within the budget: none" in (
        policies.readout
    )
    (ax,) = policies.figure.axes
    points = [line for line in ax.lines if line.get_gid() == "predicted"]
    assert len(points) == len(POLICIES) - 1


@pytest.mark.parametrize("model", ["GPT", "ConvNet"])
def test_try_a_fast_link_adds_no_time(policies, profiles, model):
    values = chosen(policies, "a fast link", model=model)
    found = decided(profiles[model], BOTH, values["budget"], values["link"])
    assert set(found.actions.values()) == {"swap"}
    assert found.prediction.seconds == pytest.approx(profiles[model].seconds)
    assert "makes 0 again and adds 0.0% of time" in policies.readout


@pytest.mark.parametrize("model", ["GPT", "ConvNet"])
def test_try_a_slow_link_makes_again_what_swapping_would_wait_for(policies, profiles, model):
    values = chosen(policies, "a slow link", model=model)
    both = decided(profiles[model], BOTH, values["budget"], values["link"])
    swapped = decided(profiles[model], SWAP_ALL, values["budget"], values["link"])
    assert swapped.prediction.stall > 0.02 * profiles[model].seconds
    assert "recompute" in both.actions.values()
    assert both.prediction.seconds < swapped.prediction.seconds
    assert BOTH in fitting(policies)


@pytest.mark.parametrize("model", ["GPT", "ConvNet"])
def test_try_half_of_the_memory_fits_one_policy_only(policies, model):
    chosen(policies, "half of the memory", model=model)
    assert fitting(policies) == [BOTH]


def strip_peak(watched, decision):
    held = held_over_time(lives(watched, decision.prediction, decision.actions))
    return max(nbytes for _, nbytes in held)


@pytest.mark.parametrize("model", ["GPT", "ConvNet"])
def test_try_keep_everything_what_is_made_first_is_needed_last(lifetimes, profiles, model):
    chosen(lifetimes, "keep everything", model=model)
    watched = profiles[model]
    found = lives(watched, predict(watched, {}), {})
    starts, ends = zip(*((life.spans[0][0], life.spans[-1][1]) for life in found), strict=True)
    assert starts == tuple(sorted(starts))
    assert ends.index(max(ends)) < 3
    assert ends.index(min(ends)) > len(ends) - 4
    held = held_over_time(found)
    fullest = max(held, key=lambda one: one[1])[0]
    assert watched.forward_seconds * 0.9 <= fullest <= watched.forward_seconds * 1.1
    assert "at most" in lifetimes.readout


@pytest.mark.parametrize("model", ["GPT", "ConvNet"])
def test_try_drop_and_make_again_lowers_the_strip(lifetimes, profiles, model):
    chosen(lifetimes, "drop and make again", model=model)
    kept = decided(profiles[model], KEEP, 1, 1)
    dropped = decided(profiles[model], "speed", 1, 1)
    assert strip_peak(profiles[model], dropped) < 0.85 * strip_peak(profiles[model], kept)
    assert "are dropped and made again" in lifetimes.readout


@pytest.mark.parametrize("model", ["GPT", "ConvNet"])
def test_try_swap_over_a_slow_link_leaves_tensors_here(lifetimes, profiles, model):
    values = chosen(lifetimes, "swap over a slow link", model=model)
    slow = strip_peak(profiles[model], decided(profiles[model], SWAP_ALL, 1, values["link"]))
    fast = strip_peak(profiles[model], decided(profiles[model], SWAP_ALL, 1, LINKS[-1][1]))
    assert slow > 1.3 * fast


def test_an_explorer_without_profiles_is_refused():
    for make in (policy_explorer, lifetime_explorer):
        with pytest.raises(ValueError, match="0 profiles"):
            make({})
