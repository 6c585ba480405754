"""The checks notice mixed precision that is wrong by one line."""

from importlib import import_module

import pytest
import torch
from torch import nn

from tests.precision import test_dot, test_formats, test_ranges, test_schemes, test_twin
from tests.precision.mutants import MUTANTS, mutant

INF, NAN = test_twin.INF, test_twin.NAN


def check_formats(module):
    """Against PyTorch's casts."""
    x = test_formats.values(torch.float32)
    for name in ("fp16", "fp8 e5m2"):
        one = module.FORMATS[name]
        test_formats.assert_same(module.round_to(x, one), x.to(one.dtype).float())


def check_ranges(module):
    """Value by value."""
    for value, kind in test_ranges.EDGES:
        shares = module.range_shares(torch.tensor([value]), torch.float16)
        assert shares == {other: float(other == kind) for other in module.KINDS}


def check_dot(module):
    """Against numpy's sums, term by term."""
    x, y = test_dot.numbers(300, seed=1), test_dot.numbers(300, seed=2)
    for accumulate in (torch.float16, torch.float32):
        expected = test_dot.by_hand(x.numpy(), y.numpy(), torch.float16, accumulate)
        found = module.dot(x, y, torch.float16, accumulate)
        assert (found.item(), found.dtype) == (float(expected), accumulate)


def check_master_weights(module):
    """Against an fp32 weight, over two backwards a step, and a state saved and loaded."""

    def made(values):
        weight = nn.Parameter(torch.tensor(values))
        sgd = torch.optim.SGD([weight], lr=2.0**-12, momentum=0.5)
        return weight, module.MasterWeights(sgd, torch.float16)

    start = [1.0, 1 / 3]
    weight, optimizer = made(start)
    plain = nn.Parameter(torch.tensor(start))
    sgd = torch.optim.SGD([plain], lr=2.0**-12, momentum=0.5)
    for step in range(4):
        for gradient in (1.0, 3.0):
            (plain * gradient).sum().backward()
            (weight * gradient).sum().backward()
            optimizer.take_gradients()
        sgd.step()
        optimizer.step()
        plain.grad = weight.grad = None
        assert torch.equal(optimizer.pairs[0][1], plain)
        assert torch.equal(weight, plain.half())
        if step == 1:
            saved = optimizer.state_dict()
            weight, optimizer = made([0.0, 0.0])
            optimizer.load_state_dict(saved)


def check_loss_scale(module):
    """Against GradScaler: two optimizers, and one of two weights."""
    sound, first, second = (0.25, -0.125), (INF, 1.0), (1.0, NAN)
    for exponent, interval in ((16, 2), (125, 1)):
        knobs = {"init_scale": 2.0**exponent, "growth_interval": interval}
        gradients = [sound, first, sound, second, *[sound] * 5]
        ours, theirs = (
            test_twin.pair(make, gradients, (True, False), False)
            for make in (module.DynamicLossScaler(**knobs), torch.amp.GradScaler("cpu", **knobs))
        )
        assert ours[0] == theirs[0]
        assert torch.equal(ours[1], theirs[1])
    weights = [nn.Parameter(torch.zeros(())) for _ in range(2)]
    weights[0].grad, weights[1].grad = torch.tensor(INF), torch.tensor(1.0)
    assert not module.DynamicLossScaler().step(torch.optim.SGD(weights, lr=1.0))


def by_hand():
    """Losses, weights and the share of lost updates of every scheme, and of fp16 in bf16."""
    half, scale = torch.float16, 65536.0
    own = import_module("pedagogy.precision.schemes").accumulate_in_fp16(test_schemes.model())
    return {
        ("fp32", half): test_schemes.by_hand(torch.float32),
        ("fp16", half): test_schemes.by_hand(half, scale),
        ("fp16", torch.bfloat16): test_schemes.by_hand(torch.bfloat16),
        ("no master weights", half): test_schemes.by_hand(half, scale, keep=False),
        ("no loss scaling", half): test_schemes.by_hand(half),
        ("no fp32 accumulation", half): test_schemes.by_hand(half, scale, net=own),
    }


def check_schemes(module, cache={}):  # noqa: B006
    """Against loops by hand."""
    cache.update(cache or by_hand())
    for (scheme, dtype), (losses, weights, lost) in cache.items():
        trained = test_schemes.model()
        run = module.train_scheme(
            scheme,
            trained,
            test_schemes.batch,
            test_schemes.STEPS,
            lambda p: torch.optim.SGD(p, test_schemes.LR),
            dtype,
        )
        test_schemes.assert_equal((run, list(trained.parameters())), losses, weights)
        one = torch.float32 if scheme == "fp32" or dtype != torch.float16 else None
        assert run.scales[0] == (1 if one or scheme == "no loss scaling" else 65536)
        assert scheme != "no master weights" or run.lost_share == lost


CHECKS = {name.removeprefix("check_"): f for name, f in globals().items() if "check_" in name}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_check_notices_the_mutant(name):
    check = CHECKS[MUTANTS[name][0]]
    with pytest.raises((AssertionError, RuntimeError)):
        check(mutant(name))


@pytest.mark.parametrize("name", CHECKS)
def test_it_has_nothing_to_say_of_the_original(name):
    CHECKS[name](import_module(f"pedagogy.precision.{name}"))
