"""What a training loop does with an optimizer: groups, late parameters, closures, schedules."""

import pytest
import torch
from torch import nn

from pedagogy.optimizers import SM3, Adafactor, Adam, Adam8bit
from tests.optimizers.training import (
    OURS,
    PAIRS,
    distance,
    gradients,
    hugging_faces,
    train,
)


def test_groups_keep_their_own_settings():
    """Each parameter moves as it would alone with its group's settings."""

    def in_groups(make, settings):
        def optimizer(params):
            return make([{"params": [p], **own} for p, own in zip(params, settings, strict=True)])

        return train(optimizer)

    def alone(make, settings):
        kept = []
        for i, own in enumerate(settings):
            kept.append(train(lambda p, i=i, own=own: make([p[i]], **own))[i])
        return kept

    rates = [{"lr": 0.1 / 2**i} for i in range(4)]
    for make in (lambda p, lr=0.1: Adam(p, lr), lambda p, lr=0.1: SM3(p, lr),
                 lambda p, lr=0.1: Adam8bit(p, lr, min_numel=8)):  # fmt: skip
        for a, b in zip(in_groups(make, rates), alone(make, rates), strict=True):
            assert torch.equal(a, b)
    own = [{"lr": 0.1}, {"scale_parameter": False, "lr": 0.01}, {"clip_threshold": 0.1}, {}]

    def fixed(p, lr=1e-3, **settings):
        return Adafactor(p, lr, relative_step=False, **settings)

    for a, b in zip(in_groups(fixed, own), alone(fixed, own), strict=True):
        assert torch.equal(a, b)
    theirs = in_groups(lambda p: hugging_faces(p, lr=1e-3, relative_step=False), own)
    assert distance(in_groups(fixed, own), theirs) < 1e-6


@pytest.mark.parametrize(("mine", "theirs"), PAIRS.values(), ids=PAIRS)
def test_a_parameter_that_is_added_later_starts_at_its_own_first_step(mine, theirs):
    def trained(make):
        first, late = (nn.Parameter(torch.full((3, 4), 0.5)) for _ in range(2))
        optimizer = make([first])
        for step in range(8):
            if step == 4:
                optimizer.add_param_group({"params": [late]})
            first.grad = gradients(step)[2]
            late.grad = gradients(step)[2] if step >= 4 else None
            optimizer.step()
        return [first.detach(), late.detach()]

    assert distance(trained(mine), trained(theirs)) < 1e-6


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_a_closure_is_called_once_with_gradients_enabled_and_a_schedule_sets_the_rate(make):
    weight = nn.Parameter(torch.tensor([[1.0, -2], [3, 4]]))
    optimizer, calls = make([weight]), []
    if optimizer.param_groups[0]["lr"] is not None:
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
        frozen = weight.detach().clone()
        weight.grad = torch.ones(2, 2)
        optimizer.step()
        assert torch.equal(weight, frozen)

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure).item() == 30
    assert calls == [True]


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_parameters_without_numbers_are_passed_over(make):
    empty, full = nn.Parameter(torch.ones(3, 0)), nn.Parameter(torch.ones(2, 2))
    optimizer = make([empty, full])
    for parameter in (empty, full):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert (full < 1).all()
    assert empty not in optimizer.state
