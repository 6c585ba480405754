"""The checks notice mixtures that are wrong by one line."""

import sys
from functools import partial
from importlib import import_module
from unittest.mock import patch

import cloudpickle
import pytest
import torch

from pedagogy.moe import (
    SummedExperts,
    hierarchical_all_to_all,
    pooled_switch_loss,
    shazeer,
    switch_loss,
    top_k,
)
from pedagogy.ranks import RankError, grid, launch
from tests.moe import mutants
from tests.moe.cutting import SAME, WEIGHT, make_layer, random
from tests.moe.test_expert_parallel import compare_step, layer_alone

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCENARIO = "two of all, drops"


def noticed(check, *arguments):
    """Whether the check fails."""
    try:
        check(*arguments)
    except AssertionError:
        return True
    return False


def on_two_ranks(group):
    """What each mutant of the layers trains, and what they train unharmed."""
    torch.set_num_threads(1)
    from tests.moe import test_expert_parallel as checks  # here by name, so that it can be patched

    spread = import_module("pedagogy.moe.expert_parallel")
    where = {"ExpertParallelMoE": checks, "places_of": shazeer}
    found = {"unharmed": checks.train_layer(group, SCENARIO)}
    for label, mutant in mutants.SPREAD.items():
        name = mutant[1]
        with patch.object(where.get(name, spread), name, mutants.wrong(*mutant)):
            found[label] = checks.train_layer(group, SCENARIO)
    for label, mutant in mutants.SUMMED.items():
        found[label] = train_summed(group, mutants.wrong(*mutant))
    return found | {"unharmed sum": train_summed(group, SummedExperts)}


def train_summed(group, kind):
    """The router's weight after three steps."""
    layer = kind(group, make_layer(route=partial(top_k, k=2)))
    return train_router(layer)


def train_router(layer):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9)
    enter = torch.eye(6, dtype=torch.float64).requires_grad_()
    for step in range(3):
        layer(random(step, 9, 6) @ enter).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [layer.router.weight.detach(), enter.grad]


@pytest.fixture(scope="module")
def two_ranks():
    return launch(on_two_ranks, 2)


def check_spread(run, label):
    expected = layer_alone(SCENARIO, 2)
    for rank, found in enumerate(run):
        for mine, right in zip(found[label], expected, strict=True):
            compare_step(mine, right, rank, 2)


def check_summed(run, label):
    right = train_router(make_layer(route=partial(top_k, k=2)))
    for found in run:
        torch.testing.assert_close(found[label], right, **SAME)


@pytest.mark.parametrize("label", mutants.SPREAD)
def test_the_equality_check_notices_the_mutant_of_expert_parallelism(two_ranks, label):
    assert noticed(check_spread, two_ranks, label)


@pytest.mark.parametrize("label", mutants.SUMMED)
def test_the_equality_check_notices_the_mutant_of_summed_experts(two_ranks, label):
    assert noticed(check_summed, two_ranks, label)


def test_it_has_nothing_to_say_without_them(two_ranks):
    check_spread(two_ranks, "unharmed")
    check_summed(two_ranks, "unharmed sum")


def without_counts(group):
    layer = mutants.wrong(*mutants.COUNTS)(group, make_layer())
    return layer(random(group.rank, 5, 6))


def test_ranks_that_do_not_tell_their_counts_fail():
    with pytest.raises(RankError, match="split"):
        launch(without_counts, 2)


def on_four_ranks(group):
    """The router's gradient by each mutant of the pooled loss, and whether each exchange is right.

    The gradient is that of dp = 4, of the balancing loss alone.
    """
    torch.set_num_threads(1)
    losses = {label: mutants.wrong(*mutant) for label, mutant in mutants.POOLED.items()}
    gradients = {
        label: pooled_gradient(group, loss)
        for label, loss in (losses | {"unharmed": pooled_switch_loss}).items()
    }
    axes = grid(group, node=2, place=2)
    swaps = {label: mutants.wrong(*mutant) for label, mutant in mutants.EXCHANGED.items()}
    swaps |= {"unharmed": hierarchical_all_to_all}
    xs = [random(10 * group.rank + to, 3) for to in range(4)]
    flat = group.all_to_all(xs)
    same = {
        label: all(map(torch.equal, swap(axes["place"], axes["node"], xs), flat))
        for label, swap in swaps.items()
    }
    return gradients, same


def pooled_gradient(group, loss):
    layer = make_layer()
    output = layer(random(0, 12, 6).chunk(4)[group.rank])
    balance = loss(group, layer.last.probabilities, layer.last.experts)
    (0 * output.sum() + WEIGHT * group.size * balance).backward()
    return group.all_reduce(layer.router.weight.grad, "mean")


@pytest.fixture(scope="module")
def four_ranks():
    return launch(on_four_ranks, 4)


def check_pooled(run, label):
    layer = make_layer()
    layer(random(0, 12, 6))
    (WEIGHT * switch_loss(layer.last.probabilities, layer.last.experts)).backward()
    for gradients, _ in run:
        torch.testing.assert_close(gradients[label], layer.router.weight.grad, **SAME)


@pytest.mark.parametrize("label", mutants.POOLED)
def test_the_check_of_the_balancing_loss_notices_the_mutant(four_ranks, label):
    check_pooled(four_ranks, "unharmed")
    assert noticed(check_pooled, four_ranks, label)


@pytest.mark.parametrize("label", mutants.EXCHANGED)
def test_the_check_of_the_two_levels_notices_the_mutant(four_ranks, label):
    assert all(same["unharmed"] for _, same in four_ranks)
    assert not all(same[label] for _, same in four_ranks)


@pytest.mark.parametrize("label", mutants.GATES)
def test_the_named_test_notices_the_mutant_of_a_gate(label):
    *mutant, check = mutants.GATES[label]
    place, test = check.split(".")
    module = import_module(f"tests.moe.{place}")
    function = getattr(module, test)
    arguments = {"dtype": torch.bfloat16} if "float32_or_better" in test else {}
    arguments |= {"factor": 0} if "C40" in test else {}
    function(**arguments)  # unharmed it passes
    name = mutant[1]
    made = mutants.wrong(*mutant)
    with patch.object(module, name, made), pytest.raises((AssertionError, pytest.fail.Exception)):
        function(**arguments)
