"""The optimizers against three other projects', and where they differ."""

import pytest
import torch
from torch import nn

from pedagogy.optimizers import SM3, Adafactor
from tests.optimizers.training import (
    OURS,
    PAIRS,
    channels_last,
    check_pair,
    distance,
    hugging_faces,
    missing,
    parameters,
    their_sm3,
    torchs_adafactor,
    train,
    transposed,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mine", "theirs"), PAIRS.values(), ids=PAIRS)
def test_twenty_steps_are_the_others(mine, theirs, dtype):
    check_pair(mine, theirs, dtype=dtype)


@pytest.mark.parametrize("as_brought", [missing, transposed, channels_last])
@pytest.mark.parametrize(("mine", "theirs"), PAIRS.values(), ids=PAIRS)
def test_gradients_that_are_missing_or_lie_in_another_order_are_the_same_to_them(
    mine, theirs, as_brought
):
    check_pair(mine, theirs, as_brought=as_brought)


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_the_order_in_memory_changes_nothing(make):
    right = train(make)
    assert distance(train(make, transposed), right) < 1e-6
    assert distance(train(make, channels_last), right) < 1e-6
    params = [nn.Parameter(transposed(p.detach(), 0)) for p in parameters()]
    assert distance(train(make, params=params), right) < 1e-6
    params = [nn.Parameter(channels_last(p.detach(), 0)) for p in parameters()]
    assert distance(train(make, transposed, params=params), right) < 1e-6


@pytest.mark.parametrize("settings", [
    {"lr": 1e-3, "relative_step": False},
    {"lr": 1e-3, "relative_step": False, "scale_parameter": False, "clip_threshold": 0.3},
    {"warmup_init": True},
    {"scale_parameter": False},
    {"eps": (1e-8, 1e-2), "clip_threshold": 2.0},
], ids=str)  # fmt: skip
def test_adafactor_is_hugging_faces_with_any_settings(settings):
    check_pair(lambda p: Adafactor(p, **settings), lambda p: hugging_faces(p, **settings))


def test_adafactors_rate_has_the_same_exponent():
    mine = train(lambda p: Adafactor(p, decay=0.5))
    assert distance(mine, train(lambda p: hugging_faces(p, decay_rate=-0.5))) < 1e-6
    right = torch.optim.Adafactor(params := parameters(), 1e-2, -0.5, (1e-30, 1e-3))
    assert distance(mine, train(lambda p: right, params=params)) < 1e-6


def test_in_16_bits_adafactor_is_hugging_faces_to_the_bit():
    mine, theirs = (train(m, dtype=torch.bfloat16) for m in (Adafactor, hugging_faces))
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == torch.bfloat16
        assert torch.equal(a, b)


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_in_16_bits_all_stay_near_the_run_in_32(make):
    """The spacing of bfloat16 near 1 is 2^-7; twenty roundings of half of it, and no more."""
    mine = [p.float() for p in train(make, dtype=torch.bfloat16)]
    assert distance(mine, train(make)) < 20 * 2**-8
    assert all(p.isfinite().all() for p in mine)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sm3_with_momentum_is_the_others_too(momentum):
    check_pair(lambda p: SM3(p, 0.1, momentum), lambda p: their_sm3(p, momentum=momentum))


def test_sm3_divides_by_the_root_alone_where_the_other_adds_1e_30():
    """Gradients far below 1e-15: theirs hardly moves, ours as far as with gradients of any size."""

    def moved(make, scale):
        start, params = parameters(torch.float64), parameters(torch.float64)
        found = train(make, dtype=torch.float64, scale=scale, params=params)
        return [a - b for a, b in zip(found, start, strict=True)]

    mine, theirs = moved(lambda p: SM3(p, 0.1), 1e-20), moved(their_sm3, 1e-20)
    assert distance(mine, moved(lambda p: SM3(p, 0.1), 1.0)) < 1e-6
    assert max(step.abs().max().item() for step in theirs) < 1e-3
    assert distance(moved(their_sm3, 1.0), mine) < 1e-6


def test_sm3s_bound_in_16_bits_still_grows_where_a_sum_in_16_bits_stops():
    """Of 1,000 equal gradients: the sum is 1,000; added up in bfloat16 it stops at 256."""

    def step_after(make, steps=1000):
        weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16))
        optimizer = make([weight])
        for _ in range(steps):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        return optimizer.state[weight]

    assert [cover.tolist() for cover in step_after(lambda p: SM3(p, 0.1))["covers"]] == [
        [1000, 1000]
    ] * 2
    assert step_after(their_sm3)["accumulator_0"].unique().tolist() == [256]


def test_an_all_zero_row_is_finite_where_torchs_is_not():
    def zero_row(gradient, step):
        if gradient.dim() == 2:
            gradient[1] = 0
        return gradient

    mine = train(Adafactor, zero_row)
    assert all(p.isfinite().all() for p in mine)
    assert torch.equal(mine[2][1], parameters()[2][1])
    assert distance(mine, train(hugging_faces, zero_row)) < 1e-6
    assert train(torchs_adafactor, zero_row)[2].isnan().any()
