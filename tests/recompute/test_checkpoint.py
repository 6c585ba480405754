"""The early stop, what is changed in place, and the slots of the binomial schedule."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.costs import published
from pedagogy.measure import memory_meter
from pedagogy.recompute import (
    checkpoint,
    checkpoint_binomial,
    checkpoint_sequential,
    optimal_forwards,
)


def test_a_function_that_swallows_exceptions_works():
    def careful(x):
        try:
            return x.exp().sin()
        except Exception:
            return x.cos()

    x = torch.linspace(0, 1, 5).requires_grad_()
    checkpoint(careful, x).sum().backward()
    assert torch.allclose(x.grad, x.exp().cos() * x.exp())


def test_what_is_left_open_by_the_early_stop_is_closed():
    log = []

    def tidy(x):
        try:
            with torch.no_grad():
                x.mul(2)
            return x.exp()
        finally:
            log.append(torch.is_grad_enabled())

    x = torch.ones(3, requires_grad=True)
    checkpoint(tidy, x).sum().backward()
    assert log == [True, True]
    assert torch.is_grad_enabled()


def test_an_exception_in_the_second_run_is_seen_and_leaves_the_random_numbers():
    runs = []

    def fails_later(x):
        runs.append(1)
        if len(runs) == 2:
            torch.rand(5)
            raise KeyError("on purpose")
        return x.exp()

    x = torch.ones(3, requires_grad=True)
    y = checkpoint(fails_later, x)
    state = torch.get_rng_state()
    with pytest.raises(KeyError):
        y.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_function_changes_in_place_after_it_was_saved_raises():
    def careless(x):
        y = x.exp()
        z = y.sin()
        y.add_(1)
        return z * y.cos()

    x = torch.ones(3, requires_grad=True)
    for call in (lambda f, x: f(x), checkpoint):
        with pytest.raises(RuntimeError, match=r"in ?place"):
            call(careless, x).sum().backward()


def test_an_input_that_is_changed_before_backward_raises():
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    z = checkpoint(torch.exp, y)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        z.sum().backward()


# --- binomial ---------------------------------------------------------------------------------


def layer(x):
    """Saves its input, nothing else."""
    return x.sin()


def run(schedule, num_layers, number):
    """Forwards beyond the first pass, the gradient, and the peak in tensors."""
    forwards = []

    def counted(x):
        forwards.append(1)
        return layer(x)

    x = torch.linspace(-1, 1, 1024)
    with memory_meter() as meter:
        start = x.clone().requires_grad_()
        output = schedule([counted] * num_layers, number, start)
        output.sum().backward()
    return len(forwards) - num_layers, start.grad, meter.peak / x.nbytes


@cache
def fewest(layers, slots):
    """By trying every place of the next kept activation."""
    if layers == 1:
        return 0
    if slots == 1:
        return layers * (layers - 1) // 2
    cuts = range(1, layers)
    return min(cut + fewest(layers - cut, slots - 1) + fewest(cut, slots) for cut in cuts)


@pytest.mark.parametrize("slots", range(1, 7))
def test_executed_forwards_are_those_of_a_dynamic_program(slots):
    for layers in (1, 2, 3, 7, 13, 30):
        forwards, gradient, _ = run(checkpoint_binomial, layers, slots)
        assert forwards == fewest(layers, slots) == optimal_forwards(layers, slots)
        assert torch.equal(gradient, run(checkpoint_sequential, layers, 1)[1])


def test_executed_forwards_are_the_published_ones():
    small = [row for row in published.table("revolve_counts").rows if row["l_steps"] <= 64]
    assert len(small) >= 6
    for row in small:
        forwards, *_ = run(checkpoint_binomial, row["l_steps"], row["c_checkpoints"])
        assert forwards == row["t_min_forward_steps"]


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6))
def test_live_tensors_are_the_slots_and_five_in_the_work(layers, slots):
    """In work: a layer's input and output, its gradients, and cos(x)."""
    *_, peak = run(checkpoint_binomial, layers, slots)
    assert peak < slots + 5 + 0.01  # and the loss


def test_more_slots_cost_more_memory_and_fewer_forwards():
    runs = [run(checkpoint_binomial, 30, slots) for slots in range(1, 7)]
    forwards, peaks = [n for n, _, _ in runs], [peak for *_, peak in runs]
    assert forwards == sorted(forwards, reverse=True)
    assert peaks == sorted(peaks)
    assert peaks[-1] - peaks[0] < 5 + 0.01
    assert run(checkpoint_sequential, 30, 1)[2] > 30
