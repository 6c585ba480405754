"""What a chapter calls equal is equal, and nothing else is."""

import pytest
import torch
from torch import nn

from pedagogy.data_parallel.evidence import equals_one_process, evidence


def two_ranks_and_one():
    """Two ranks with the same weights and gradients, each with half of the outputs."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    outputs = model(torch.randn(4, 3, dtype=torch.float64))
    outputs.square().mean().backward()
    halves = [evidence(part, model) for part in outputs.chunk(2)]
    return halves, evidence(outputs, model)


def test_the_same_numbers_are_equal():
    assert equals_one_process(*two_ranks_and_one())


@pytest.mark.parametrize("field", ["outputs", "gradients", "weights"])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_number_on_one_rank_makes_the_difference(field, rank):
    ranks, alone = two_ranks_and_one()
    wrong = getattr(ranks[rank], field).clone()
    wrong.view(-1)[-1] += 1e-8
    ranks[rank] = ranks[rank]._replace(**{field: wrong})
    assert not equals_one_process(ranks, alone)


def test_a_missing_part_and_a_nan_are_not_equal():
    ranks, alone = two_ranks_and_one()
    assert not equals_one_process(ranks[:1], alone)
    ranks[0].weights[0] = float("nan")
    assert not equals_one_process(ranks, alone)


def test_a_parameter_without_a_gradient_is_named():
    with pytest.raises(ValueError, match="2 of 2 parameters have no gradient"):
        evidence(torch.zeros(1), nn.Linear(1, 1))
