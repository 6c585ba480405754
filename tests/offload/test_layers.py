"""Layers of every kind: that fail, return their input, take dicts, share, run in any order."""

import pytest
import torch
from torch import nn

from pedagogy.offload import OffloadedModule
from pedagogy.ranks import Link
from tests.offload.training import assert_same, batches, mlp, offload, train, unlimited, values


class Fails(nn.Module):
    """A layer that raises when it is told to, in forward or in backward."""

    def __init__(self):
        super().__init__()
        self.where = None

    def forward(self, x):
        if self.where == "forward":
            raise ArithmeticError("told to")
        if self.where == "backward":
            x.register_hook(self.fail)
        return x

    def fail(self, gradient):
        raise ArithmeticError("told to")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_after_a_failure_training_goes_on_as_if_it_had_not_been(where, prefetch):
    losses, weights = unlimited(mlp)
    module, optimizer = offload(mlp, prefetch)
    model = module.module
    model.layers[2].register_forward_hook(lambda layer, x, y: fails(y))
    fails = Fails()
    fails.where = where
    with pytest.raises(ArithmeticError):
        model.loss(*batches(model)[0]).backward()
    fails.where = None
    link = module.link
    assert_same(train(model, optimizer), losses)
    sent = link.to_device_bytes
    optimizer.zero_grad()
    model.loss(*batches(model)[0]).backward()
    again = link.to_device_bytes
    model.loss(*batches(model)[0]).backward()
    assert link.to_device_bytes - again == again - sent  # a step costs the same as ever
    assert_same(values(module.restore()), weights)


class Mapped(nn.Module):
    """A layer that takes and returns a dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return {"hidden": [torch.tanh(self.linear(x["hidden"][0]))]}


def test_outputs_may_be_nested():
    torch.manual_seed(0)
    model = nn.Sequential(Mapped(), Mapped(), Mapped())
    x = {"hidden": [torch.ones(1, 4)]}
    model(x)["hidden"][0].sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    module = OffloadedModule(model, Link(), prefetch=0)
    module(x)["hidden"][0].sum().backward()
    assert_same([host.grad for host in module.host_parameters()], gradients)


class Added(nn.Module):
    """A layer that writes into its input, and returns it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x.add_(torch.tanh(self.linear(x.detach().clone())))


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("backwards", [False, True])
def test_layers_may_return_their_input_come_in_any_order_and_run_twice(prefetch, backwards):
    def make():
        torch.manual_seed(0)
        middle = [nn.Identity(), nn.Linear(4, 4), Added(), nn.Dropout(0.5).eval()]
        return nn.Sequential(nn.Linear(4, 4), *middle, nn.Linear(4, 4), nn.Identity())

    def loss(model):
        return (model(torch.ones(2, 4)) * model(torch.eye(2, 4))).sum()

    plain, model = make(), make()
    loss(plain).backward()
    layers = list(model)[::-1] if backwards else None
    module = OffloadedModule(model, Link(), prefetch, layers)
    loss(model).backward()
    found = [module.copies[p].host.grad for p in model.parameters()]
    assert_same(found, [p.grad for p in plain.parameters()])
    with torch.inference_mode():
        assert_same(model(torch.ones(2, 4)), plain(torch.ones(2, 4)))


def test_what_two_layers_share_stays_as_does_what_is_used_outside():
    shared, alone = nn.Linear(3, 3), nn.Linear(3, 3)
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Sequential(shared, nn.ReLU()), nn.Sequential(alone)])
    model.again = shared
    module = OffloadedModule(model, Link())
    assert set(module.copies) == set(alone.parameters())


def test_wrong_arguments_are_refused_with_their_numbers():
    layer = nn.Linear(2, 2)
    for arguments, said in (
        ({"prefetch": -1}, "a prefetch of -1: must be 0 or more"),
        ({"layers": []}, "no layers: list"),
        ({"layers": [layer, layer]}, "2 layers, 1 different: list each once"),
        ({"layers": [layer, nn.Linear(2, 2)]}, "1 of 2 layers are not in the module"),
        ({"compute_seconds": [0.1]}, r"1 compute_seconds for 1 layers: .* 2, or none"),
    ):
        with pytest.raises(ValueError, match=said):
            OffloadedModule(nn.Sequential(layer), Link(), **arguments)
    with pytest.raises(ValueError, match="nothing to offload"):
        OffloadedModule(nn.Sequential(nn.ReLU()), Link())
