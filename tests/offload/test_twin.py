"""The production twins: `save_on_cpu`, and FSDP2 with its CPUOffloadPolicy, beside ours."""

import sys

import cloudpickle
import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

from pedagogy.offload import OffloadedModule, OffloadedOptimizer, offload_activations
from pedagogy.ranks import Link, launch
from tests.offload.training import (
    MODELS,
    adamw,
    assert_same,
    batches,
    tied_gpt,
    train,
    untied_gpt_with_dropout,
    values,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_activations_saved_on_the_cpu_by_pytorch_give_the_same_gradients(make):
    found = []
    for block in (offload_activations(Link()), save_on_cpu(pin_memory=False)):
        model = make()
        torch.manual_seed(3)
        with block:
            loss = model.loss(*batches(model)[0])
        loss.backward()
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    assert_same(*found)


def test_pytorchs_sends_every_saved_tensor_and_ours_every_storage_once():
    model, link = tied_gpt(), Link()
    saved = []
    with offload_activations(link, min_bytes=1):
        model.loss(*batches(model)[0])
    theirs = save_on_cpu(pin_memory=False)
    pack = theirs.pack_hook
    theirs.pack_hook = lambda tensor: saved.append(tensor.nbytes) or pack(tensor)
    with theirs:
        model.loss(*batches(model)[0])
    parameters = sum(p.nbytes for p in model.parameters())
    assert sum(saved) > parameters + link.to_host_bytes  # parameters go too


def fsdp(group, make):
    """Five steps of FSDP2 whose shards, gradients and states lie on the CPU."""
    model = make()
    mesh = DeviceMesh.from_group(group.process_group, "cpu")
    policy = CPUOffloadPolicy(pin_memory=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh, offload_policy=policy)
    losses = train(model, adamw(model.parameters(), eps=1e-4), loss=on_model(model))
    return losses, {name: p.full_tensor() for name, p in model.state_dict().items()}


def on_model(model):
    """FSDP gathers where the model is called, not where its loss is."""

    def loss(ids, targets):
        return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    return loss


def ours(make):
    model = make()
    module = OffloadedModule(model, Link())
    optimizer = OffloadedOptimizer(module, torch.optim.AdamW, lr=0.01, weight_decay=0.1, eps=1e-4)
    losses = train(model, optimizer)
    return losses, values(module)


@pytest.mark.parametrize("size", [1, 2])
def test_fsdp_with_its_offload_policy_trains_the_same_weights(size):
    """Every rank has the whole batch: the mean of equal gradients is each of them."""
    losses, weights = ours(untied)
    for found, theirs in launch(fsdp, size, untied):
        torch.testing.assert_close(found, losses, rtol=1e-5, atol=1e-6)
        named = {name.removeprefix("module."): value for name, value in weights.items()}
        torch.testing.assert_close(theirs, named, rtol=1e-5, atol=1e-6)


def untied():
    model = untied_gpt_with_dropout()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model
