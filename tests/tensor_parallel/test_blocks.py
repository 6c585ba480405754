"""Feed-forward, attention and a layer, cut over ranks, equal the whole ones."""

import functools
import sys

import cloudpickle
import pytest
import torch

from pedagogy.ranks import launch
from pedagogy.tensor_parallel import (
    ParallelAttention,
    ParallelBlock,
    ParallelMLP,
    RandomStreams,
    sum_replicated_gradients,
)
from pedagogy.workloads import Attention, Block, FeedForward
from tests.tensor_parallel.cutting import BLOCKS, cut_dimension, random

cloudpickle.register_pickle_by_value(sys.modules[__name__])

HIDDEN, HEADS, SEQUENCE, BATCH = 24, 12, 12, 2
WHOLE = {
    "feed-forward": lambda: FeedForward(HIDDEN),
    "attention": lambda: Attention(HIDDEN, HEADS, SEQUENCE),
    "layer": lambda: Block(HIDDEN, HEADS, SEQUENCE),
    "layer, sequence cut": lambda: Block(HIDDEN, HEADS, SEQUENCE),
    "layer, sequence gathered again": lambda: Block(HIDDEN, HEADS, SEQUENCE),
}
CUT = {
    "feed-forward": ParallelMLP.from_feed_forward,
    "attention": ParallelAttention.from_attention,
    "layer": BLOCKS[0],
    "layer, sequence cut": BLOCKS[1],
    "layer, sequence gathered again": BLOCKS[2],
}
GRADIENTS = ("dense", "transposed", "expanded")


def whole_part(name, seed):
    """The ordinary part; other weights for each seed."""
    torch.manual_seed(seed)
    return WHOLE[name]().double()


def gradient_of(kind, step):
    """The gradient of the output: (batch, sequence, hidden)."""
    if kind == "expanded":
        return (0.02 * random(step, SEQUENCE, 1)).expand(BATCH, SEQUENCE, HIDDEN)
    if kind == "transposed":
        return 0.02 * random(step, HIDDEN, SEQUENCE, BATCH).permute(2, 1, 0)
    return 0.02 * random(step, BATCH, SEQUENCE, HIDDEN)


def steps(part, kind, mine=lambda t: t, finish=lambda: None):
    """Three steps of SGD with momentum: outputs, gradients of input and parameters; weights."""
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
    notes = []
    for step in range(3):
        x = mine(random(50 + step, HIDDEN, SEQUENCE, BATCH).permute(2, 1, 0)).requires_grad_()
        y = part(x)
        y.backward(mine(gradient_of(kind, step)))
        finish()
        gradients = {name: p.grad for name, p in part.named_parameters()}
        notes.append((y.detach(), x.grad, gradients))
        optimizer.step()
        optimizer.zero_grad()
    return notes, {name: p.detach() for name, p in part.named_parameters()}


def train_parts(group):
    """The notes of every part and gradient."""
    torch.set_num_threads(1)
    found = {}
    for name, make in CUT.items():
        for kind in GRADIENTS:
            part, how = make(group, whole_part(name, group.rank)), {}
            if "sequence" in name:
                how["mine"] = lambda t: t.chunk(group.size, 1)[group.rank]
                how["finish"] = functools.partial(finish, group, part)
            found[name, kind] = steps(part, kind, **how)
    return found


def finish(group, part):
    """The gradients of what is replicated are summed."""
    sum_replicated_gradients(group, part.replicated_parameters())


@functools.cache
def run_of(world_size):
    """One launch for each number of ranks."""
    return launch(train_parts, world_size)


def compare_named(ranks, expected):
    """Every parameter's tensor: shards together, or whole on each rank."""
    for name, right in expected.items():
        shards, dim = [tensors[name] for tensors in ranks], cut_dimension(name)
        full = shards if dim is None else [torch.cat(shards, dim)]
        for found in full:
            torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("name", CUT)
def test_a_cut_part_trains_as_the_whole_one(name, kind, world_size):
    notes, weights = steps(whole_part(name, 0), kind)
    ranks = [rank[name, kind] for rank in run_of(world_size)]
    for step, (y, x_gradient, gradients) in enumerate(notes):
        for index, expected in ((0, y), (1, x_gradient)):
            found = [rank_notes[step][index] for rank_notes, _ in ranks]
            if "sequence" in name:
                found = [torch.cat(found, 1)]
            for tensor in found:
                torch.testing.assert_close(tensor, expected, rtol=1e-10, atol=1e-12)
        compare_named([rank_notes[step][2] for rank_notes, _ in ranks], gradients)
    compare_named([rank_weights for _, rank_weights in ranks], weights)


def construct(group):
    """The parts made by their constructors, torch seeded by the rank; the outputs of one input."""
    x = torch.linspace(-1, 1, BATCH * SEQUENCE * HIDDEN).view(BATCH, SEQUENCE, HIDDEN)
    torch.manual_seed(group.rank)
    mlp = ParallelMLP(group, HIDDEN)
    torch.manual_seed(group.rank)
    attention = ParallelAttention(group, HIDDEN, HEADS, SEQUENCE)
    return mlp(x).detach(), attention(x).detach()


def test_new_parts_are_cut_from_rank_0s_whatever_the_other_seeds():
    x = torch.linspace(-1, 1, BATCH * SEQUENCE * HIDDEN).view(BATCH, SEQUENCE, HIDDEN)
    torch.manual_seed(0)
    mlp = FeedForward(HIDDEN)(x).detach()
    torch.manual_seed(0)
    attention = Attention(HIDDEN, HEADS, SEQUENCE)(x).detach()
    for found in launch(construct, 3):
        torch.testing.assert_close(found, (mlp, attention), rtol=1e-5, atol=1e-6)


def refused(group):
    """What each refusal says, and how much was sent."""
    wrong = [
        lambda: ParallelMLP(group, 8),
        lambda: ParallelMLP.from_feed_forward(group, FeedForward(8)),
        lambda: ParallelAttention(group, 64, 8, 4),
        lambda: ParallelAttention.from_attention(group, Attention(64, 8, 4)),
        lambda: ParallelBlock(group, Block(64, 8, 4)),
    ]
    messages = []
    for call in wrong:
        with pytest.raises(ValueError, match="ranks do not divide") as caught:
            call()
        messages.append(str(caught.value))
    return messages, len(group.events)


def test_heads_and_widths_that_the_ranks_do_not_divide_are_refused_before_anything_is_sent():
    for messages, sent in launch(refused, 3):
        assert messages == [
            "4 * hidden is 32, which 3 ranks do not divide; 30 or 33 would do",
            "out_features is 32, which 3 ranks do not divide; 30 or 33 would do",
            *["heads is 8, which 3 ranks do not divide; 6 or 9 would do"] * 3,
        ]
        assert sent == 0


def dropped(group, block):
    """A layer with dropout, in training and in evaluation."""
    torch.manual_seed(0)
    layer = block(group, Block(HIDDEN, HEADS, SEQUENCE, 0.5), RandomStreams(group))
    x = torch.ones(BATCH, SEQUENCE // (1 if block is ParallelBlock else group.size), HIDDEN)
    training = [layer(x).detach() for _ in range(2)]
    layer.eval()
    return *training, *(layer(x).detach() for _ in range(2))


def test_dropout_leaves_equal_copies_equal_and_is_off_in_evaluation():
    one, other = launch(dropped, 2, ParallelBlock)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)
    first, second, evaluated, again = one
    assert not torch.allclose(first, second)
    assert torch.equal(evaluated, again)


def test_positions_on_other_ranks_are_dropped_by_other_masks():
    one, other = launch(dropped, 2, BLOCKS[1])
    # the input and every weight are the same: without dropout positions differ by attention alone
    assert not torch.allclose(one[0][:, -1], other[0][:, -1])
    torch.testing.assert_close(one[2][:, -1], other[2][:, -1])
