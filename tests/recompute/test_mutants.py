"""The checks notice recomputation that is wrong by one line."""

import copy
from contextlib import nullcontext
from itertools import chain as chain_of

import pytest
import torch
from torch import nn

from pedagogy.measure import memory_meter
from tests.recompute.mutants import MUTANTS, system
from tests.recompute.running import (
    AtOnce,
    always,
    assert_same,
    at_random,
    convnet,
    made,
    mlp,
    resnet_in_place,
    step,
    untied_gpt_with_dropout,
)
from tests.recompute.test_checkpoint import fewest
from tests.recompute.test_decide import chain
from tests.recompute.test_tape import FUNCTIONS, x_of

LINK = AtOnce()
CHEAP = ("native_batch_norm", "relu", "max_pool2d_with_indices", "mean")


def check_plans(of):
    """By hand: a segment of three that fits exactly, and one of two that does not."""
    costs, sizes, kept = [9, 1, 1, 1, 9, 1, 1, 9], [2, 1, 1, 1, 1, 4, 4, 4], {0, 4, 7}
    plans = {policy: of.plan(costs, sizes, policy, None, kept, 6) for policy in of.POLICIES}
    assert [s.layers for s in plans["cost"].segments] == [(1, 2, 3), (5, 6)]
    assert [plan.extra_forwards for plan in plans.values()] == [5, 9, 6]
    assert [plan.peak for plan in plans.values()] == [17, 16, 16]
    assert of.plan([9, 1, 1], [2, 2, 1], "cost", 8, {0}).segments[0].policy == "speed"
    with pytest.raises(ValueError, match="needs 17 bytes, 1 over"):
        of.plan(costs, sizes, "speed", 16, kept, 6)


def block():
    torch.manual_seed(0)
    layers = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.GELU(), nn.Linear(6, 6)
    return nn.Sequential(*layers, nn.Tanh()), torch.randn(5, 6, requires_grad=True)


def check_checkpoint(of):
    """A block under autocast; the number of operations; what must raise."""
    found = []
    for call in (lambda f, x: f(x), of.checkpoint):
        net, x = block()
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            y = call(net, x)
        torch.rand(1)
        y.float().square().sum().backward()
        found.append([x.grad, *(p.grad for p in net.parameters()), *net.buffers(), torch.rand(2)])
    assert_same(*found)

    ran = []

    def careful(x):
        try:
            y = x.exp().sin()
            ran.append(1)
        except Exception:
            y = x.cos()
        return y

    x = torch.ones(3, requires_grad=True)
    of.checkpoint(careful, x).sum().backward()
    assert ran == [1]

    def careless(x):
        y = x.exp()
        z = y.sin()
        y.add_(1)
        return z * y.cos()

    with pytest.raises(RuntimeError):
        of.checkpoint(careless, x).sum().backward()


def check_segments(of):
    """Counted layers; every cut computes the same."""
    for length, slots in ((10, 2), (9, 3), (5, 1), (12, 4)):
        ran = []

        def layer(x, ran=ran):
            ran.append(1)
            return x.sin()

        x = torch.ones(2, requires_grad=True)
        y = of.checkpoint_binomial([layer] * length, slots, x)
        y.sum().backward()
        assert len(ran) - length == of.optimal_forwards(length, slots) == fewest(length, slots)
        other = torch.ones(2, requires_grad=True)
        of.checkpoint_sequential([torch.sin] * length, 3, other).sum().backward()
        assert_same([other.grad], [x.grad])


def cheap(action):
    return lambda made: action if made.op.name in CHEAP else "keep"


def check_actions(of):
    """Equal to the bit, in as many forwards as worked out by hand."""
    for make in (convnet, resnet_in_place):
        right, _ = step(*made(make))
        for rule in (always("recompute"), always("alone"), always("swap"), at_random(2)):
            assert_same(step(*made(make), of.by_rule(rule, LINK))[0], right)
    for action, forwards in (("recompute", 8), ("alone", 15), ("keep", 0), ("swap", 0)):
        _, tape = step(*made(convnet), of.by_rule(cheap(action), LINK))
        assert tape.extra_forwards == forwards


def check_functions(of):
    """Views, lists, random numbers, conjugates; a write that is not said; autocast in backward."""
    for function in (*FUNCTIONS, unsaid):
        found = []
        for around in (nullcontext(), of.by_rule(always("recompute"), LINK)):
            x = x_of(4, 6)
            torch.manual_seed(5)
            with around:
                output = function(x)
            outputs = output if isinstance(output, tuple) else (output,)
            sum(y.abs().sum() for y in outputs).backward()
            found.append([x.grad, *(y.detach() for y in outputs)])
        assert_same(*found)
    found = []
    for rule in (always("keep"), always("recompute")):
        net, x = (
            nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)),
            x_of(4, 6),
        )
        torch.manual_seed(0)
        for p in net.parameters():
            nn.init.normal_(p)
        with of.by_rule(rule):
            loss = net(x).sum()
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
        found.append([x.grad])
    assert_same(*found)


@torch.library.custom_op("pedagogy_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    """Writes to its argument and does not say so, as a collective does; returns something new."""
    x.untyped_storage().copy_((x * 2).untyped_storage())
    return torch.rand(4, 6)


def unsaid(x):
    y = x.exp()
    with torch.no_grad():
        new = double(y)
    return y.sin().cos() * y.detach().tanh().mul(x * new).exp()


def check_changes(of):
    """What was written after it was read or saved raises."""
    for change in ("read", "saved", "later", "weight", "input"):
        weight = torch.ones(3, requires_grad=True)
        x = x_of(4, 3)
        base = x.detach().clone()
        with of.by_rule(always("keep" if change == "saved" else "recompute")):
            y = base * weight
            z = y.exp()
            loss = z.sin().sum()
            if change == "read":
                y.detach().mul_(2)
            if change == "saved":
                z.detach().mul_(2)
        del z
        if change == "later":
            y.detach().mul_(2)
        if change in ("weight", "input"):
            (weight if change == "weight" else base).data.view(-1)
            with torch.no_grad():
                (weight if change == "weight" else base).mul_(2)
        del y
        with pytest.raises(RuntimeError):
            loss.backward()


def check_memory(of):
    """After forward and after backward; operations run in order and let go."""
    model, batch = made(untied_gpt_with_dropout)
    for rule in (always("recompute"), always("alone"), always("swap")):
        model.zero_grad()
        with memory_meter(model) as meter:
            before = meter.now
            with of.by_rule(rule, LINK) as tape:
                loss = model.loss(*batch)
            kept = sum(nbytes for action, nbytes in tape.saved.values() if action == "keep")
            assert meter.now == before + kept + loss.nbytes
            loss.backward()
            gradients = sum(p.nbytes for p in model.parameters())
            assert meter.now == before + gradients + loss.nbytes
            assert tape.asked


def chained(x):
    for _ in range(20):
        x = x.sin()
    return x.sum()


def check_chain(of):
    """`alone` on 20 layers holds a handful of tensors; what is called comes at its ask."""
    x = torch.linspace(0, 1, 256)
    with memory_meter() as meter:
        start = x.clone().requires_grad_()
        with of.by_rule(always("alone")) as tape:
            loss = chained(start)
        loss.backward()
    assert meter.peak < 6 * x.nbytes
    assert tape.extra_forwards == 19 * 20 // 2

    link, seen = AtOnce(), []
    with of.by_rule(always("swap"), link, {1: ((0, 0), (1, 0))}):
        y = start
        for _ in range(4):
            y = y.sin()
            y.register_hook(lambda gradient: seen.append(link.to_device_bytes // x.nbytes))
        loss = y.sum()
    del y
    loss.backward()
    assert seen == [0, 1, 3, 3]


def check_profile(of):
    """Nothing is moved; how long a storage is needed."""
    for make in (convnet, untied_gpt_with_dropout):
        model, batch = made(make)
        before = [b.clone() for b in model.buffers()]
        torch.manual_seed(1)
        of.profile(model, batch)
        assert_same([torch.rand(2)], [torch.rand(2, generator=torch.Generator().manual_seed(1))])
        assert_same(list(model.buffers()), before)
    model, batch = made(mlp)
    found = of.profile(model, batch, loss=lambda *given: model.loss(*given).exp())
    gone = {key: saved.gone for key, saved in found.saved.items()}
    assert gone == {(1, 0): 3, (3, 0): 5, (5, 0): 7, (6, 1): 7, (7, 0): 9}


class Sines(nn.Module):
    """A sum kept for the sines, and needed again after they are done; wide on the way to there."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512))

    def loss(self, x):
        total = x + self.weight
        above = (total.repeat(8) * 3).view(8, -1).sum(0).tanh()
        for _ in range(4):
            total = total.sin()
        return ((above + total) * self.weight).sum()


def check_branches(of):
    """A chain's results on the way; what is kept for one node is gone when another comes."""
    model, batch = Sines(), (torch.linspace(0, 1, 512),)
    found = of.profile(model, batch)
    everything = dict.fromkeys(found.saved, "alone")
    for actions, forwards in ((everything, None), ({(4, 0): "recompute"}, 5)):
        with memory_meter(model) as meter:
            with of.by_rule(lambda made: actions.get(made.key, "keep")) as tape:  # noqa: B023
                loss = model.loss(*batch)
            loss.backward()
        model.weight.grad = None
        prediction = of.predict(found, actions)
        assert meter.peak == prediction.peak
        assert prediction.extra_forwards == tape.extra_forwards
        assert forwards in (None, tape.extra_forwards)


def check_predictions(of):
    """Bytes and forwards of what runs."""
    for make in (convnet, mlp):
        model, batch = made(make)
        found = of.profile(copy.deepcopy(model), batch)
        chosen = [(of.by_policy(found, policy), None) for policy in ("speed", "memory")]
        for action in ("alone", "swap"):
            actions = dict.fromkeys(found.saved, action)
            chosen.append((of.Decision(actions, {}, of.predict(found, actions)), None))
        largest = max(found.saved, key=lambda key: found.saved[key].nbytes)
        for ask in (0, 2):
            actions, calls = {largest: "swap"}, {ask: (largest,)}
            prediction = of.predict(found, actions, calls=calls)
            chosen.append((of.Decision(actions, calls, prediction), calls))
        for decision, calls in chosen:
            one = copy.deepcopy(model)
            with memory_meter(one) as meter:
                with of.by_rule(decision.rule, AtOnce(), calls) as tape:
                    loss = one.loss(*batch)
                loss.backward()
            assert meter.peak == decision.prediction.peak
            assert tape.extra_forwards == decision.prediction.extra_forwards
        if make is convnet:
            assert [decision.prediction.extra_forwards for decision, _ in chosen[:2]] == [8, 15]
            for budget, forwards in ((10**9, 8), (0, 15)):
                assert of.by_policy(found, "cost", budget).prediction.extra_forwards == forwards


def check_decisions(of):
    """On paper."""
    one, two = of.swap_or_recompute(chain(), 300, 100.0), of.swap_or_recompute(chain(), 200, 100.0)
    assert (one.actions, one.calls) == ({(0, 0): "swap"}, {2: ((0, 0),)})
    assert two.calls == {1: ((1, 0),), 2: ((0, 0),)}
    assert one.prediction.seconds == two.prediction.seconds == 8.0
    for cheapest in (0, 1):
        seconds = [1.0] * 4
        seconds[cheapest] = 0.5
        found = of.swap_or_recompute(chain(seconds), 300, 1.0)
        assert found.actions == {(cheapest, 0): "recompute"}
        assert found.prediction.seconds == 8.0
    slow = chain((1.0, 3.0, 1.0, 1.0), (10, 100, 100, 100))
    assert of.swap_or_recompute(slow, 210, 1.0).actions == {(1, 0): "recompute"}
    both = of.predict(chain(), {(0, 0): "recompute", (1, 0): "recompute"})
    assert both.live[-6:] == (100, 200, 200, 100, 100, 0)  # A0 is made for A1, and stays
    for seconds, nbytes, budget, speed, actions in (
        ((1.0, 2.0, 1.0, 3.0), (300, 300, 300, 100), 800, 200.0, {0: "recompute"}),
        ((3.0, 3.0, 1.0, 2.0), (300,) * 4, 720, 1.0, dict.fromkeys((0, 1), "recompute")),
        (
            *((1.0, 1.0, 0.5, 3.0), (200, 300, 200, 300), 600, 100.0),
            {0: "recompute", 1: "swap", 2: "recompute"},
        ),
    ):
        found = of.swap_or_recompute(chain(seconds, nbytes), budget, speed)
        assert {key[0]: action for key, action in found.actions.items()} == actions
    all_away = dict.fromkeys(slow.saved, "swap")
    wide = chain(nbytes=(200, 100, 100, 100))
    assert of._calls(wide, one.actions | two.actions, 100.0) == {0: ((1, 0),), 1: ((0, 0),)}
    late = of.predict(chain(), all_away, 25.0)  # A0 has left at 5, is called then, and there at 9
    assert (late.stall, late.seconds) == (2.0, 10.0)


CHECKS = {
    "checkpoint": [check_checkpoint],
    "segments": [check_segments],
    "policies": [check_plans],
    "writes": [check_functions, check_actions],
    "made": [check_changes, check_functions, check_actions],
    "again": [check_chain, check_changes, check_functions, check_actions],
    "tape": [
        check_chain,
        check_memory,
        check_changes,
        check_functions,
        check_actions,
        check_predictions,
    ],
    "watch": [check_profile, check_predictions],
    "profile": [check_profile],
    "predict": [check_decisions, check_branches, check_predictions],
    "decide": [check_decisions, check_predictions],
}
WRONG = (AssertionError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError)


@pytest.mark.parametrize("check", sorted({*chain_of(*CHECKS.values())}, key=lambda f: f.__name__))
def test_it_has_nothing_to_say_of_the_original(check):
    check(system())


@pytest.mark.parametrize("name", MUTANTS)
def test_the_checks_notice_the_mutant(name):
    mutant = system(name)
    noticed = []
    for check in CHECKS[MUTANTS[name][0]]:
        try:
            check(mutant)
        except (*WRONG, ValueError, pytest.fail.Exception):
            noticed.append(check)
            break
    assert noticed
