"""Ranks with the same tokens run their own experts, and the outputs are summed."""

import sys
from functools import partial

import cloudpickle
import pytest
import torch

from pedagogy.moe import NoisyTopKGate, SummedExperts, top_k
from pedagogy.ranks import launch
from tests.moe.cutting import HIDDEN, SAME, limited, make_layer, optimizer_of, random

cloudpickle.register_pickle_by_value(sys.modules[__name__])


ROUTES = [limited, partial(top_k, k=2)]


def trained(layer):
    """Its last output and input gradient, and its weights after three steps."""
    optimizer = optimizer_of(layer.parameters())
    for step in range(3):
        x = random(step, 9, HIDDEN).requires_grad_()
        output = layer(x)
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [output.detach(), x.grad, *(p.detach() for p in layer.parameters())]


def on_ranks(group):
    torch.set_num_threads(1)
    layers = [make_layer(6, route, seed=group.rank) for route in ROUTES]
    return [trained(SummedExperts(group, layer)) for layer in layers]


@pytest.mark.parametrize("size", [2, 3])
def test_summed_experts_equal_one_process_after_three_steps(size):
    run = launch(on_ranks, size)
    for index, route in enumerate(ROUTES):
        expected = trained(make_layer(6, route))
        for rank, found in enumerate(run):
            torch.testing.assert_close(found[index][:3], expected[:3], **SAME)  # and the router
            mine = expected[3:][rank * 24 // size : (rank + 1) * 24 // size]
            torch.testing.assert_close(found[index][3:], mine, **SAME)


def noisy(group):
    """The experts that each rank chooses for the same tokens, with its own noise and with one."""
    chosen = []
    for seed in (group.rank, 0):
        layer = SummedExperts(group, make_layer(route=NoisyTopKGate(HIDDEN, 4, 2)))
        torch.manual_seed(seed)
        layer(random(0, 9, HIDDEN))
        chosen.append(layer.last.experts)
    return chosen


def test_a_gate_that_draws_must_draw_alike_on_all_ranks():
    (own_0, one_0), (own_1, one_1) = launch(noisy, 2)
    assert not torch.equal(own_0, own_1)
    assert torch.equal(one_0, one_1)


def counted(group):
    """The bytes of every all_reduce of a forward and backward."""
    layer = SummedExperts(group, make_layer(route=ROUTES[1]).float())
    start = len(group.events)
    layer(random(0, 9, HIDDEN).float().requires_grad_()).sum().backward()
    return [event.nbytes for event in group.events[start:] if event.kind == "all_reduce"]


def test_the_output_its_gradient_and_that_of_the_weights_are_reduced():
    rows, weights = 4 * 9 * HIDDEN, 4 * 9 * 2  # a ring of two sends as much as it reduces
    for first, *others in launch(counted, 2):
        assert first == rows
        assert sorted(others) == [weights, rows]
