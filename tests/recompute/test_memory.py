"""What the tape holds: after forward, after backward, and on the way."""

import gc

import pytest
import torch

from pedagogy.measure import memory_meter
from pedagogy.ranks import Link
from pedagogy.recompute import ACTIONS, by_rule
from tests.recompute.running import (
    MODELS,
    always,
    executed,
    gpt_with_a_frozen_bottom,
    made,
    resnet_in_place,
    untied_gpt_with_dropout,
)
from tests.recompute.test_tape import x_of

LINK = Link()


def drained():
    """A thread of the link lets go of its last tensor when it has the next thing to do."""
    one = torch.zeros(1)
    for copy in (LINK.to_host(one, into=torch.zeros(1)), LINK.to_device(one, into=torch.zeros(1))):
        copy.finish()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("make", [untied_gpt_with_dropout, resnet_in_place])
def test_the_tape_leaks_nothing(make, action):
    model, batch = made(make)
    with memory_meter(model) as meter:
        with by_rule(always(action), LINK) as tape:
            loss = model.loss(*batch)
        loss.backward()
        with torch._C._DisableTorchDispatch():
            drained()
        left = meter.now_by_kind
    assert left["activations"] == loss.nbytes
    assert left["gradients"] == sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert tape.saved


def test_without_a_backward_it_lets_go_with_the_loss():
    model, batch = made(untied_gpt_with_dropout)
    gc.disable()  # by counting references, not by a search for cycles
    try:
        with memory_meter(model) as meter:
            before = meter.now
            with by_rule(always("recompute")) as tape:
                loss = model.loss(*batch)
            del loss
            assert meter.now == before
    finally:
        gc.enable()
    assert tape.asked == []


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_keeping_everything_costs_what_no_tape_costs(make):
    model, batch = made(make)
    torch.manual_seed(3)
    with memory_meter(model) as plain:
        loss = model.loss(*batch)
        after = plain.now
        loss.backward()
    assert executed(make, always("keep"))[0].peak == plain.peak
    model, batch = made(make)
    with memory_meter(model) as meter, by_rule(always("keep")):
        loss = model.loss(*batch)
        assert meter.now == after


def test_dropping_everything_leaves_the_batch_the_masks_and_the_loss():
    model, batch = made(untied_gpt_with_dropout)
    with memory_meter(model) as meter:
        before = meter.now
        with by_rule(always("recompute")) as tape:
            loss = model.loss(*batch)
        kept = sum(nbytes for action, nbytes in tape.saved.values() if action == "keep")
        assert meter.now == before + kept + loss.nbytes


def test_each_missing_operation_runs_once_however_many_read_it():
    """The frozen layers save nothing: all of them run when the first trained one asks."""
    _, tape = executed(gpt_with_a_frozen_bottom, always("recompute"))
    assert max(op.runs for op in tape.ops) == 1


def test_a_chain_of_two_thousand_operations_is_no_recursion():
    x = x_of(4)
    with by_rule(always("recompute")) as tape:
        y = x
        for _ in range(1000):
            y = (y * 0.5 + y * 0.5).sin()
    y.sum().backward()
    assert tape.extra_forwards < 4000
