"""States and update on the host: equal to the bit, two bytes down and two up."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.measure import memory_meter
from pedagogy.offload import OffloadedModule, OffloadedOptimizer
from pedagogy.ranks import Link
from tests.offload.training import (
    FEWER,
    adamw,
    assert_same,
    batches,
    bytes_of,
    mlp,
    offload,
    tied_gpt,
    train,
    untied_gpt_with_dropout,
    values,
)

OPTIMIZERS = {
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "AdamW, fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "AdamW, foreach": (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", FEWER, ids=lambda make: make.__name__)
def test_the_update_on_the_host_is_the_update_on_the_device(make, name):
    kind, arguments = OPTIMIZERS[name]
    plain, model = make(), make()
    losses = train(plain, kind(plain.parameters(), **arguments))
    with memory_meter(model) as meter:
        found = train(model, OffloadedOptimizer(model, kind, **arguments))
        assert_same(found, losses)
    assert meter.peak_by_kind["optimizer_state"] == 0
    assert all(p.grad is None for p in model.parameters())
    assert_same(values(model), values(plain))


def in_bf16(make):
    return make().to(torch.bfloat16)


def by_hand(model, kind, **arguments):
    """The loop of master weights, written out: returns the fp32 values."""
    masters = [p.detach().float() for p in model.parameters()]
    optimizer = kind(masters, **arguments)
    for batch in batches(model):
        for p in model.parameters():
            p.grad = None
        logits = model(batch[0])
        functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten()).backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)
    return masters


@pytest.mark.parametrize("name", ["momentum", "Adam"])
@pytest.mark.parametrize("moving", [False, True])
def test_bf16_parameters_have_fp32_masters_on_the_host(name, moving):
    kind, arguments = OPTIMIZERS[name]
    plain, model = in_bf16(tied_gpt), in_bf16(tied_gpt)
    masters = by_hand(plain, kind, **arguments)
    module = OffloadedModule(model, Link(), prefetch=1) if moving else model
    optimizer = OffloadedOptimizer(module, kind, **arguments)
    train(model, optimizer)
    hosts = [copy.host.detach() for copy in optimizer.copies.values()]
    assert {host.dtype for host in hosts} == {torch.float32}
    assert_same(hosts, masters)
    if moving:
        kept = values(model)
        assert kept["blocks.0.attention.query.weight"].dtype == torch.float32
        module.restore()
    assert_same(values(model), values(plain))


def test_two_bytes_of_each_parameter_go_up_and_two_come_down():
    model, link = in_bf16(tied_gpt), Link()
    optimizer = OffloadedOptimizer(model, torch.optim.Adam, link)
    batch = batches(model)[0]
    model.loss(*batch).backward()
    num_parameters = sum(p.numel() for p in model.parameters())
    assert (link.to_host_bytes, link.to_device_bytes) == (2 * num_parameters, 0)
    optimizer.step()
    assert (link.to_host_bytes, link.to_device_bytes) == (2 * num_parameters, 2 * num_parameters)


def test_what_has_no_gradient_does_not_move():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)
            self.frozen = nn.Linear(3, 3).requires_grad_(False)

        def loss(self, x, y):
            return (self.frozen(self.used(x)) - y).square().sum()

    plain, model, link = Half(), Half(), Link()
    before = values(model)
    theirs = adamw(plain.parameters())
    optimizer = OffloadedOptimizer(model, torch.optim.AdamW, link, lr=0.01, weight_decay=0.1)
    for one, stepper in ((plain, theirs), (model, optimizer)):
        for _ in range(3):
            stepper.zero_grad()
            one.loss(torch.ones(2, 3), torch.zeros(2, 3)).backward()
            stepper.step()
    assert_same(values(model), values(plain))
    assert_same(model.unused.weight.detach(), before["unused.weight"])
    assert link.to_device_bytes == link.to_host_bytes == 3 * bytes_of(model.used)


@pytest.mark.parametrize("moving", [False, True])
def test_gradients_are_clipped_and_the_rate_is_scheduled_through_the_optimizer_inside(moving):
    plain, model = untied_gpt_with_dropout(), untied_gpt_with_dropout()
    theirs = adamw(plain.parameters())
    module = OffloadedModule(model, Link()) if moving else model
    optimizer = OffloadedOptimizer(module, torch.optim.AdamW, lr=0.01, weight_decay=0.1)

    def run(one, stepper, inner, take):
        torch.manual_seed(3)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
        norms = []
        for batch in batches(one):
            stepper.zero_grad()
            one.loss(*batch).backward()
            take()
            parameters = [p for group in inner.param_groups for p in group["params"]]
            norms.append(nn.utils.clip_grad_norm_(parameters, 0.5))
            stepper.step()
            scheduler.step()
        return norms

    norms = run(plain, theirs, theirs, lambda: None)
    assert min(norms) > 0.5
    assert_same(run(model, optimizer, optimizer.optimizer, optimizer.take_gradients), norms)
    assert_same(values(model), values(plain))


@pytest.mark.parametrize("moving", [False, True])
def test_training_goes_on_exactly_from_a_saved_state(moving):
    def start(seed):
        torch.manual_seed(seed)
        model = in_bf16(tied_gpt)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(seed)
        module = OffloadedModule(model, Link()) if moving else model
        return model, OffloadedOptimizer(module, torch.optim.Adam, lr=0.01)

    model, optimizer = start(0)
    train(model, optimizer, steps=2)
    state = optimizer.state_dict()
    train(model, optimizer, steps=3)
    resumed, other = start(1)
    train(resumed, other, steps=1)
    other.load_state_dict(state)
    train(resumed, other, steps=3)
    assert_same(other.state_dict()["values"], optimizer.state_dict()["values"])
    assert_same(values(resumed), values(model))


def test_a_state_of_other_shapes_is_refused():
    optimizer = OffloadedOptimizer(nn.Linear(3, 2), torch.optim.SGD, lr=0.1)
    for other in (nn.Linear(3, 1), nn.Linear(3, 2, bias=False)):
        state = OffloadedOptimizer(other, torch.optim.SGD, lr=0.1).state_dict()
        with pytest.raises(ValueError, match="values saved, 2 parameters are here"):
            optimizer.load_state_dict(state)


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_leaves_none_on_the_link_either(to_none):
    module, optimizer = offload(mlp)
    batch = batches(module.module)[0]
    module.module.loss(*batch).backward()
    optimizer.zero_grad(to_none)
    optimizer.take_gradients()
    for copy in optimizer.copies.values():
        assert copy.host.grad is None if to_none else not copy.host.grad.any()


@pytest.mark.parametrize("moving", [False, True])
def test_gradients_set_by_hand_and_of_what_was_frozen_at_first_count_too(moving):
    plain, model = (nn.Sequential(nn.Linear(3, 2)).requires_grad_(False) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    module = OffloadedModule(model, Link()) if moving else model
    optimizer = OffloadedOptimizer(module, torch.optim.SGD, lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    for one, stepper in ((plain, theirs), (model, optimizer)):
        one[0].weight.requires_grad_()
        one(torch.ones(1, 3)).sum().backward()
        one[0].bias.grad = torch.ones(2)
        stepper.step()
    assert_same(values(model), values(plain))
    optimizer.zero_grad()
    assert all(copy.host.grad is None for copy in optimizer.copies.values())


def test_training_goes_on_with_the_same_optimizer_when_the_module_is_restored():
    plain = tied_gpt()
    theirs = adamw(plain.parameters())
    module, optimizer = offload(tied_gpt)
    model = module.module
    train(plain, theirs, steps=2)
    train(plain, theirs, steps=3)
    train(model, optimizer, steps=2)
    module.restore()
    train(model, optimizer, steps=3)
    assert_same(values(model), values(plain))


def test_a_module_without_parameters_is_refused():
    with pytest.raises(ValueError, match="nothing to offload"):
        OffloadedOptimizer(nn.ReLU(), torch.optim.SGD, lr=0.1)


def test_a_closure_is_refused():
    optimizer = OffloadedOptimizer(nn.Linear(1, 1), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match="takes no closure"):
        optimizer.step(lambda: 0)


@pytest.mark.parametrize("dropped", [False, True])
def test_after_restore_or_without_its_optimizer_the_device_keeps_its_gradients(dropped):
    model = nn.Linear(2, 2)
    optimizer = OffloadedOptimizer(model, torch.optim.SGD, lr=0.1)
    if dropped:
        del optimizer
    else:
        optimizer.restore()
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
