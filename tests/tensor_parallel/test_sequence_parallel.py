"""Sequence parallelism: what a layer sends, and what `regathered` keeps in place of the whole."""

import sys
from collections import Counter

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.collectives import gather
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import SequenceParallelBlock, regathered
from pedagogy.workloads import Block
from tests.tensor_parallel.cutting import BLOCKS, random

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SEQUENCE, BATCH, HIDDEN, HEADS = 8, 2, 16, 4


def layer_events(group, block):
    """The events of one layer, forward and backward."""
    layer = block(group, Block(HIDDEN, HEADS, SEQUENCE))
    mine = SEQUENCE // group.size if issubclass(block, SequenceParallelBlock) else SEQUENCE
    x = torch.ones(BATCH, mine, HIDDEN, requires_grad=True)
    marks = [len(group.events)]
    y = layer(x)
    marks.append(len(group.events))
    y.sum().backward()
    events = group.events
    return events[marks[0] : marks[1]], events[marks[1] :]


WHOLE = 4 * BATCH * SEQUENCE * HIDDEN  # bytes of (batch, sequence, hidden)
EXPECTED = {  # all_reduces, all_gathers, reduce_scatters: forward, backward
    "ParallelBlock": ((2, 0, 0), (2, 0, 0)),
    "SequenceParallelBlock": ((0, 2, 2), (0, 2, 2)),
    "RegatheringBlock": ((0, 2, 2), (0, 4, 2)),
}


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_a_layer_is_2_and_2_all_reduces_or_4_and_4_or_6_and_4_halves(block, n):
    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    one = (n - 1) * WHOLE // n
    for halves in launch(layer_events, n, block):
        for events, expected in zip(halves, EXPECTED[block.__name__], strict=True):
            count = Counter(e.kind for e in events)
            assert tuple(count[kind] for kind in kinds) == expected
            assert len(events) == sum(expected)
            for kind, size in zip(kinds, (2 * one, one, one), strict=True):
                assert all(e.nbytes == size for e in events if e.kind == kind)


def test_the_bytes_of_sequence_parallelism_are_megatrons_and_half_as_much_again_of_a_half():
    sent = {
        block.__name__: sum(e.nbytes for half in launch(layer_events, 4, block)[0] for e in half)
        for block in BLOCKS
    }
    assert sent["SequenceParallelBlock"] == sent["ParallelBlock"] == 8 * 3 * WHOLE // 4
    assert sent["RegatheringBlock"] == 10 * 3 * WHOLE // 4


# --- regathered -----------------------------------------------------------------------------------


def views_of_the_whole(group, regather):
    """Gradients of a function that keeps views of the whole, transposed and sliced; asked twice."""
    shard = random(group.rank, 2, 3, 4).requires_grad_()
    weight = random(9, 3 * group.size, 5).requires_grad_()
    whole = gather(group, shard, 1)
    before = len(group.events)
    if regather:
        with regathered(group, whole, shard):
            y = whole.transpose(1, 2) @ weight + (whole[:, 1:, 2:].pow(3)).sum()
    else:
        y = whole.transpose(1, 2) @ weight + (whole[:, 1:, 2:].pow(3)).sum()
    del whole
    found = []
    for _ in range(2):
        shard.grad = weight.grad = None
        y.sum().backward(retain_graph=True)
        found.append((shard.grad, weight.grad))
    gathered = Counter(e.kind for e in group.events[before:])["all_gather"]
    return found, gathered


def test_views_of_what_is_gathered_again_are_restored_once_for_each_backward():
    plain, again = (list(launch(views_of_the_whole, 3, regather)) for regather in (False, True))
    for (expected, none), (found, twice) in zip(plain, again, strict=True):
        assert (none, twice) == (0, 2)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def without_autograd(group):
    """An evaluation keeps nothing, and gathers nothing again."""
    layer = BLOCKS[2](group, Block(HIDDEN, HEADS, SEQUENCE))
    before = len(group.events)
    with torch.no_grad():
        layer(torch.ones(BATCH, SEQUENCE // group.size, HIDDEN))
    return Counter(e.kind for e in group.events[before:])


def test_an_evaluation_sends_what_a_forward_sends():
    assert list(launch(without_autograd, 2)) == [{"all_gather": 2, "reduce_scatter": 2}] * 2


def frozen_layers(group, block):
    """Frozen linear layers keep no input: what is there to gather is gathered for the rest."""
    torch.manual_seed(0)
    whole = Block(HIDDEN, HEADS, SEQUENCE).double()
    for layer in whole.modules():
        if isinstance(layer, nn.Linear):
            layer.requires_grad_(False)
    cut = block(group, whole)
    x = random(1, BATCH, SEQUENCE, HIDDEN)
    mine = x.chunk(group.size, 1)[group.rank].requires_grad_()
    y = cut(mine)
    before = len(group.events)
    y.sum().backward()
    gathered = Counter(e.kind for e in group.events[before:])["all_gather"]
    x.requires_grad_()
    expected = whole(x)
    expected.sum().backward()
    part = [t.chunk(group.size, 1)[group.rank] for t in (expected.detach(), x.grad)]
    return (y.detach(), mine.grad), tuple(part), gathered


@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda block: block.__name__)
def test_frozen_layers_have_nothing_gathered_again(block):
    for found, expected, gathered in launch(frozen_layers, 2, block):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        assert gathered == 2  # the backward of the two reduce_scatters
