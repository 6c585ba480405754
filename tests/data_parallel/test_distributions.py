"""Gradient distributions by rank, before and after averaging."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.data_parallel import gradient_distributions
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def observe(group):
    torch.manual_seed(0)
    model = nn.Linear(30, 20)
    with pytest.raises(ValueError, match="0 parameters have a gradient"):
        gradient_distributions(group, model.parameters())
    with pytest.raises(ValueError, match="bins is 0"):
        gradient_distributions(group, model.parameters(), bins=0)
    x = torch.randn(8, 30, generator=torch.Generator().manual_seed(group.rank))
    model(x).square().mean().backward()
    own = torch.cat([p.grad.flatten().clone() for p in model.parameters()])
    found = gradient_distributions(group, model.parameters(), bins=11)
    return own, found, torch.cat([p.grad.flatten() for p in model.parameters()])


def test_ranks_differ_before_averaging_and_agree_after_it():
    run = launch(observe, 4)
    owns = torch.stack([own for own, _, _ in run])
    mean = owns.mean(0)
    for _, found, averaged in run:
        torch.testing.assert_close(averaged, mean)
        for rank in range(4):
            counts = torch.histogram(owns[rank], found.edges).hist
            torch.testing.assert_close(found.before[rank], counts)
            torch.testing.assert_close(
                found.after[rank], torch.histogram(averaged, found.edges).hist
            )
        assert found.before.sum(1).tolist() == [620.0] * 4  # every value lies in a bin
        assert (found.before[0] != found.before[1]).any()
        right = (owns - mean).square().mean(1).sqrt()
        torch.testing.assert_close(found.deviation_before, right, rtol=1e-4, atol=1e-7)
        assert found.deviation_after.tolist() == [0.0] * 4
