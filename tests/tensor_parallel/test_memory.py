"""The bytes that a cut layer keeps for backward are those of the closed form, to the byte."""

import functools
import sys

import cloudpickle
import pytest
import torch

from pedagogy.costs.memory import gpt_layer_activation_terms
from pedagogy.measure import memory_meter
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import RandomStreams
from pedagogy.tensor_parallel.evidence import settled
from pedagogy.workloads import Block
from tests.tensor_parallel.cutting import BLOCKS

cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEPT = dict(zip(("whole", "gathered", "shard"), BLOCKS, strict=True))
SIZES = [  # sequence, batch, hidden, heads
    (12, 3, 24, 4),
    (8, 1, 16, 8),
    (64, 2, 32, 4),
]


def kept_bytes(group):
    """Bytes live after the forward of a layer, but for its output; by size, kind and dropout."""
    torch.set_num_threads(1)
    found = {}
    for size in SIZES:
        sequence, batch, hidden, heads = size
        for kept, block in KEPT.items():
            for p in (0.0, 0.1):
                layer = block(group, Block(hidden, heads, sequence, p), RandomStreams(group))
                mine = sequence if kept == "whole" else sequence // group.size
                with memory_meter(layer) as meter:
                    x = torch.ones(batch, mine, hidden, requires_grad=True)
                    y = layer(x)
                    found[size, kept, p > 0] = settled(group, meter) - y.nbytes
                    y.sum().backward()
    return found


@functools.cache
def run_of(world_size):
    """One launch for each number of ranks."""
    return launch(kept_bytes, world_size)


@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("size", SIZES)
def test_a_layer_keeps_what_the_closed_form_says(size, kept, dropout, t):
    terms = gpt_layer_activation_terms(*size, tensor_parallel=t, kept=kept, dropout=dropout)
    for measured in run_of(t):
        assert measured[size, kept, dropout] == sum(terms.values())


@pytest.mark.parametrize("dropout", [False, True])
def test_with_the_shard_alone_everything_is_divided_by_the_ranks(dropout):
    alone = run_of(1)[0][SIZES[0], "shard", dropout]
    for t in (2, 4):
        assert run_of(t)[0][SIZES[0], "shard", dropout] * t == alone


def halves(group):
    """Bytes that the two halves of a layer keep alone, beyond input and output."""
    torch.set_num_threads(1)
    sequence, batch, hidden, heads = SIZES[0]
    layer = BLOCKS[0](group, Block(hidden, heads, sequence))
    found = []
    for part in (layer.attention, layer.feed_forward):
        with memory_meter(layer) as meter:
            x = torch.ones(batch, sequence, hidden, requires_grad=True)
            y = part(x)
            found.append(settled(group, meter) - y.nbytes)
            del x, y
    return found


@pytest.mark.parametrize("t", [1, 2, 4])
def test_each_half_keeps_its_own_terms(t):
    terms = gpt_layer_activation_terms(*SIZES[0], tensor_parallel=t)
    x = terms["inputs_of_halves"] // 2
    attention = ("queries_keys_values", "probabilities", "projection_input")
    for found in launch(halves, t):
        assert found == [x + sum(terms[name] for name in attention), x + terms["around_gelu"]]


def memory_of_a_step(group):
    """What is live after backward beside the gradients: nothing but the input's gradient."""
    sequence, batch, hidden, heads = SIZES[0]
    layer = BLOCKS[2](group, Block(hidden, heads, sequence))
    with memory_meter(layer) as meter:
        x = torch.ones(batch, sequence // group.size, hidden, requires_grad=True)
        layer(x).sum().backward()
        return settled(group, meter) - x.nbytes - x.grad.nbytes


def test_what_was_gathered_again_is_let_go():
    assert set(launch(memory_of_a_step, 2)) == {0}
