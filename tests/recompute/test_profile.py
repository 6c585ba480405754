"""A profile: what was seen, and nothing changed by looking."""

import pytest
import torch

from pedagogy.measure import memory_meter
from pedagogy.recompute import profile
from tests.recompute.running import (
    MODELS,
    assert_same,
    convnet,
    made,
    mlp,
    profiled,
    step,
    tied_gpt,
    untied_gpt_with_dropout,
)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_its_peak_is_that_of_a_step_without_a_tape(make):
    model, batch = made(make)
    with memory_meter(model) as meter:
        step(model, batch)
    assert profiled(make).peak == meter.peak


def test_weights_gradients_buffers_and_random_numbers_are_left_alone():
    for make in (convnet, untied_gpt_with_dropout):
        model, batch = made(make)
        model.loss(*batch).backward()
        before = [x.clone() for x in model.state_dict().values()]
        gradients = [p.grad for p in model.parameters()]
        values = [gradient.clone() for gradient in gradients]
        torch.manual_seed(1)
        profile(model, batch)
        drawn = torch.rand(3)
        torch.manual_seed(1)
        assert torch.equal(drawn, torch.rand(3))
        assert_same(list(model.state_dict().values()), before)
        assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
        assert_same(gradients, values)


def test_a_profile_that_fails_leaves_all_alone_too():
    model, batch = made(convnet)
    before = [x.clone() for x in model.state_dict().values()]

    def fails(*given):
        model.loss(*given)
        raise KeyError("on purpose")

    with pytest.raises(KeyError):
        profile(model, batch, loss=fails)
    assert_same(list(model.state_dict().values()), before)


def test_what_is_saved_by_a_plain_net():
    """Backward of a linear layer asks for its input (and its weight, which is no activation)."""
    found = profiled(mlp)
    assert [op.name for op in found.operations] == [
        *("addmm", "relu", "addmm", "relu", "addmm"),
        *("log_softmax", "nll_loss_forward"),
    ]
    by_op = {found.operations[key[0]].name: saved for key, saved in found.saved.items()}
    assert sorted(found.saved) == [(1, 0), (3, 0), (5, 0), (6, 1)]
    assert found.saved[1, 0].nbytes == 4 * 6 * 30
    assert by_op["log_softmax"].nbytes == 4 * 6 * 10
    assert found.asked == ((5, 0), (6, 1), (5, 0), (3, 0), (3, 0), (1, 0), (1, 0))
    assert found.saved[3, 0].asks == (3, 4)  # by the linear layer after, and by the ReLU itself
    assert found.saved[3, 0].gone == 5  # its reader has returned by then
    assert found.operations[4].inputs == ((3, 0),)


def test_live_bytes_grow_by_what_an_operation_makes():
    found = profiled(mlp)
    assert found.live[1] - found.live[0] == 4 * 6 * 30
    parameters = sum(p.nbytes for p in made(mlp)[0].parameters())
    assert found.live[0] == parameters + 4 * 6 * 30


def test_seconds_add_up_and_places_are_the_modules():
    found = profiled(tied_gpt)
    assert found.seconds == pytest.approx(
        found.forward_seconds + sum(seconds for seconds, _ in found.backward)
    )
    assert all(op.seconds > 0 for op in found.operations)
    assert found.name(next(key for key in found.saved if "gelu" in found.name(key))).startswith(
        "blocks."
    )


def test_what_a_loss_saves_and_the_caller_holds_is_not_gone():
    model, batch = made(mlp)
    found = profile(model, batch, loss=lambda *given: model.loss(*given).exp())
    key = max(found.saved)
    assert found.operations[key[0]].name == "exp"
    assert found.saved[key].gone > len(found.operations)


def test_what_cannot_be_made_again_is_known_by_output():
    found = profiled(untied_gpt_with_dropout)
    kept = {found.operations[key[0]].name for key in found.saved if not found.repeats(key)}
    assert kept == {"empty_like"}
