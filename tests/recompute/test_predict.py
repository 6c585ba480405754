"""What is predicted is what happens: bytes and forwards; with swaps, between two links."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.measure import memory_meter
from pedagogy.ranks import Link
from pedagogy.recompute import POLICIES, by_policy, by_rule, plan, predict
from tests.recompute.running import (
    MODELS,
    AtOnce,
    Never,
    always,
    convnet,
    deep_convnet,
    executed,
    gpt_in_float64,
    gpt_with_a_frozen_bottom,
    made,
    mixture,
    predicted,
    profiled,
    resnet_in_place,
    untied_gpt_with_dropout,
)

ALL = [make for make in MODELS if make is not gpt_in_float64] + [deep_convnet]


def by(actions):
    """A rule."""
    return lambda made: actions.get(made.key, "keep")


def assert_as_predicted(prediction, meter, tape):
    assert tape.extra_forwards == prediction.extra_forwards
    assert meter.peak == prediction.peak


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_policies_take_the_predicted_bytes_and_forwards(make, policy):
    decision = by_policy(profiled(make), policy)
    assert_as_predicted(decision.prediction, *executed(make, decision.rule))


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("action", ["keep", "recompute", "alone"])
def test_one_action_for_everything_takes_the_predicted_bytes_and_forwards(make, action):
    assert_as_predicted(predicted(profiled(make), action), *executed(make, always(action)))


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(ALL), st.integers(0, 10**6))
def test_any_mixture_takes_the_predicted_bytes_and_forwards(make, seed):
    found = profiled(make)
    actions = mixture(found, seed, ("keep", "recompute", "alone"))
    meter, tape = executed(make, by(actions))
    assert_as_predicted(predict(found, actions), meter, tape)


def test_every_reading_is_predicted_not_only_the_peak():
    found = profiled(untied_gpt_with_dropout)
    decision = by_policy(found, "speed")
    meter, _ = executed(untied_gpt_with_dropout, decision.rule)
    readings = [sum(kinds.values()) for _, kinds in meter.curve]
    live = [
        n
        for i, n in enumerate(decision.prediction.live)
        if i == 0 or n != decision.prediction.live[i - 1]
    ]
    position = iter(readings)
    assert all(n in position for n in live)  # in this order


def test_memory_after_forward_is_the_prediction_less_what_is_dropped():
    found = profiled(convnet)
    model, batch = made(convnet)
    with memory_meter(model) as meter, by_rule(always("recompute")) as tape:
        loss = model.loss(*batch)
        after = meter.now
    dropped = sum(nbytes for action, nbytes in tape.saved.values() if action == "recompute")
    kept = found.backward[0][1][0] - loss.nbytes  # all kept, and backward has begun: with 1.0
    assert after == kept - dropped


# --- the convolutional net, as a chain --------------------------------------------------------


def test_the_conv_nets_chain_by_plan_by_policy_and_by_the_tape():
    """All are cheap but convolutions and the linear layer."""
    cheap = ["bn", "relu"]
    kinds = ["conv", *cheap, "conv", *cheap, "pool", "conv", *cheap, "mean", "linear"]
    costs = [9 if kind in ("conv", "linear") else 1 for kind in kinds]
    decisions = {policy: by_policy(profiled(convnet), policy) for policy in ("speed", "memory")}
    for policy, forwards in (("speed", 8), ("memory", 15)):
        assert plan(costs, [1] * len(kinds), policy).extra_forwards == forwards
        assert decisions[policy].prediction.extra_forwards == forwards
        _, tape = executed(convnet, decisions[policy].rule)
        assert tape.extra_forwards == forwards
        ran = [op.name for op in tape.ops if op.runs]
        bn = ["native_batch_norm", "relu"]
        assert ran == [*bn, *bn, "max_pool2d_with_indices", *bn, "mean"]


def test_a_deep_net_ends_below_its_peak_and_memory_below_speed():
    found = profiled(deep_convnet)
    speed, memory = (by_policy(found, policy).prediction for policy in ("speed", "memory"))
    assert memory.peak <= speed.peak < found.peak
    assert (speed.extra_forwards, memory.extra_forwards) == (6 * 2 + 1, 5 * 3 + 6)


def test_layers_that_save_nothing_run_once_for_all_that_ask():
    found = profiled(gpt_with_a_frozen_bottom)
    assert predicted(found, "recompute").extra_forwards <= len(found.operations)


# --- swaps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_a_link_without_delay_takes_the_predicted_bytes(make):
    found = profiled(make)
    for actions in (dict.fromkeys(found.saved, "swap"), mixture(found, 1), mixture(found, 2)):
        meter, tape = executed(make, by(actions), AtOnce())
        assert_as_predicted(predict(found, actions), meter, tape)


@pytest.mark.parametrize("make", [convnet, untied_gpt_with_dropout])
def test_a_link_that_never_ends_a_copy_leaves_everything_where_it_is(make):
    found = profiled(make)
    meter, tape = executed(make, always("swap"), Never())
    prediction = predict(found, dict.fromkeys(found.saved, "swap"), link_bandwidth=1e-9)
    assert_as_predicted(prediction, meter, tape)
    assert meter.peak == found.peak
    assert prediction.stall == 0.0


@pytest.mark.parametrize("make", [convnet, resnet_in_place, untied_gpt_with_dropout])
@pytest.mark.parametrize("seed", range(2))
def test_a_real_link_lies_between_the_two(make, seed):
    """When a copy is over depends on seconds; more than at once it cannot be."""
    found = profiled(make)
    actions = mixture(found, seed)
    meter, tape = executed(make, by(actions), Link(2e8))
    assert tape.extra_forwards == predict(found, actions).extra_forwards
    assert predict(found, actions).peak <= meter.peak
    never = {key: action for key, action in actions.items() if action != "swap"}
    assert meter.peak <= predict(found, never).peak


def test_calls_bring_a_storage_back_before_it_is_asked_for():
    found = profiled(convnet)
    key = max(found.saved, key=lambda key: found.saved[key].nbytes)
    early = {0: (key,)}
    meter, tape = executed(
        convnet, lambda made: "swap" if made.key == key else "keep", AtOnce(), early
    )
    assert_as_predicted(predict(found, {key: "swap"}, calls=early), meter, tape)
    late = predict(found, {key: "swap"}, calls={})
    assert late.live != predict(found, {key: "swap"}, calls=early).live
