"""What cannot run again is kept; what was changed in place raises, never a wrong number."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.ranks import Link
from pedagogy.recompute import ACTIONS, by_rule
from tests.recompute.running import (
    always,
    assert_same,
    executed,
    made,
    mlp,
    step,
    tied_gpt,
)
from tests.recompute.test_tape import x_of

AGAIN = ("recompute", "alone")
LINK = Link()


def test_what_cannot_run_again_is_kept_and_the_rule_is_not_asked():
    asked = []

    def rule(made):
        asked.append(made.op.name)
        return "recompute"

    x = x_of(8, 8)
    with by_rule(rule) as tape:
        noise = torch.rand_like(x)
        y = functional.dropout(x.exp() * noise, 0.5)
        y = functional.relu(y.tanh().add(1), inplace=True).square()
    kept = {
        tape.ops[number].name for (number, _), (action, _) in tape.saved.items() if action == "keep"
    }
    assert kept == {"rand_like", "empty_like", "add"}
    assert not set(asked) & kept


@pytest.mark.parametrize("action", ["recompute", "alone"])
@pytest.mark.parametrize(
    "change",
    [
        lambda y, z: y.mul_(2),
        lambda y, z: y.view(24)[3:4].zero_(),
        lambda y, z: y.detach().t().add_(1),
        lambda y, z: torch.add(y.detach(), 1, out=y.detach()),
        lambda y, z: z.mul_(2),
    ],
)
def test_what_was_changed_in_place_after_it_was_read_raises(change, action):
    x = x_of(4, 6)
    with by_rule(always(action)):
        y = x.sin()
        z = y.exp()
        with torch.no_grad():
            change(y, z)
        loss = z.sum()
    del y, z
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("action", ACTIONS)
def test_a_result_that_is_changed_after_the_block_raises(action):
    layer, x = nn.Linear(6, 5, bias=False), x_of(2, 4, 6)
    with by_rule(always(action), LINK):
        y = layer(x.exp())  # a matrix product under a view that counts its own writes
        z = y.exp().sin()
    with torch.no_grad():
        y.add_(1)
    if action in AGAIN:
        with pytest.raises(RuntimeError, match="changed in place"):
            z.sum().backward()
    else:
        z.sum().backward()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("place", ["weight", "batch"])
def test_weights_and_batch_that_change_before_backward_raise_as_without_a_tape(action, place):
    model, (images, labels) = made(mlp)
    images = images.clone()
    with by_rule(always(action), LINK):
        loss = model.loss(images, labels)
    with torch.no_grad():
        {"weight": model.layers[2].weight, "batch": images}[place].mul_(1.5)
    with pytest.raises(RuntimeError, match="in place"):
        loss.backward()


def test_an_unknown_action_is_refused():
    with pytest.raises(ValueError, match="'drop': choose one of keep, recompute, alone, swap"):
        executed(mlp, always("drop"))


def test_after_an_exception_in_forward_all_is_as_before():
    model, batch = made(tied_gpt)
    lost = []

    def broken(*given):
        value = model.loss(*given)
        lost.append(weakref.ref(value.untyped_storage()))
        raise KeyError("on purpose")

    with pytest.raises(KeyError), by_rule(always("recompute")) as tape:
        broken(*batch)
    gc.collect()
    assert lost[0]() is None
    num_ops = len(tape.ops)
    right, _ = step(*made(tied_gpt))
    assert_same(step(model, batch)[0], right)
    assert len(tape.ops) == num_ops
