"""The checks notice tensor parallelism that is wrong by one line."""

import sys
from unittest.mock import patch

import cloudpickle
import pytest
import torch
from torch.nn import functional

from pedagogy.ranks import launch
from pedagogy.tensor_parallel import ParallelGPT, clip_grad_norm, gpt, ring_attention, vocabulary
from tests.equality import differences, one_process
from tests.tensor_parallel import mutants
from tests.tensor_parallel.cutting import BLOCKS, UNTIED, VOCABULARY, batch, put_together, train
from tests.tensor_parallel.test_ring_attention import CASES, attend_all, wrong_tensors
from tests.tensor_parallel.test_vocabulary import LOSSES

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def train_mutants(group):
    """The History of each mutant, and of each block unharmed."""
    torch.set_num_threads(1)
    found = {}
    for name, (block, *what) in mutants.MUTANTS.items():
        with patch.object(*what):
            found[name] = train(group, UNTIED, 2, block)
    return found | {block: train(group, UNTIED, 2, block) for block in BLOCKS}


@pytest.fixture(scope="module")
def trained():
    """Two ranks, two steps."""
    return one_process(UNTIED, 2), launch(train_mutants, 2)


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_the_equality_check_notices_the_mutant(trained, name):
    expected, run = trained
    full = put_together([rank[name] for rank in run], VOCABULARY)
    found = differences(expected, full, UNTIED.dtype)
    assert any("gradients" in text or "weights" in text for text in found)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_it_has_nothing_to_say_without_them(trained, block):
    expected, run = trained
    full = put_together([rank[block] for rank in run], VOCABULARY)
    assert differences(expected, full, UNTIED.dtype) == []


def norms(group):
    """The norm, and each mutant's."""
    model = ParallelGPT(group, UNTIED.model(group.rank))
    model.loss(*batch(0)).backward()
    found = {"right": clip_grad_norm(group, model, 1e9)}
    for name, parts in mutants.NORMS.items():
        with patch.object(gpt, "gradient_parts", parts):
            found[name] = clip_grad_norm(group, model, 1e9)
    return found


def test_the_check_of_the_norm_notices_what_is_counted_twice_or_not_at_all():
    model = UNTIED.model()
    UNTIED.loss(model(batch(0)[0]), batch(0)[1]).backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
    for found in launch(norms, 2):
        assert found["right"].item() == pytest.approx(expected, rel=1e-10)
        for name in mutants.NORMS:
            assert abs(found[name].item() / expected - 1) > 1e-3


def attend_wrongly(group):
    """Outputs and gradients of each mutant of ring attention."""
    module = sys.modules[ring_attention.__module__]
    return {
        name: attend_all(group, mutants.rewritten(module, *change).ring_attention)
        for name, change in mutants.RING.items()
    }


@pytest.fixture(scope="module")
def attended():
    """Three ranks."""
    return launch(attend_wrongly, 3)


@pytest.mark.parametrize("name", mutants.RING)
def test_the_check_of_ring_attention_notices_the_mutant(attended, name):
    ranks_of = [[rank[name][index] for rank in attended] for index in range(len(CASES))]
    assert any(wrong_tensors(case, ranks) for case, ranks in zip(CASES, ranks_of, strict=True))


def lose_wrongly(group):
    """Loss and gradient of each mutant of the loss, of every case."""
    found = {}
    for name, change in mutants.LOSS.items():
        loss = mutants.rewritten(vocabulary, *change).vocab_parallel_cross_entropy
        found[name] = []
        for logits, labels, how in LOSSES.values():
            shard = logits.chunk(group.size, -1)[group.rank].detach().requires_grad_()
            value = loss(group, shard, labels, **how)
            value.backward()
            found[name].append((value.detach(), shard.grad))
    return found


@pytest.fixture(scope="module")
def lost():
    """Two ranks."""
    return launch(lose_wrongly, 2)


@pytest.mark.parametrize("name", mutants.LOSS)
def test_the_check_of_the_loss_notices_the_mutant(lost, name):
    wrong = 0
    for index, (logits, labels, how) in enumerate(LOSSES.values()):
        whole = logits.detach().requires_grad_()
        loss = functional.cross_entropy(whole.flatten(0, -2), labels.flatten(), **how)
        loss.backward()
        ranks = [rank[name][index] for rank in lost]
        gradient = torch.cat([shard for _, shard in ranks], -1)
        right = torch.allclose(ranks[0][0], loss, rtol=1e-6, atol=1e-6, equal_nan=True)
        wrong += not (right and torch.allclose(gradient, whole.grad, rtol=1e-6, atol=1e-6))
    assert wrong
