"""The chapter's evidence is true of what is right, and false of what is nearly right."""

import math
import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.moe import ExpertParallelMoE, MoELayer, mixture_gpt, top_k
from pedagogy.moe.evidence import (
    Crossing,
    by_finite_differences,
    choices_elsewhere,
    compare_all,
    crossing,
    dropped_shares,
    equals_one_process,
    fullest,
    routed_text,
    router_gradients,
    specialisation,
    spread_evidence,
    step_seconds,
    train_all,
    whole_evidence,
)
from pedagogy.moe.training import Training, unlimited_switch
from pedagogy.ranks import Event, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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


# --- experts on ranks ---------------------------------------------------------------------------


def small_layer():
    torch.manual_seed(0)
    layer = MoELayer(4, 4, unlimited_switch).double()
    nn.init.normal_(layer.router.weight)
    return layer


def tokens_of(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 4, generator=generator, dtype=torch.double)


def one_step(group):
    layer = ExpertParallelMoE(group, small_layer())
    output = layer(tokens_of(group.rank))
    output.square().mean().backward()
    group.all_reduce_(layer.router.weight.grad, "mean")
    elsewhere = choices_elsewhere(group, layer.last, len(layer.experts))
    return spread_evidence(layer, output), elsewhere, layer.last.experts


@pytest.fixture(scope="module")
def two_ranks():
    return launch(one_step, 2)


@pytest.fixture(scope="module")
def alone():
    layer = small_layer()
    outputs = [layer(tokens_of(rank)) for rank in (0, 1)]
    sum(output.square().mean() / 2 for output in outputs).backward()
    return whole_evidence(layer, outputs)


def test_what_ranks_leave_is_put_together_and_equals_one_process(two_ranks, alone):
    found = [one for one, *_ in two_ranks]
    assert "experts.3.expand.weight" in found[1].weights
    assert equals_one_process(found, alone)


@pytest.mark.parametrize("kind", ["outputs", "gradients", "weights"])
def test_one_wrong_number_on_one_rank_is_seen_and_so_is_a_missing_one(two_ranks, alone, kind):
    first, second = (one for one, *_ in two_ranks)
    named = getattr(second, kind)
    name = next(iter(named))
    wrong = named[name] + 1e-6 * max(one.abs().max() for one in getattr(alone, kind).values())
    assert not equals_one_process([first, second._replace(**{kind: named | {name: wrong}})], alone)
    assert not equals_one_process([first], alone)


def test_choices_elsewhere_are_those_of_experts_that_another_rank_holds(two_ranks):
    for rank, (_, elsewhere, experts) in enumerate(two_ranks):
        away = [one for (one,) in experts.tolist() if one not in (2 * rank, 2 * rank + 1)]
        assert elsewhere == len(away)


def test_a_message_crosses_where_its_rank_stands_in_another_node():
    flat = Event(1, "all_to_all", "", 0, 1, nbytes=30, peers=(0, 1, 2, 3))
    assert crossing([flat], per_node=2) == Crossing(1, 2, 10, 20)
    assert crossing([flat, flat], per_node=4) == Crossing(6, 0, 60, 0)
    with pytest.raises(ValueError, match="31 bytes to 3 ranks"):
        crossing([flat._replace(nbytes=31)], per_node=2)


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
