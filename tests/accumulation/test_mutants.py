"""The checks notice accumulation that is wrong by one line."""

import sys

import cloudpickle
import pytest
import torch

from pedagogy.accumulation import GradientAccumulator, accumulate
from pedagogy.ranks import launch
from tests.accumulation.batches import (
    assert_same,
    awkward,
    awkward_batches,
    gradients,
    labels_of,
    mean_loss,
    summed,
)
from tests.accumulation.mutants import MUTANTS, mutant
from tests.accumulation.test_accumulator import CASES, one_process, train

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ORIGINALS = {"accumulate": accumulate, "accumulator": GradientAccumulator}
CUTS = (2, 3)  # micro-batches of either rank


def accumulated(group, function):
    """Loss and gradients; something stood in them before."""
    model = awkward()
    for p in model.enter.parameters():
        p.grad = torch.ones_like(p)
    start = sum(CUTS[: group.rank])
    mine = awkward_batches()[start : start + CUTS[group.rank]]
    return function(model, mine, summed, labels_of, group), gradients(model)


def run(group, name):
    """What the original, or a mutant, computes."""
    changed = ORIGINALS.get(name) or mutant(name)
    if name.startswith("accumulator"):
        losses, states, _, num_steps, _ = train(group, *CASES[1], changed)
        return losses, states, num_steps
    return accumulated(group, changed)


def run_all(group):
    """All of them, one after the other."""
    torch.set_num_threads(1)
    return {name: run(group, name) for name in (*ORIGINALS, *MUTANTS)}


@pytest.fixture(scope="module")
def ranks():
    """Two ranks' findings."""
    return list(launch(run_all, 2))


def check(found, name):
    """Against one process: loss and gradients, or losses, weights and the number of updates."""
    if name.startswith("accumulator"):
        expected, states = one_process(2, *CASES[1])
        losses, mine, num_steps = found
        assert num_steps == len(mine) == len(states)
        torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-12)
        for state, right in zip(mine, states, strict=True):
            assert_same(state, right)
        return
    loss, mine = found
    model = awkward()
    expected = mean_loss(model, awkward_batches())
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=0)
    assert_same(mine, gradients(model))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_check_notices_the_mutant(ranks, name):
    wrong = 0
    for rank in ranks:
        try:
            check(rank[name], name)
        except AssertionError:
            wrong += 1
    assert wrong


@pytest.mark.parametrize("name", ORIGINALS)
def test_it_has_nothing_to_say_of_the_original(ranks, name):
    for rank in ranks:
        check(rank[name], name)
