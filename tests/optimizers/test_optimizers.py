"""The optimizers against PyTorch's, Hugging Face's, and slow transcriptions of the papers."""

import copy

import pytest
import torch
from torch import nn

from pedagogy.optimizers import SM3, Adafactor, Adam, Adam8bit, state_bytes
from pedagogy.optimizers.adafactor import rms, step_size
from pedagogy.optimizers.adam8bit import Blocks, code_values, dequantise, quantise
from pedagogy.optimizers.sm3 import sm3_one, sm3_two

SHAPES = ((5, 7), (4,), (), (2, 3, 4))


def sm3(params):
    return SM3(params, 0.1)


def sm3_with_momentum(params):
    return SM3(params, 0.1, momentum=0.9)


OPTIMIZERS = [Adam, Adafactor, sm3, sm3_with_momentum, Adam8bit]


def parameters(shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def train(make, steps=20, shapes=SHAPES):
    """Random gradients, the same for every optimizer."""
    generator, params = torch.Generator().manual_seed(1), parameters(shapes)
    optimizer = make(params)
    for _ in range(steps):
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [parameter.detach().clone() for parameter in params], optimizer


def assert_same(mine, right, tolerance=1e-6):
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --- against others ---------------------------------------------------------------------------


def test_adam_is_pytorchs():
    mine, right = train(lambda p: Adam(p, 1e-2)), train(lambda p: torch.optim.Adam(p, 1e-2))
    assert_same(mine[0], right[0])


def test_adafactor_is_pytorchs_with_the_papers_eps():
    right = train(lambda p: torch.optim.Adafactor(p, lr=1e-2, eps=(1e-30, 1e-3)))
    assert_same(train(Adafactor)[0], right[0])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warmup_init": True},
        {"lr": 1e-3, "relative_step": False},
        {"lr": 1e-3, "relative_step": False, "scale_parameter": False, "clip_threshold": 0.5},
    ],
)
def test_adafactor_is_hugging_faces(settings):
    optimization = pytest.importorskip("transformers.optimization")
    theirs = {"warmup_init": False, **settings}
    right = train(lambda p: optimization.Adafactor(p, **theirs))
    assert_same(train(lambda p: Adafactor(p, **settings))[0], right[0])


def test_a_row_of_zeros_is_finite_where_pytorchs_is_not():
    def first_row_zero(make):
        parameter = nn.Parameter(torch.ones(2, 3))
        parameter.grad = torch.tensor([[0.0, 0, 0], [1, 2, 3]])
        make([parameter]).step()
        return parameter

    found = first_row_zero(Adafactor)
    assert found.isfinite().all()
    assert (found[0] == 1).all()
    theirs = first_row_zero(lambda p: torch.optim.Adafactor(p, eps=(1e-30, 1e-3)))
    assert theirs.isnan().any()


# --- the papers' algorithms, element by element -----------------------------------------------


def sets_of(shape):
    """SM3's cover: one set for each index of each dimension, as lists of places."""
    places = [tuple(i) for i in torch.ones(shape).nonzero().tolist()]
    return places, [
        [p for p in places if p[dim] == index]
        for dim in range(len(shape))
        for index in range(shape[dim])
    ]


@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 3, 2)])
def test_sm3_is_the_papers_algorithm_and_two_is_tighter_than_one(shape):
    generator = torch.Generator().manual_seed(2)
    places, sets = sets_of(shape)
    mu = [dict.fromkeys(range(len(sets)), 0.0) for _ in (1, 2)]
    covers = [[torch.zeros(size) for size in shape] for _ in (1, 2)]
    total = torch.zeros(shape)
    for _ in range(5):
        square = torch.randn(shape, generator=generator).square()
        total += square
        for r, members in enumerate(sets):  # I: the sets first
            mu[0][r] += max(square[i].item() for i in members)
        one = {i: min(mu[0][r] for r, s in enumerate(sets) if i in s) for i in places}
        two = {
            i: min(mu[1][r] for r, s in enumerate(sets) if i in s) + square[i].item()
            for i in places
        }
        mu[1] = {r: max(two[i] for i in members) for r, members in enumerate(sets)}
        mine = sm3_one(covers[0], square), sm3_two(covers[1], square)
        for right, found in zip((one, two), mine, strict=True):
            for place, value in right.items():
                assert found[place].item() == pytest.approx(value, rel=1e-5)
        assert (mine[1] <= mine[0] * (1 + 1e-6)).all()
        assert (mine[1] >= total * (1 - 1e-6)).all()


def test_sm3_of_a_vector_is_adagrad():
    shapes = ((6,), ())
    right = train(lambda p: torch.optim.Adagrad(p, 0.1, eps=0.0), shapes=shapes)
    assert_same(train(sm3, shapes=shapes)[0], right[0])


def test_sm3_leaves_alone_what_never_had_a_gradient():
    parameter = nn.Parameter(torch.ones(2, 2))
    parameter.grad = torch.zeros(2, 2)
    SM3([parameter], 0.1).step()
    assert (parameter == 1).all()


# --- cases ------------------------------------------------------------------------------------


def test_C65_the_step_depends_on_the_parameter_alone():
    small, large = torch.full((3,), 0.1), torch.full((3,), 0.5)
    for order in ((small, large), (large, small)):
        params = [nn.Parameter(value.clone()) for value in order]
        optimizer = Adafactor(params, lr=1e-3, relative_step=False)
        for parameter in params:
            parameter.grad = torch.ones(3)
        before = [parameter.detach().clone() for parameter in params]
        optimizer.step()
        for old, parameter in zip(before, params, strict=True):
            step = (old - parameter).mean().item()
            assert step == pytest.approx(1e-3 * old[0].item(), rel=1e-3)
        assert optimizer.param_groups[0]["lr"] == 1e-3


def test_C66_the_relative_step():
    group = {"lr": None, "eps": (1e-30, 1e-3), "scale_parameter": False, "warmup_init": False}
    assert [step_size(None, t, group) for t in (1, 10**4, 10**6)] == [0.01, 0.01, 0.001]
    group["warmup_init"] = True
    found = [step_size(None, t, group) for t in (1, 10**4, 10**6)]
    assert found == pytest.approx([1e-6, 0.01, 0.001])
    group |= {"warmup_init": False, "scale_parameter": True}
    assert step_size(torch.full((4,), 0.5), 1, group) == pytest.approx(0.005)
    assert step_size(torch.zeros(4), 1, group) == pytest.approx(1e-5)
    with pytest.raises(ValueError, match=r"lr is 0\.1, but a relative step ignores it"):
        Adafactor(parameters(), lr=0.1)


def test_C67_what_is_factored_and_how():
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    optimizer = Adafactor([parameter])
    optimizer.step()
    state = optimizer.state[parameter]
    assert state["rows"].tolist() == [2.5, 12.5]
    assert state["columns"].tolist() == [5.0, 10.0]
    estimate = state["rows"][:, None] * state["columns"] / state["rows"].mean()
    torch.testing.assert_close(estimate, torch.tensor([[5 / 3, 10 / 3], [25 / 3, 50 / 3]]))
    for shape, numbers in (((2, 2), 4), ((3,), 3), ((), 1), ((2, 3, 4), 14)):
        assert state_bytes(train(Adafactor, 1, (shape,))[1]) == 4 * numbers
    parameter.grad = torch.zeros(2, 2)
    optimizer.step()
    assert parameter.isfinite().all()


# --- eight bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("signed", [True, False])
def test_every_value_becomes_its_nearest_code(signed):
    table = code_values(signed)
    assert table.max() == 1
    assert 0 in table
    values = torch.randn(3 * 64, generator=torch.Generator().manual_seed(3))
    values = values if signed else values.abs()
    found = dequantise(quantise(values, 64, signed), 64, signed)
    for block, mine in zip(values.split(64), found.split(64), strict=True):
        largest = block.abs().max()
        distances = (block[:, None] / largest - table).abs()
        torch.testing.assert_close(mine, table[distances.argmin(1)] * largest)


def test_an_outlier_spoils_its_own_block_only_and_zeros_stay():
    values = torch.full((130,), 0.01)
    values[3] = 1000.0
    found = dequantise(quantise(values, 64, True), 64, True)
    torch.testing.assert_close(found[64:], values[64:])
    zeros = quantise(torch.zeros(10), 4, True)
    assert isinstance(zeros, Blocks)
    assert (dequantise(zeros, 4, True) == 0).all()


def test_eight_bit_adam_stays_near_adam_and_is_adam_for_small_tensors():
    shape = ((64, 100),)
    exact, rounded = (train(lambda p, m=m: m(p, 1e-3), shapes=shape)[0] for m in (Adam, Adam8bit))
    moved = (exact[0] - parameters(shape)[0]).detach()
    assert rms(rounded[0] - exact[0]) < 0.2 * rms(moved)
    assert_same(train(Adam8bit)[0], train(Adam)[0])


# --- all of them ------------------------------------------------------------------------------


def test_state_bytes_are_the_formulas():
    numel = 35 + 4 + 1 + 24
    assert state_bytes(train(Adam)[1]) == 8 * numel
    assert state_bytes(train(sm3)[1]) == 4 * (5 + 7 + 4 + 1 + 2 + 3 + 4)
    assert state_bytes(train(sm3_with_momentum)[1]) == 4 * (26 + numel)
    blocks = state_bytes(train(lambda p: Adam8bit(p, block_size=256), shapes=((64, 100),))[1])
    assert blocks == 2 * 6400 + 2 * 4 * 25
    assert state_bytes(train(lambda p: torch.optim.Adam(p))[1]) == 8 * numel


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_saved_state_goes_on_exactly(make):
    shapes = ((3, 5), (4,), (), (70, 70))
    whole = train(make, 6, shapes)[0]
    generator, params = torch.Generator().manual_seed(1), parameters(shapes)
    optimizer = make(params)
    for step in range(6):
        if step == 3:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = make(params)
            optimizer.load_state_dict(saved)
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    assert_same([p.detach() for p in params], whole, tolerance=0)


def test_a_loaded_state_keeps_its_dtype_where_the_parameter_has_16_bits():
    parameter = nn.Parameter(torch.ones(80, 80, dtype=torch.bfloat16))
    optimizer = Adam8bit([parameter])
    parameter.grad = torch.ones_like(parameter) / 3
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    again = Adam8bit([parameter])
    again.load_state_dict(saved)
    for name, value in optimizer.state[parameter].items():
        loaded = again.state[parameter][name]
        assert loaded == value if name == "step" else torch.equal(loaded, value), name
        assert name == "step" or loaded.dtype == value.dtype


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_closures_groups_and_missing_gradients(make):
    used, unused, slow = parameters(((2, 3), (3,), (2, 3)))
    optimizer = make([{"params": [used, unused]}, {"params": [slow]}])

    def closure():
        optimizer.zero_grad()
        loss = (used * slow).square().sum()
        loss.backward()
        return loss

    before = unused.detach().clone()
    first = optimizer.step(closure)
    assert optimizer.step(closure) < first
    assert torch.equal(unused, before)
    assert unused not in optimizer.state
    assert len(optimizer.param_groups) == 2


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"lr is -1"):
        Adam(parameters(), lr=-1)
    with pytest.raises(ValueError, match=r"betas \(0\.9, 1\.0\)"):
        Adam8bit(parameters(), betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="blocks of 0"):
        Adam8bit(parameters(), block_size=0)
    with pytest.raises(ValueError, match="variant is 3"):
        SM3(parameters(), 0.1, variant=3)
    with pytest.raises(ValueError, match=r"momentum is 1\.0"):
        SM3(parameters(), 0.1, momentum=1.0)
    with pytest.raises(ValueError, match="lr must be given"):
        Adafactor(parameters(), relative_step=False)
    parameter = nn.Parameter(torch.ones(3, 2))
    parameter.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(ValueError, match="sparse"):
        Adam([parameter]).step()
