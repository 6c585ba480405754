"""Bytes of optimizer state: from shapes = measured on the optimizers themselves."""

import pytest
import torch
from torch import nn

from pedagogy import optimizers
from pedagogy.costs import memory
from pedagogy.costs.optimizers import (
    OPTIMIZERS,
    PRESETS,
    gpt_shapes,
    num_parameters,
    state_bytes,
    training_bytes,
)
from pedagogy.workloads import GPT

MAKE = {
    "Adam": optimizers.Adam,
    "Adafactor": optimizers.Adafactor,
    "SM3": lambda p: optimizers.SM3(p, 0.1),
    "SM3 with momentum": lambda p: optimizers.SM3(p, 0.1, momentum=0.9),
    "Adam8bit": lambda p: optimizers.Adam8bit(p, block_size=7, min_numel=20),
}
SHAPES = [(), (1,), (5,), (3, 4), (5, 7), (2, 3, 4), (2, 3, 2, 2), (1, 40), (19,), (20,)]


def measured(make, shapes):
    parameters = [nn.Parameter(torch.ones(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = make(parameters)
    optimizer.step()
    return optimizers.state_bytes(optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_state_of_a_tensor_is_what_the_optimizer_holds(name, shape):
    assert state_bytes(name, [shape], 7, 20) == measured(MAKE[name], [shape])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_a_gpt_is_the_sum_over_its_tensors(name):
    shapes = gpt_shapes(2, 32, 256, 16)
    assert state_bytes(name, shapes, 7, 20) == measured(MAKE[name], shapes)


def test_the_shapes_are_those_of_our_gpt_in_its_order():
    model = GPT(vocabulary=60, layers=3, hidden=8, heads=2, sequence=10)
    shapes = gpt_shapes(3, 8, 60, 10)
    assert shapes == [tuple(parameter.shape) for parameter in model.parameters()]
    assert num_parameters(shapes) == memory.gpt_parameters(3, 8, 60, 10)


def test_a_matrix_costs_its_rows_and_columns():
    found = [state_bytes(name, [(512, 1000)]) for name in OPTIMIZERS]
    numbers = 512_000
    assert found[:4] == [8 * numbers, 4 * 1512, 4 * 1512, 4 * 1512 + 4 * numbers]
    assert found[4] == 2 * numbers + 8 * 250  # 250 blocks of 2,048


def test_more_dimensions_are_where_adafactor_and_sm3_differ():
    kernel = (64, 32, 3, 3)
    assert state_bytes("Adafactor", [kernel]) == 4 * 64 * 32 * (3 + 3)
    assert state_bytes("SM3", [kernel]) == 4 * (64 + 32 + 3 + 3)


def test_eight_bits_cost_two_bytes_and_eight_for_each_block():
    blocks = 2048 * 1000
    assert state_bytes("Adam8bit", [(blocks,)]) / blocks == pytest.approx(2 + 8 / 2048)
    assert state_bytes("Adam8bit", [(4095,)]) == 8 * 4095
    assert state_bytes("Adam8bit", [(4096,)]) == 2 * 4096 + 16


@pytest.mark.parametrize(
    ("name", "millions"),
    [("GPT-2 small", 124), ("GPT-2 medium", 355), ("GPT-2 large", 774), ("GPT-2 XL", 1558)],
)
def test_presets_have_the_number_of_parameters_that_is_published(name, millions):
    assert round(num_parameters(gpt_shapes(*PRESETS[name])) / 1e6) == millions


def test_the_largest_preset_has_seven_and_a_half_billion():
    assert num_parameters(gpt_shapes(*PRESETS["GPT 7.5B"])) / 1e9 == pytest.approx(7.5, abs=0.05)


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_training_with_adam_is_the_model_states(precision):
    shapes = gpt_shapes(2, 32, 256, 16)
    states = memory.model_states(num_parameters(shapes), precision, "adam")
    assert training_bytes("Adam", shapes, precision) == states
    assert sum(states.values()) == 16 * num_parameters(shapes)


def test_what_no_optimizer_saves_stays():
    shapes = gpt_shapes(*PRESETS["GPT-2 XL"])
    held = training_bytes("Adafactor", shapes)
    assert held["parameters"] == held["gradients"] == 4 * num_parameters(shapes)
    assert held["optimizer_state"] < 0.005 * held["parameters"]
    mixed = training_bytes("SM3", shapes, "mixed")
    assert mixed["optimizer_state"] == 4 * num_parameters(shapes) + state_bytes("SM3", shapes)


def test_other_names_and_sizes_are_refused():
    with pytest.raises(ValueError, match="'Lion': choose one of Adam, Adafactor"):
        state_bytes("Lion", [(2, 3)])
    with pytest.raises(ValueError, match="'half': choose fp32 or mixed"):
        training_bytes("Adam", [(2, 3)], "half")
    with pytest.raises(ValueError, match=r"\(2, 0, 256, 16\): must all be 1 or more"):
        gpt_shapes(2, 0, 256, 16)
