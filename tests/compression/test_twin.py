"""PyTorch's own pruning chooses the same weights."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from pedagogy.compression import Masks, magnitude_mask, prune_channels


def layer(kind, seed):
    torch.manual_seed(seed)
    return nn.Linear(13, 7) if kind == "linear" else nn.Conv2d(5, 6, 3)


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("amount", [0.0, 0.2, 0.5, 0.77, 1.0])
def test_l1_unstructured_has_the_same_mask(kind, amount):
    for seed in range(5):
        part = layer(kind, seed)
        mine = magnitude_mask(part.weight, amount)
        prune.l1_unstructured(part, "weight", amount)
        assert torch.equal(mine, part.weight_mask)


def test_pruning_again_removes_the_same_as_pytorchs_share_of_what_is_left():
    """PyTorch's amount is a share of what is left; ours, of all."""
    part = layer("linear", 0)
    weight = nn.Parameter(part.weight.detach().clone())
    masks = Masks()
    masks.prune([weight], 0.5)
    prune.l1_unstructured(part, "weight", 0.5)
    left = int(part.weight_mask.sum())
    more = round(0.8 * 91) - round(0.5 * 91)
    masks.prune([weight], 0.8)
    prune.l1_unstructured(part, "weight", more)
    assert left == 91 - round(0.5 * 91)
    assert torch.equal(masks.of[weight], part.weight_mask)
    assert torch.equal(weight, part.weight)


@pytest.mark.parametrize("fraction", [0.0, 1 / 6, 0.5, 5 / 6])
def test_ln_structured_removes_the_same_channels_and_leaves_them_in_the_tensor(fraction):
    for seed in range(5):
        part = layer("conv", seed)
        shrunk = prune_channels(part, nn.Conv2d(6, 2, 1), fraction)
        prune.ln_structured(part, "weight", round(6 * fraction), n=1, dim=0)
        left = part.weight_mask[:, 0, 0, 0].nonzero().flatten()
        assert torch.equal(shrunk.kept, left)
        assert torch.equal(shrunk.convolution.weight, part.weight[left])
        assert part.weight.shape == (6, 5, 3, 3)  # zeros, but no smaller layer
