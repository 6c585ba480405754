"""What the optimizers keep, measured, against formulas; and what a saved state must hold."""

import copy
import math

import pytest
import torch
from torch import nn

from pedagogy.optimizers import SM3, Adafactor, Adam, Adam8bit, state_bytes
from tests.optimizers.training import their_sm3

SHAPES = ((), (1,), (7,), (5, 3), (1, 9), (2, 3, 4), (2, 3, 4, 5), (64, 65))
BLOCK, LEAST = 256, 4096


def factored(shape):
    """Rows and columns of the last two dimensions, once for each of the outer ones."""
    if len(shape) < 2:
        return math.prod(shape)
    return math.prod(shape[:-2]) * (shape[-2] + shape[-1])


def covers(shape):
    """One number for each index of each dimension."""
    return sum(shape) if shape else 1


def blockwise(shape):
    numbers = math.prod(shape)
    return 2 * numbers + 8 * math.ceil(numbers / BLOCK) if numbers >= LEAST else 8 * numbers


OPTIMIZERS = {
    "Adam": (Adam, lambda shape: 8 * math.prod(shape)),
    "Adafactor": (Adafactor, lambda shape: 4 * factored(shape)),
    "SM3-I": (lambda p: SM3(p, 0.1, variant=1), lambda shape: 4 * covers(shape)),
    "SM3-II": (lambda p: SM3(p, 0.1), lambda shape: 4 * covers(shape)),
    "SM3 with momentum": (
        lambda p: SM3(p, 0.1, momentum=0.9),
        lambda shape: 4 * (covers(shape) + math.prod(shape)),
    ),
    "Adam8bit": (lambda p: Adam8bit(p, block_size=BLOCK, min_numel=LEAST), blockwise),
    "torch's Adam": (torch.optim.Adam, lambda shape: 8 * math.prod(shape)),
    "torch's SGD": (torch.optim.SGD, lambda shape: 0),
}


def stepped(make, shapes, dtype=torch.float32, steps=1):
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]
    optimizer = make(params)
    for _ in range(steps):
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
        optimizer.step()
    return params, optimizer


def check_bytes(make, formula, steps=2):
    for shape in SHAPES:
        _, optimizer = stepped(make, (shape,), steps=steps)
        assert state_bytes(optimizer) == formula(shape), shape
    _, optimizer = stepped(make, SHAPES)
    assert state_bytes(optimizer) == sum(formula(shape) for shape in SHAPES)


@pytest.mark.parametrize(("make", "formula"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_measured_bytes_are_the_formula_in_every_number_of_dimensions(make, formula):
    check_bytes(make, formula)


def test_nothing_is_kept_before_the_first_step_nor_for_parameters_without_gradients():
    for make, _ in OPTIMIZERS.values():
        used, unused = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3, 4))
        optimizer = make([used, unused])
        assert state_bytes(optimizer) == 0
        used.grad = torch.ones(3, 4)
        optimizer.step()
        assert unused not in optimizer.state


@pytest.mark.parametrize("name", ["Adafactor", "SM3-I", "SM3-II", "SM3 with momentum", "Adam8bit"])
def test_parameters_of_16_bits_have_the_same_states_of_32(name):
    make, formula = OPTIMIZERS[name]
    _, optimizer = stepped(make, SHAPES, torch.bfloat16)
    assert state_bytes(optimizer) == sum(formula(shape) for shape in SHAPES)


def test_a_tensor_that_two_entries_hold_counts_once_and_counters_not_at_all():
    _, optimizer = stepped(Adam, ((3, 4),))
    before = state_bytes(optimizer)
    (state,) = optimizer.state.values()
    state["again"] = [state["mean"], (state["mean"],)]
    state["step"] = torch.tensor(3.0)
    assert state_bytes(optimizer) == before == 96


MODES = [torch.float32, torch.float64, torch.bfloat16]


def check_resumes(make, dtype=torch.float32):
    """Six steps, and six with the state saved and loaded in another optimizer after three."""

    def trained(saved_after=None):
        params, optimizer = stepped(make, SHAPES, dtype, steps=0)
        generator = torch.Generator().manual_seed(1)
        for step in range(6):
            if step == saved_after:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = make(params)
                optimizer.load_state_dict(saved)
            for i, parameter in enumerate(params):
                gradient = torch.randn(parameter.shape, generator=generator).to(dtype)
                parameter.grad = None if (step, i) in {(0, 3), (1, 3), (3, 2)} else gradient
            optimizer.step()
        return params, optimizer

    (right, whole), (found, resumed) = trained(), trained(3)
    for a, b in zip(found, right, strict=True):
        assert torch.equal(a, b)
    assert state_bytes(resumed) == state_bytes(whole)


@pytest.mark.parametrize("dtype", MODES)
@pytest.mark.parametrize("make", [make for make, _ in list(OPTIMIZERS.values())[:6]])
def test_a_saved_state_goes_on_exactly(make, dtype):
    check_resumes(make, dtype)


@pytest.mark.parametrize("make", [make for make, _ in list(OPTIMIZERS.values())[:6]])
def test_a_state_survives_a_file_and_its_loading_changes_nothing_elsewhere(make, tmp_path):
    params, optimizer = stepped(make, SHAPES)
    torch.save(optimizer.state_dict(), tmp_path / "state")
    again = make(params)
    saved = torch.load(tmp_path / "state", weights_only=True)
    again.load_state_dict(saved)
    before = copy.deepcopy(saved)
    for parameter in params:
        parameter.grad = torch.ones_like(parameter)
    again.step()
    for number, state in saved["state"].items():
        for name, value in state.items():
            old = before["state"][number][name]
            both = zip(value, old, strict=True) if isinstance(value, list) else [(value, old)]
            for now, then in both:
                assert torch.equal(torch.as_tensor(now), torch.as_tensor(then)), (number, name)


def test_a_state_of_other_groups_is_refused():
    _, optimizer = stepped(Adam, ((2, 2), (3,)))
    other = Adam([nn.Parameter(torch.ones(2, 2))])
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        other.load_state_dict(optimizer.state_dict())


def test_the_other_sm3_keeps_a_buffer_for_momentum_without_momentum():
    _, mine = stepped(lambda p: SM3(p, 0.1), SHAPES)
    _, theirs = stepped(their_sm3, SHAPES)
    numbers = sum(math.prod(shape) for shape in SHAPES)
    assert state_bytes(theirs) == state_bytes(mine) + 4 * numbers
