"""What a step of the cut GPT sends, and what a rank of it holds, counted."""

import sys
from collections import Counter

import cloudpickle
import pytest

from pedagogy.costs import memory
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import ParallelBlock, ParallelGPT
from pedagogy.workloads import GPT, text_batch
from tests.tensor_parallel.cutting import BLOCKS

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZES = {"vocabulary": 256, "layers": 3, "hidden": 16, "heads": 4, "sequence": 8}
B = 2


def one_step(group, block):
    """The events of a forward, of a backward, and of what follows it."""
    model = ParallelGPT(group, GPT(**SIZES), block)
    inputs, targets = text_batch(B, SIZES["sequence"])
    marks = [len(group.events)]
    loss = model.loss(inputs, targets)
    marks.append(len(group.events))
    loss.backward()
    marks.append(len(group.events))
    model.finish_backward()
    events = group.events
    return [events[a:b] for a, b in zip(marks, [*marks[1:], len(events)], strict=True)]


def counted(events):
    """How many of each kind, and the bytes that this rank sent."""
    return dict(Counter(e.kind for e in events)), sum(e.nbytes for e in events)


@pytest.mark.parametrize("n", [2, 4])
def test_a_step_of_megatrons_gpt_is_two_all_reduces_a_layer_each_way_and_five_more(n):
    layers, tokens = SIZES["layers"], B * SIZES["sequence"]
    one = 2 * (n - 1) * 4 * tokens * SIZES["hidden"] // n  # of (batch, sequence, hidden), fp32
    three = 3 * 2 * (n - 1) * 4 * tokens // n  # the loss: maximum, sum, the label's logit
    for forward, backward, after in launch(one_step, n, ParallelBlock):
        assert counted(forward) == (
            {"all_reduce": 2 * layers + 1 + 3},
            (2 * layers + 1) * one + three,
        )
        assert counted(backward) == ({"all_reduce": 2 * layers + 1}, (2 * layers + 1) * one)
        assert counted(after) == ({}, 0)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(("block", "again"), [(BLOCKS[1], 0), (BLOCKS[2], 1)])
def test_sequence_parallelism_sends_as_much_in_halves_and_its_small_gradients(block, again, n):
    layers, hidden, tokens = SIZES["layers"], SIZES["hidden"], B * SIZES["sequence"]
    half = (n - 1) * 4 * tokens * hidden // n  # an all_gather or a reduce_scatter
    three = 3 * 2 * (n - 1) * 4 * tokens // n
    replicated = [hidden] * (6 * layers + 2) + [SIZES["sequence"] * hidden]
    pairs = 2 * layers + 1  # the embedding's scatter and the logits' gather are one pair
    for forward, backward, after in launch(one_step, n, block):
        assert counted(forward) == (
            {"reduce_scatter": pairs, "all_gather": pairs, "all_reduce": 3},
            2 * pairs * half + three,
        )
        assert counted(backward) == (
            {"reduce_scatter": pairs, "all_gather": pairs + again * 2 * layers},
            (2 * pairs + again * 2 * layers) * half,
        )
        assert counted(after) == (
            {"all_reduce": len(replicated)},
            sum(2 * (n - 1) * 4 * count // n for count in replicated),
        )


# --- parameters -----------------------------------------------------------------------------------


def count_parameters(group, vocabulary):
    """This rank's parameters, by whether they are cut."""
    model = ParallelGPT(group, GPT(vocabulary, 3, 16, 4, 8))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("vocabulary", [256, 257])
def test_a_rank_holds_the_parameters_that_the_formula_says(vocabulary, world_size):
    held = memory.gpt_parameters_per_rank(3, 16, vocabulary, 8, tensor_parallel=world_size)
    assert set(launch(count_parameters, world_size, vocabulary)) == {sum(held.values())}
