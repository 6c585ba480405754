"""The checks notice offloading that is wrong by one line."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.measure import memory_meter
from pedagogy.workloads import digits_batch
from tests.offload.mutants import MUTANTS, system
from tests.offload.test_activations import arrived
from tests.offload.test_parameters import largest
from tests.offload.test_simulate import clock
from tests.offload.training import assert_same, bytes_of, layers_of, mlp, values

SPEED = 2e6  # bytes a second: ten milliseconds for a whole model
ADAM = {"lr": 0.01}


def step(model, optimizer, number, between=lambda: None):
    """Two backwards, then the update."""
    optimizer.zero_grad()
    for half in range(2):
        images, labels = digits_batch(4, step=2 * number + half)
        functional.cross_entropy(model(images), labels).backward()
    between()
    optimizer.step()


def plain():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    for number in range(3):
        step(model, optimizer, number)
    return values(model)


def check_training(of):
    """Equal to the bit; with an evaluation, whose layers stay, before each step."""
    model = mlp()
    module = of.OffloadedModule(model, of.Link(SPEED), 3, layers_of(model))
    optimizer = of.OffloadedOptimizer(module, torch.optim.Adam, **ADAM)

    @torch.no_grad()
    def evaluate():
        model(digits_batch(4)[0])

    for number in range(3):
        step(model, optimizer, number, evaluate)
    assert_same(values(module.restore()), plain())


def check_what_stays(of):
    """The same for an optimizer alone; frozen values do not move, and a saved state stays."""
    model, right = mlp(), mlp()
    for one in (model, right):
        one.layers[0].requires_grad_(False)
    link = of.Link(SPEED)
    optimizer = of.OffloadedOptimizer(model, torch.optim.Adam, link, **ADAM)
    theirs = torch.optim.Adam(right.parameters(), **ADAM)
    for number in range(3):
        step(model, optimizer, number)
        step(right, theirs, number)
        if number == 0:
            state = optimizer.state_dict()
            first = deepcopy(state)
        assert_same(values(model), values(right))
    moved = bytes_of(model) - bytes_of(model.layers[0])
    assert (link.to_device_bytes, link.to_host_bytes) == (3 * moved, 6 * moved)
    assert_same(state["values"], first["values"])
    assert_same(state["optimizer"]["state"][2], first["optimizer"]["state"][2])


def check_memory(of):
    """Bytes of a step, on the device and on the link; the order of the layers."""
    for prefetch in (0, 1, 2):
        model = mlp()
        layers = [layer for layer in model.layers if bytes_of(layer)]
        sizes = [bytes_of(layer) for layer in layers]
        link = of.Link()
        module = of.OffloadedModule(model, link, prefetch, layers)
        batch = digits_batch(4)
        with memory_meter(model) as meter:
            model.loss(*batch).backward()
            assert meter.now == 0
        hosts = module.host_parameters()
        assert all(host.grad is not None and host.grad.any() for host in hosts)
        assert meter.peak_by_kind["parameters"] == largest(sizes, prefetch)
        uses = zip(of.transfers(len(sizes), prefetch), [*sizes, *reversed(sizes)], strict=True)
        assert link.to_device_bytes == sum(size for needed, size in uses if needed)
        assert link.to_host_bytes == sum(sizes)
        ran = [event.kind + event.name for event in module.trace if event.rank == 0]
        assert ran == ["F0", "F1", "F2", "B2", "B1", "B0"]


def check_states_on_the_host(of):
    """The device's memory after an update is what it was before."""
    model = nn.Linear(8, 8)
    optimizer = of.OffloadedOptimizer(model, torch.optim.Adam, of.Link(), **ADAM)
    with memory_meter(model) as meter:
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        assert meter.now == bytes_of(model)


def check_half_precision(of):
    """Masters of 32 bits, 2 bytes up and 2 down; small updates are not lost."""
    model, link = nn.Linear(8, 8).bfloat16(), of.Link()
    optimizer = of.OffloadedOptimizer(model, torch.optim.SGD, link, lr=1e-3)
    masters = [p.detach().float() for p in model.parameters()]
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    masters = [master - 0.001 - 0.001 - 0.001 - 0.001 for master in masters]
    hosts = [copy.host.detach() for copy in optimizer.copies.values()]
    torch.testing.assert_close(hosts, masters, rtol=0, atol=1e-6)
    assert_same([p.detach() for p in model.parameters()], [h.bfloat16() for h in hosts])
    assert link.to_device_bytes == link.to_host_bytes == 4 * 2 * (8 * 8 + 8)


def check_changes(of):
    """What is changed while, or where, it must not be, raises; what may be is copied as it was."""
    link = of.Link(4e4)
    source, into = torch.ones(1000), torch.zeros(1000)
    copy = link.to_host(source, into)
    source.fill_(2)
    with pytest.raises(RuntimeError):
        copy.finish()

    model = nn.Sequential(nn.Linear(40, 40))
    module = of.OffloadedModule(model, of.Link(1e5), 0)
    optimizer = of.OffloadedOptimizer(module, torch.optim.SGD, lr=0.1)
    model(torch.ones(1, 40)).sum().backward()
    copy = module.copies[model[0].weight]
    copy.fetch()
    under_way = copy._fetched
    optimizer.step()
    under_way.finish()
    with torch.no_grad():
        model(torch.ones(1, 40))  # the layer stays
        copy.host.fill_(1)
        module.copies[model[0].bias].host.zero_()
        assert_same(model(torch.ones(1, 40)), torch.full((1, 40), 40.0))

    staying = nn.Linear(2, 2)
    optimizer = of.OffloadedOptimizer(staying, torch.optim.SGD, of.Link(), lr=0.1)
    with torch.no_grad():
        staying.weight.zero_()
    staying(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError):
        optimizer.step()


def of_two_views(x, weight):
    """Saves the storage of x under two names, the sum, and a parameter."""
    low, high = x.chunk(2)
    return ((high.sin() + low.sin()) @ weight).sum()


def check_activations(of):
    """Each storage once, no parameter, the next before it is asked for; changes are noticed."""
    weight = nn.Parameter(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))
    x, right = (torch.linspace(0, 3, 2048).view(64, 32).requires_grad_() for _ in range(2))
    link = of.Link()
    with of.offload_activations(link):
        loss = of_two_views(x, weight)
    assert link.to_host_bytes == x.nbytes + x.nbytes // 2
    loss.backward()
    of_two_views(right, weight).backward()
    assert_same(x.grad, right.grad)

    link, seen = of.Link(), []
    with of.offload_activations(link, prefetch=1):
        y = x
        for _ in range(4):
            y = y.sigmoid()
            y.register_hook(lambda gradient: seen.append(link.to_device_bytes // x.nbytes))
    y.sum().backward()
    assert seen == [0, 2, 3, 4]
    arrived(link)
    assert [event.name[-1] for event in link.trace.of("to_device")] == ["3", "2", "1", "0"]

    factor, x.grad = torch.ones_like(x), None
    with of.offload_activations(of.Link()):
        first = x * factor
        factor.add_(1)  # the first is not used backward
        (x * factor).sum().backward()
    assert_same(x.grad, torch.full_like(x, 2))
    with pytest.raises(RuntimeError):
        first.sum().backward()


def check_simulation(of):
    """Against the clock."""
    for times in (([6, 1, 2, 1, 3], [1, 1, 4, 0, 2]), ([1, 1, 1], [4, 4, 4])):
        for prefetch in range(4):
            events = of.simulate_offload(*times, prefetch).events
            ends = [event.end for event in events if event.kind == "F"]
            assert ends == clock(*times, prefetch)


CHECKS = [
    check_simulation,
    check_memory,
    check_states_on_the_host,
    check_half_precision,
    check_activations,
    check_what_stays,
    check_changes,
    check_training,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_has_nothing_to_say_of_the_original(check):
    check(system())


@pytest.mark.parametrize("name", MUTANTS)
def test_the_checks_notice_the_mutant(name):
    noticed = []
    for check in CHECKS:
        try:
            check(system(name))
        except (AssertionError, RuntimeError, pytest.fail.Exception):
            noticed.append(check)
            break
    assert noticed
