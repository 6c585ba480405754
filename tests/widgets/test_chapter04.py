"""The explorers of chapter 04 say what is true, over all their controls."""

import pytest
import torch

from pedagogy.moe import mixture_gpt, moe_layers, switch_loss, top_k
from pedagogy.moe.specialisation import CLASSES, token_classes
from pedagogy.moe.training import Training
from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.widgets.chapter04 import (
    NO_LIMIT,
    PASSAGE,
    WINDOW,
    passage_logits,
    render_routing,
    routing_explorer,
)
from pedagogy.widgets.chapter04_costs import experts_cost_explorer
from pedagogy.widgets.chapter04_exchange import exchange_explorer
from tests.widgets.driving import assert_every_control_moves, assert_three_trials_draw


def training(num_experts, seed=0):
    """An untrained mixture, but for a router that prefers: routing needs no more."""
    model = mixture_gpt(num_experts, seed=seed)
    layer = next(moe_layers(model))
    torch.nn.init.normal_(layer.router.weight, generator=torch.Generator().manual_seed(seed))
    return Training(model, torch.zeros(1), torch.zeros(1, num_experts))


TRAININGS = {(n, w): training(n, seed) for n in (4, 8) for seed, w in enumerate((0.0, 0.01))}
PLAIN = {"experts": 8, "loss_weight": 0.0, "k": 1, "capacity_factor": 1.0, "noise": 0.0}


def routing():
    return routing_explorer(TRAININGS)


routings = pytest.mark.parametrize("explorer", [routing], indirect=True)


@pytest.mark.parametrize(
    "explorer", [routing, experts_cost_explorer, exchange_explorer], indirect=True
)
def test_every_control_can_be_moved_over_its_whole_range(explorer):
    assert_every_control_moves(explorer)
    assert_three_trials_draw(explorer)


# Routing


def test_the_passage_has_every_class_of_character_and_fills_windows():
    assert len(PASSAGE) % WINDOW == 0
    counts = token_classes(torch.tensor(list(PASSAGE.encode()))).bincount(minlength=len(CLASSES))
    assert int(counts.min()) >= 8


def test_the_logits_are_those_of_the_router_up_to_a_constant():
    made = TRAININGS[8, 0.0]
    logits = passage_logits(made)
    layer, seen = next(moe_layers(made.model)), []
    hook = layer.router.register_forward_hook(lambda router, x, _: seen.append(router.logits(x[0])))
    with torch.no_grad():
        made.model(torch.tensor(list(PASSAGE.encode())).view(-1, WINDOW))
    hook.remove()
    apart = logits - seen[0]
    assert torch.allclose(apart, apart[:, :1].expand_as(apart), atol=1e-5)
    for wrong in (PASSAGE + "x", "", "\u00e9" * WINDOW):
        with pytest.raises(ValueError, match=f"a passage of {len(wrong)} characters"):
            passage_logits(made, wrong)


def test_the_same_values_give_the_same_picture_and_noise_another():
    logits = {key: passage_logits(made) for key, made in TRAININGS.items()}
    labels = [
        render_routing(**PLAIN | {"noise": noise}, logits=logits).get_label()
        for noise in (0.0, 2.0, 2.0)
    ]
    assert labels[1] == labels[2] != labels[0]


@routings
def test_what_is_drawn_is_what_the_gate_chose_for_the_passage(explorer):
    logits = passage_logits(TRAININGS[8, 0.0])
    explorer.set(**PLAIN)
    expected = top_k(logits, 1, capacity=12)  # 96 characters, 8 experts
    ax, bars = explorer.figure.axes[:2]
    numbers = [int(text) for text, _ in labels_of(ax, "experts")]
    assert numbers == expected.experts.flatten().tolist()
    dropped = sum(len(blocks(ax, f"dropped by {expert}")) for expert in range(8))
    assert dropped == expected.num_dropped > 0
    assert [line.get_xdata()[0] for line in bars.lines if line.get_gid() == "capacity"] == [12]
    balance = switch_loss(expected.probabilities, expected.experts)
    assert f"E sum f P is {balance:.2f}" in explorer.readout
    assert explorer.readout.startswith(f"{dropped} of 96 choices are dropped")


@routings
def test_the_buffers_grow_with_the_factor_and_with_k_and_shrink_with_the_experts(explorer):
    rooms = {}
    for experts, k, factor in ((8, 1, 1.0), (8, 1, 2.0), (8, 2, 1.0), (4, 1, 1.0)):
        explorer.set(**PLAIN | {"experts": experts, "k": k, "capacity_factor": factor})
        (rooms[experts, k, factor],) = [
            line.get_xdata()[0]
            for line in explorer.figure.axes[1].lines
            if line.get_gid() == "capacity"
        ]
    assert list(rooms.values()) == [12, 24, 24, 24]
    explorer.set(**PLAIN | {"capacity_factor": NO_LIMIT})
    assert explorer.readout.startswith("0 of 96 choices are dropped (0%) without a limit")


@routings
def test_the_largest_factor_has_room_for_most_of_the_passage_in_one_of_eight_experts(explorer):
    readout = explorer.set(**PLAIN | {"capacity_factor": 6.0}).readout
    assert "with room for 72 in each expert" in readout


def test_even_probabilities_have_a_loss_of_1_wherever_the_tokens_go():
    """What the explorer says of 1: f or P is even. Here P is, and all go to expert 0."""
    logits = {(8, 0.0): torch.zeros(len(PASSAGE), 8)}
    label = render_routing(**PLAIN, logits=logits).get_label()
    assert "the fullest of 8 experts is 0, with 96" in label
    assert "E sum f P is 1.00 (1 when f or P is even" in label
    logits = {(8, 0.0): torch.zeros(len(PASSAGE), 8).index_fill(1, torch.tensor([3]), 50.0)}
    label = render_routing(**PLAIN, logits=logits).get_label()
    assert "E sum f P is 8.00" in label
    assert "8 when one expert has all, with probability 1" in label


def test_only_trainings_of_every_pair_make_an_explorer():
    some = {key: made for key, made in TRAININGS.items() if key != (4, 0.01)}
    with pytest.raises(ValueError, match=r"\[\(4, 0.01\)\]"):
        routing_explorer(some)
