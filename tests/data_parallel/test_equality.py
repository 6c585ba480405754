"""Data parallelism equals one process: outputs, gradients and weights, over three steps."""

import itertools
import sys

import cloudpickle
import pytest
import torch

from pedagogy.data_parallel import DistributedOptimizer, average_in_buckets, make_buckets
from pedagogy.data_parallel.synchronous import broadcast_parameters
from pedagogy.ranks import launch
from tests.data_parallel import mutants
from tests.equality import (
    AWKWARD,
    PROBLEMS,
    assert_equal_to_one_process,
    differences,
    one_process,
    train_replicas,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def in_buckets(group, model, optimizer):
    """Buckets without overlap."""
    broadcast_parameters(group, model)
    buckets = make_buckets(model.parameters(), 300)
    return model, optimizer, lambda: average_in_buckets(group, buckets)


def wrapped_optimizer(group, model, optimizer):
    """Horovod's way; small fusion buffers, so that there are several."""
    wrapped = DistributedOptimizer(group, optimizer, fusion_bytes=300)
    return model, wrapped, mutants.nothing


def torch_ddp(group, model, optimizer):
    """The oracle: PyTorch's own. It leaves globally unused parameters without gradient, too."""
    ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    return ddp, optimizer, mutants.nothing


TECHNIQUES = [
    mutants.naive,
    in_buckets,
    mutants.overlapped,
    mutants.overlapped_in_one_bucket,
    wrapped_optimizer,
    torch_ddp,
]


def train_all(group, problem, steps, techniques):
    return [train_replicas(group, problem, steps, technique) for technique in techniques]


def compare_all(problem, world_size, techniques, steps=3):
    """What each technique gets wrong, by name."""
    run = launch(train_all, world_size, problem, steps, techniques)
    expected = one_process(problem, steps)
    return {
        technique.__name__: differences(expected, histories, problem.dtype)
        for technique, histories in zip(techniques, zip(*run, strict=True), strict=True)
    }


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_every_technique_equals_one_process(problem, world_size):
    found = compare_all(problem, world_size, TECHNIQUES)
    assert found == {technique.__name__: [] for technique in TECHNIQUES}


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_check_notices_the_mutant(mutant):
    assert compare_all(AWKWARD, 2, [mutant])[mutant.__name__] != []


def test_the_helper_raises_with_the_place_of_the_first_difference():
    with pytest.raises(AssertionError, match=r"awkward: \d+ differences, first:\s+step 0, rank 0"):
        assert_equal_to_one_process(
            train_replicas, AWKWARD, 2, mutants.after_backward(mutants.sums)
        )
    assert_equal_to_one_process(train_replicas, AWKWARD, 2, mutants.naive)


def test_C78_float64_agrees_to_1e_12_and_float32_to_1e_6():
    def worst(dtype, world_size):
        run = launch(train_mlp, world_size, dtype)
        (alone,) = launch(train_mlp, 1, dtype)
        return max((a - b).abs().max() / a.abs().max() for a, b in zip(alone, run[0], strict=True))

    for world_size in (2, 4):
        assert worst(torch.float64, world_size) < 1e-12
        assert worst(torch.float32, world_size) < 1e-5  # over 3 steps; one step: about 1e-6


def train_mlp(group, dtype):
    """MLP 784-512-256-10, batch 64: data and initial weights depend on neither W nor the rank."""
    torch.manual_seed(0)
    sizes = (784, 512, 256, 10)
    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    model = model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped, optimizer, _ = mutants.overlapped_in_one_bucket(group, model, optimizer)
    for step in range(3):
        data = torch.Generator().manual_seed(step)
        x = torch.randn(64, 784, generator=data, dtype=torch.float64).to(dtype)
        y = torch.randint(10, (64,), generator=data)
        x, y = x.chunk(group.size)[group.rank], y.chunk(group.size)[group.rank]
        torch.nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]
