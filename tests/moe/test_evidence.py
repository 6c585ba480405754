"""The chapter's evidence is true of what is right, and false of what is nearly right."""

import math

import pytest
import torch
from torch import nn

from pedagogy.moe import mixture_gpt, top_k
from pedagogy.moe.evidence import (
    by_finite_differences,
    compare_all,
    dropped_shares,
    fullest,
    fullest_of_a_step,
    routed_text,
    router_gradients,
    specialisation,
    step_seconds,
    train_all,
)
from pedagogy.moe.training import Training, unlimited_switch
from pedagogy.ranks import launch


def test_finite_differences_find_a_known_gradient_and_leave_the_parameter_as_it_was():
    parameter = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.double, requires_grad=True)
    gradient = by_finite_differences(lambda: (parameter**3).sum(), parameter)
    assert gradient.tolist() == [pytest.approx([3.0, 12.0]), pytest.approx([0.75, 27.0])]
    assert parameter.tolist() == [[1.0, -2.0], [0.5, 3.0]]


def test_a_router_learns_through_the_weights_alone():
    for k in (1, 2):
        by_autograd, by_moving = router_gradients(lambda logits, k=k: top_k(logits, k))
        torch.testing.assert_close(by_autograd, by_moving, atol=1e-7, rtol=0)
        assert bool(by_autograd.any()) == (k > 1)


# --- trainings ----------------------------------------------------------------------------------


def test_trainings_come_back_by_their_setting_whichever_rank_ran_them():
    found = train_all([(4, 0.0), (2, 0.1), (2, 0.0)], steps=2)
    assert list(found) == [(4, 0.0), (2, 0.1), (2, 0.0)]
    assert {key: tuple(one.loads.shape) for key, one in found.items()} == {
        (4, 0.0): (2, 4),
        (2, 0.1): (2, 2),
        (2, 0.0): (2, 2),
    }
    assert all(one.loads.sum(1).tolist() == [512, 512] for one in found.values())
    with pytest.raises(ValueError, match="1 settings for 2 ranks"):
        train_all([(2, 0.0)], steps=2)


def test_each_rank_compares_the_models_for_a_seed_of_its_own():
    found = compare_all((0, 1), steps=2)
    assert {name: tuple(losses.shape) for name, losses in found.items()} == {
        "dense": (2, 2),
        "8 experts": (2, 2),
    }
    assert not found["dense"][0].equal(found["dense"][1])


def test_a_step_of_both_models_is_timed():
    (found,) = launch(step_seconds, 1, 1)
    assert found.keys() == {"dense", "8 experts"}
    assert all(seconds > 0 for seconds in found.values())


def test_the_fullest_expert_is_told_in_units_of_its_even_share():
    loads = torch.tensor([[0, 8], [6, 2], [2, 6]])
    assert fullest(Training(nn.Identity(), torch.zeros(3), loads), last=2) == 1.0
    assert fullest(Training(nn.Identity(), torch.zeros(3), loads), last=3) == pytest.approx(4 / 3)


def test_experts_that_are_full_by_turns_are_even_in_the_mean_and_full_in_each_step():
    by_turns = Training(nn.Identity(), torch.zeros(2), torch.tensor([[0, 8], [8, 0]]))
    assert (fullest(by_turns), fullest_of_a_step(by_turns)) == (1.0, 2.0)
    half = Training(nn.Identity(), torch.zeros(3), torch.tensor([[0, 8], [4, 4], [8, 0]]))
    assert fullest_of_a_step(half, last=2) == 1.5


# --- real tokens --------------------------------------------------------------------------------


def test_dropped_shares_follow_from_the_probabilities():
    routing = unlimited_switch(torch.tensor([[2.0, 0.0]] * 6 + [[0.0, 2.0]] * 2))
    assert dropped_shares(routing, (0.5, 1, 1.5, 2)) == [4 / 8, 2 / 8, 0, 0]


def test_an_expert_for_each_class_tells_its_whole_entropy_and_a_shuffle_does_not():
    ids = torch.tensor(list(b"aA1 a,.b")).repeat(50)
    letters = torch.tensor([0, 0, 1, 2, 0, 3, 3, 0]).repeat(50)
    routing = unlimited_switch(9.0 * nn.functional.one_hot(letters, 4).float())
    found = specialisation(ids, routing, shuffles=20)
    shares = (4 / 8, 1 / 8, 1 / 8, 2 / 8)
    assert found.bits == pytest.approx(-sum(p * math.log2(p) for p in shares))
    assert len(found.shuffled) == 20
    assert max(found.shuffled) < 0.2
    assert found.counts.tolist() == [[200, 0, 0, 0], [0, 50, 0, 0], [0, 0, 50, 0], [0, 0, 0, 100]]


def test_text_is_routed_token_by_token():
    ids, routing = routed_text(mixture_gpt(4), batch=3)
    assert ids.shape == (96,)
    assert routing.experts.shape == (96, 1)
