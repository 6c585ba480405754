"""The optimizers against PyTorch's, Hugging Face's and pytorch_optimizer's, and where they differ.

Every comparison runs 20 steps on parameters of 0, 1, 2 and 4 dimensions. All are given the same
gradients, some of them as a training loop may bring them: not contiguous, in channels_last, missing
in a step, in 16 or 64 bits.
"""

import pytest
import torch
from pytorch_optimizer import SM3 as THEIR_SM3
from torch import nn
from transformers.optimization import Adafactor as HUGGING_FACES

from pedagogy.optimizers import SM3, Adafactor, Adam, Adam8bit

SHAPES = ((), (5,), (3, 4), (2, 3, 4, 5))
STEPS = 20


def torchs_adafactor(params, lr=1e-2):
    return torch.optim.Adafactor(params, lr=lr, eps=(1e-30, 1e-3))


def hugging_faces(params, **settings):
    return HUGGING_FACES(params, **{"warmup_init": False, **settings})


def their_sm3(params, lr=0.1, momentum=0.0):
    return THEIR_SM3(params, lr=lr, momentum=momentum, beta=0.0)


PAIRS = {
    "Adam and torch's": (lambda p: Adam(p, 1e-2), lambda p: torch.optim.Adam(p, 1e-2)),
    "Adafactor and torch's": (Adafactor, torchs_adafactor),
    "Adafactor and Hugging Face's": (Adafactor, hugging_faces),
    "SM3-II and pytorch_optimizer's": (lambda p: SM3(p, 0.1), their_sm3),
}
OURS = {
    "Adam": lambda p: Adam(p, 1e-2),
    "Adafactor": Adafactor,
    "SM3": lambda p: SM3(p, 0.1),
    "SM3-I with momentum": lambda p: SM3(p, 0.1, momentum=0.9, variant=1),
    "Adam8bit": lambda p: Adam8bit(p, 1e-2, block_size=16, min_numel=8),
}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [nn.Parameter(value.to(dtype)) for value in drawn]


def gradients(step, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(1 + step)
    return [(scale * torch.randn(s, generator=generator)).to(dtype) for s in SHAPES]


def plain(gradient, step):
    return gradient


def train(make, as_brought=plain, dtype=torch.float32, scale=1.0, params=None):
    """The parameters after the steps; `as_brought` makes of a gradient what the optimizer gets."""
    params = parameters(dtype) if params is None else params
    optimizer = make(params)
    for step in range(STEPS):
        for parameter, gradient in zip(params, gradients(step, dtype, scale), strict=True):
            parameter.grad = as_brought(gradient, step)
        optimizer.step()
    return [parameter.detach() for parameter in params]


def distance(mine, theirs):
    """The largest difference, relative to the largest number; NaN, if one is NaN."""
    each = [
        (a - b).abs().max().double() / b.abs().max().clamp(min=1)
        for a, b in zip(mine, theirs, strict=True)
    ]
    return torch.stack(each).max().item()


def check_pair(mine, theirs, **how):
    assert distance(train(mine, **how), train(theirs, **how)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mine", "theirs"), PAIRS.values(), ids=PAIRS)
def test_twenty_steps_are_the_others(mine, theirs, dtype):
    check_pair(mine, theirs, dtype=dtype)


def missing(gradient, step):
    """Every third step brings nothing, and the first steps bring the vector nothing."""
    return None if step % 3 == 1 or (gradient.dim() == 1 and step < 5) else gradient


def transposed(gradient, step):
    """The same numbers, in another order in memory."""
    if gradient.dim() < 2:
        return gradient
    order = tuple(range(gradient.dim()))[::-1]
    found = gradient.permute(order).contiguous().permute(order)
    assert not found.is_contiguous()
    return found


def channels_last(gradient, step):
    return gradient.to(memory_format=torch.channels_last) if gradient.dim() == 4 else gradient


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
