"""Generators continue where they were; FLOPs are those of the arithmetic."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from pedagogy.measure import count_flops, restore_rng_state, rng_state


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_restored_generators_draw_the_same_numbers_again():
    state = rng_state()
    first = draw()
    draw()
    restore_rng_state(state)
    assert draw() == first
    restore_rng_state(state)  # once more: the state was not used up
    assert draw() == first


def test_each_generator_is_restored_on_its_own_account():
    state = rng_state()
    first, second = draw(), draw()
    assert all(a != b for a, b in zip(first, second, strict=True))
    restore_rng_state(state)
    assert all(a == b for a, b in zip(first, draw(), strict=True))


def test_the_same_dropout_mask_is_drawn_again():
    drop, x = nn.Dropout(0.5), torch.ones(1000)
    state = rng_state()
    first = drop(x)
    restore_rng_state(state)
    assert torch.equal(first, drop(x))


def test_a_state_of_more_gpus_than_there_are_is_refused():
    state = rng_state() | {"cuda": [torch.get_rng_state()] * (torch.cuda.device_count() + 1)}
    with pytest.raises(ValueError, match="GPUs"):
        restore_rng_state(state)


def test_flops_of_a_matrix_product_are_two_for_each_multiply_add():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert count_flops(torch.matmul, a, b) == 2 * 3 * 4 * 5


def test_backward_costs_twice_forward():
    layer = nn.Linear(8, 8, bias=False)
    x = torch.ones(4, 8, requires_grad=True)
    forward = count_flops(layer, x)
    assert count_flops(lambda: layer(x).sum().backward()) == 3 * forward == 3 * 2 * 4 * 8 * 8
