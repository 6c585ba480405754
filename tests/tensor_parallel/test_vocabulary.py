"""Embedding and cross-entropy cut over the vocabulary equal PyTorch's whole ones."""

import functools
import sys

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.collectives import copy_to
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import (
    VocabParallelEmbedding,
    padded_vocabulary,
    vocab_parallel_cross_entropy,
)
from tests.tensor_parallel.cutting import random

cloudpickle.register_pickle_by_value(sys.modules[__name__])

V, TOKENS = 12, (3, 5)


def labels_where(**changes):
    """Random labels, with some ignored."""
    labels = torch.randint(V, TOKENS, generator=torch.Generator().manual_seed(3))
    for place, label in changes.items():
        labels.view(-1)[int(place[1:])] = label
    return labels


LOSSES = {  # logits, labels, keyword arguments
    "plain": (random(0, *TOKENS, V), labels_where(), {}),
    "some ignored": (random(0, *TOKENS, V), labels_where(_0=-100, _7=-100, _14=-100), {}),
    "another number ignored": (random(0, *TOKENS, V), labels_where(), {"ignore_index": 4}),
    "one label left": (random(0, *TOKENS, V), torch.full(TOKENS, -100).index_fill(
        1, torch.tensor([2]), 5), {}),
    "all ignored": (random(0, *TOKENS, V), torch.full(TOKENS, -100), {}),
    "logits of ten thousand": (1e4 * random(0, *TOKENS, V), labels_where(), {}),
    "logits of minus ten thousand": (random(0, *TOKENS, V) - 1e4, labels_where(), {}),
    "float32": (1e4 * random(0, *TOKENS, V).float(), labels_where(), {}),
    "transposed": (random(0, V, *TOKENS).permute(1, 2, 0), labels_where(), {}),
    "no batch": (random(0, 7, V), torch.arange(7) + 5, {}),
}  # fmt: skip


def losses(group):
    """Loss and gradient of this rank's logits, of every case."""
    torch.set_num_threads(1)
    found = []
    for logits, labels, how in LOSSES.values():
        shard = logits.chunk(group.size, -1)[group.rank].detach().requires_grad_()
        loss = vocab_parallel_cross_entropy(group, shard, labels, **how)
        (3 * loss).backward()
        found.append((loss.detach(), shard.grad))
    return found


@functools.cache
def run_of(world_size):
    """One launch for each number of ranks."""
    return launch(losses, world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_pytorchs(name, world_size):
    logits, labels, how = LOSSES[name]
    whole = logits.detach().requires_grad_()
    expected = functional.cross_entropy(whole.flatten(0, -2), labels.flatten(), **how)
    (3 * expected).backward()
    assert expected.isnan() == (name == "all ignored")
    ranks = [rank[list(LOSSES).index(name)] for rank in run_of(world_size)]
    tolerance = (
        {"rtol": 1e-6, "atol": 1e-6} if name == "float32" else {"rtol": 1e-10, "atol": 1e-12}
    )
    for loss, _ in ranks:
        torch.testing.assert_close(loss, expected.detach(), equal_nan=True, **tolerance)
    gradient = torch.cat([shard for _, shard in ranks], -1)
    torch.testing.assert_close(gradient, whole.grad, **tolerance)


def bytes_of_a_loss(group):
    """The events of a loss, forward and backward."""
    logits = random(0, *TOKENS, V).chunk(group.size, -1)[group.rank].requires_grad_()
    loss = vocab_parallel_cross_entropy(group, logits, labels_where())
    forward = [(e.kind, e.nbytes) for e in group.events]
    loss.backward()
    return forward, len(group.events) - len(forward)


def test_three_numbers_a_position_are_sent_and_nothing_backward():
    for forward, backward in launch(bytes_of_a_loss, 2):
        assert forward == [("all_reduce", 8 * 3 * 5)] * 3  # 2 (N - 1)/N = 1
        assert backward == 0


def wrong_losses(group):
    """What refusals say, on every rank, and how much was sent."""
    logits = torch.zeros(*TOKENS, V // group.size)
    messages = []
    for labels, how in [
        (labels_where(_3=12), {}),
        (labels_where(_3=-1), {}),
        (labels_where(_3=11), {"vocabulary": 11}),  # the last row is padding
        (labels_where()[0], {}),
    ]:
        with pytest.raises(ValueError, match=r"vocabulary has|need labels") as caught:
            vocab_parallel_cross_entropy(group, logits, labels, **how)
        messages.append(str(caught.value))
    return messages, len(group.events)


def test_wrong_labels_are_refused_on_every_rank_before_anything_is_sent():
    for messages, sent in launch(wrong_losses, 2):
        assert messages == [
            "label 12: the vocabulary has 12 tokens, 0 to 11",
            "label -1: the vocabulary has 12 tokens, 0 to 11",
            "label 11: the vocabulary has 11 tokens, 0 to 10",
            "logits of shape (3, 5, 6) need labels of shape (3, 5), got (5,)",
        ]
        assert sent == 0


# --- embedding ------------------------------------------------------------------------------------


def make_embedding(seed, vocabulary):
    torch.manual_seed(seed)
    return nn.Embedding(vocabulary, 6).double()


def embed(group, vocabulary, multiple):
    """Three steps of an embedding that is tied to its output; outputs, logits, gradients, rows."""
    torch.set_num_threads(1)
    layer = VocabParallelEmbedding.from_embedding(
        group, make_embedding(group.rank, vocabulary), multiple
    )
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    notes = []
    for step in range(3):
        ids = ids_of(step, vocabulary)
        x = layer(ids)
        logits = layer.logits(copy_to(group, torch.tanh(x)))
        vocab_parallel_cross_entropy(group, logits, ids.flip(0)).backward()
        notes.append((x.detach(), logits.detach(), layer.weight.grad))
        optimizer.step()
        optimizer.zero_grad()
    return notes, layer.weight.detach(), (layer.first, layer.last, layer.num_real)


def ids_of(step, vocabulary):
    return torch.randint(vocabulary, (4, 3), generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize(("vocabulary", "multiple"), [(12, 1), (13, 1), (5, 1), (13, 8)])
def test_a_padded_embedding_trains_as_the_whole_one_and_its_padding_stays_zero(
    vocabulary, multiple, world_size
):
    whole = make_embedding(0, vocabulary)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    ranks = list(launch(embed, world_size, vocabulary, multiple))
    for step in range(3):
        ids = ids_of(step, vocabulary)
        x = whole(ids)
        logits = torch.tanh(x) @ whole.weight.t()
        functional.cross_entropy(logits.flatten(0, 1), ids.flip(0).flatten()).backward()
        notes = [rank_notes[step] for rank_notes, _, _ in ranks]
        for found, _, _ in notes:
            torch.testing.assert_close(found, x.detach(), rtol=1e-10, atol=1e-12)
        found = torch.cat([shard for _, shard, _ in notes], -1)
        torch.testing.assert_close(found[..., :vocabulary], logits, rtol=1e-10, atol=1e-12)
        assert (found[..., vocabulary:] == -torch.inf).all()
        gradient = torch.cat([shard for _, _, shard in notes])
        torch.testing.assert_close(gradient[:vocabulary], whole.weight.grad, rtol=1e-10, atol=1e-12)
        optimizer.step()
        optimizer.zero_grad()
    weight = torch.cat([shard for _, shard, _ in ranks])
    assert len(weight) == padded_vocabulary(vocabulary, world_size, multiple)
    torch.testing.assert_close(weight[:vocabulary], whole.weight.detach(), rtol=1e-10, atol=1e-12)
    assert not weight[vocabulary:].any()
    assert sum(real for _, _, (_, _, real) in ranks) == vocabulary
    assert [places[:2] for _, _, places in ranks] == [
        (rank * len(weight) // world_size, (rank + 1) * len(weight) // world_size)
        for rank in range(world_size)
    ]


def wrong_ids(group):
    layer = VocabParallelEmbedding(group, 13, 6)
    before = len(group.events)
    messages = []
    for ids in ([3, 13], [-1, 2]):  # 13 has a row on the last rank, but it is padding
        with pytest.raises(ValueError, match="tokens") as caught:
            layer(torch.tensor([ids]))
        messages.append(str(caught.value))
    return messages, len(group.events) - before, layer(torch.zeros(0, 4, dtype=torch.int64)).shape


def test_ids_outside_the_vocabulary_are_refused_on_every_rank():
    for messages, sent, empty in launch(wrong_ids, 2):
        assert messages == [
            "ids from 3 to 13: the vocabulary has 13 tokens",
            "ids from -1 to 2: the vocabulary has 13 tokens",
        ]
        assert sent == 0
        assert empty == (0, 4, 6)
