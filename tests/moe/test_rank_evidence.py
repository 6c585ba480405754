"""Evidence from ranks is equal to one process where it is, and one wrong number is seen."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.moe import ExpertParallelMoE, MoELayer
from pedagogy.moe.rank_evidence import (
    Crossing,
    choices_elsewhere,
    crossing,
    equal_kinds,
    equals_one_process,
    spread_evidence,
    whole_evidence,
)
from pedagogy.moe.training import unlimited_switch
from pedagogy.ranks import Event, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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
    x = tokens_of(group.rank).requires_grad_()
    output = layer(x)
    output.square().mean().backward()
    group.all_reduce_(layer.router.weight.grad, "mean")
    elsewhere = choices_elsewhere(group, layer.last, len(layer.experts))
    return spread_evidence(layer, output, x.grad / group.size), elsewhere, layer.last.experts


@pytest.fixture(scope="module")
def two_ranks():
    return launch(one_step, 2)


@pytest.fixture(scope="module")
def alone():
    layer = small_layer()
    inputs = [tokens_of(rank).requires_grad_() for rank in (0, 1)]
    outputs = [layer(x) for x in inputs]
    sum(output.square().mean() / 2 for output in outputs).backward()
    return whole_evidence(layer, outputs, [x.grad for x in inputs])


def test_what_ranks_leave_is_put_together_and_equals_one_process(two_ranks, alone):
    found = [one for one, *_ in two_ranks]
    assert "experts.3.expand.weight" in found[1].weights
    assert equals_one_process(found, alone)


WRONG = [
    ("outputs", "rank 1"),
    ("gradients", "router.weight"),
    ("gradients", "experts.2.project.weight"),
    ("gradients", "input of rank 1"),
    ("weights", "experts.3.expand.weight"),
]


@pytest.mark.parametrize(("kind", "name"), WRONG)
def test_one_wrong_number_on_one_rank_is_seen_and_its_kind_is_told(two_ranks, alone, kind, name):
    first, second = (one for one, *_ in two_ranks)
    named = getattr(second, kind)
    wrong = named[name].clone()
    wrong.view(-1)[-1] += 1e-6 * max(one.abs().max() for one in getattr(alone, kind).values())
    found = [first, second._replace(**{kind: named | {name: wrong}})]
    assert [one for one, equal in equal_kinds(found, alone).items() if not equal] == [kind]
    assert not equals_one_process(found, alone)


def test_what_one_rank_has_left_out_is_missed(two_ranks, alone):
    first, second = (one for one, *_ in two_ranks)
    assert not equals_one_process([first], alone)
    silent = {k: v for k, v in second.gradients.items() if k != "input of rank 1"}
    assert not equals_one_process([first, second._replace(gradients=silent)], alone)


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


def test_adam_hides_a_gradient_of_a_wrong_scale_and_sgd_does_not():
    moved = {}
    for optimizer in (torch.optim.AdamW, torch.optim.SGD):
        for scale in (1, 4):
            weight = nn.Parameter(torch.ones(3, dtype=torch.double))
            stepped = optimizer([weight], lr=0.01)
            for step in range(3):
                weight.grad = scale * torch.tensor([0.5, -0.1, step], dtype=torch.double)
                stepped.step()
            moved[optimizer, scale] = weight.detach()
    torch.testing.assert_close(
        *(moved[torch.optim.AdamW, scale] for scale in (1, 4)), rtol=1e-6, atol=0
    )
    assert not torch.allclose(*(moved[torch.optim.SGD, scale] for scale in (1, 4)), rtol=1e-3)
