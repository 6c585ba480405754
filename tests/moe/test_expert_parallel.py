"""Experts on several ranks equal one process: outputs, gradients, weights, step by step."""

import sys
from functools import partial

import cloudpickle
import pytest
import torch

from pedagogy.data_parallel import average_gradients
from pedagogy.moe import (
    ExpertParallelMoE,
    top_k,
)
from pedagogy.ranks import launch
from tests.equality import differences
from tests.moe.cutting import (
    HIDDEN,
    SAME,
    limited,
    make_layer,
    optimizer_of,
    random,
    restricted,
    train_alone,
    train_parallel,
    unlimited,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUM_EXPERTS = {1: 3, 2: 4, 3: 6, 4: 4}  # by world size
SCENARIOS = {  # the gate, how many tokens each rank has
    "no drops": (unlimited, [5, 5, 5, 5]),
    "drops": (limited, [7, 0, 1, 3]),
    "two of all, drops": (partial(top_k, k=2, capacity=2), [3, 4, 5, 6]),
    "one token": (unlimited, [0, 1, 0, 0]),  # and none at all for one process
}


def data(scenario, step, rank):
    count = SCENARIOS[scenario][1][rank]
    return random(100 * step + rank, count, HIDDEN), random(5000 + 100 * step + rank, count, HIDDEN)


def loss_of(output, target, num_tokens):
    """This rank's part of the mean over all ranks' tokens."""
    return (output - target).square().sum() / (max(num_tokens, 1) * HIDDEN)


def train_layer(group, scenario, steps=3):
    """By step: output, whether each choice was kept, gradients (of the input first), weights."""
    route, counts = SCENARIOS[scenario]
    layer = ExpertParallelMoE(group, make_layer(NUM_EXPERTS[group.size], route, seed=group.rank))
    optimizer, noted = optimizer_of(layer.parameters()), []
    for step in range(steps):
        x, target = data(scenario, step, group.rank)
        output = layer(x.requires_grad_())
        # ranks' means are averaged, so that a sum over all tokens counts once for each rank
        (loss_of(output, target, sum(counts[: group.size])) * group.size).backward()
        average_gradients(group, [layer.router.weight])
        gradients = [x.grad / group.size, *(p.grad.clone() for p in layer.parameters())]
        optimizer.step()
        weights = [p.detach().clone() for p in layer.parameters()]
        noted.append((output.detach(), layer.last.kept, gradients, weights))
        optimizer.zero_grad()
    return noted


def layer_alone(scenario, size, steps=3):
    """The same by one process, which routes each rank's tokens by themselves."""
    route, counts = SCENARIOS[scenario]
    layer = make_layer(NUM_EXPERTS[size], route)
    optimizer, noted = optimizer_of(layer.parameters()), []
    for step in range(steps):
        outputs, kept, inputs = [], [], []
        for rank in range(size):
            x, target = data(scenario, step, rank)
            output = layer(x.requires_grad_())
            loss_of(output, target, sum(counts[:size])).backward()
            outputs.append(output.detach())
            kept.append(layer.last.kept)
            inputs.append(x.grad)
        gradients = [p.grad.clone() for p in layer.parameters()]
        optimizer.step()
        noted.append(
            (outputs, kept, inputs, gradients, [p.detach().clone() for p in layer.parameters()])
        )
        optimizer.zero_grad()
    return noted


def train_layers(group):
    torch.set_num_threads(1)
    return {scenario: train_layer(group, scenario) for scenario in SCENARIOS}


@pytest.mark.parametrize("size", NUM_EXPERTS)
def test_layers_equal_one_process_with_drops_and_unequal_tokens_and_without(size):
    run = launch(train_layers, size)
    for scenario in SCENARIOS:
        expected = layer_alone(scenario, size)
        for rank, found in enumerate(run):
            for step, mine in enumerate(found[scenario]):
                compare_step(mine, expected[step], rank, size)


def compare_step(mine, expected, rank, size):
    output, kept, gradients, weights = mine
    outputs, all_kept, inputs, all_gradients, all_weights = expected
    torch.testing.assert_close(output, outputs[rank], **SAME)
    assert torch.equal(kept, all_kept[rank])
    each = 4 * NUM_EXPERTS[size] // size  # tensors of this rank's experts
    here = [0, *range(1 + rank * each, 1 + (rank + 1) * each)]
    torch.testing.assert_close(gradients[0], inputs[rank], **SAME)
    for place, index in enumerate(here):
        torch.testing.assert_close(gradients[1 + place], all_gradients[index], **SAME)
        torch.testing.assert_close(weights[place], all_weights[index], **SAME)
    assert len(gradients) == 1 + len(weights) == 1 + len(here)


GPTS = {2: [(2, 1), (4, 1)], 3: [(3, 1), (6, 1)], 4: [(4, 1), (4, 2)]}  # (experts, dp) by ranks


def train_gpts(group):
    torch.set_num_threads(1)
    return [train_parallel(group, *how) for how in GPTS[group.size]]


@pytest.mark.parametrize("size", GPTS)
def test_a_gpt_with_tied_and_frozen_parameters_equals_one_process_also_on_a_grid(size):
    run = launch(train_gpts, size)
    for index, (num_experts, dp) in enumerate(GPTS[size]):
        whole = train_alone(num_experts)
        for rank, histories in enumerate(run):
            right = restricted(whole, rank, size, num_experts, dp)
            assert differences(right, [histories[index]], torch.float64) == []
