"""Parameters that are on the device only while their layer runs: equal to the bit, and few."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.measure import memory_meter
from pedagogy.offload import OffloadedModule, offload_activations, transfers
from pedagogy.ranks import Link
from pedagogy.recompute import checkpoint
from tests.offload.training import (
    FEWER,
    MODELS,
    adamw,
    assert_same,
    batches,
    bytes_of,
    layers_of,
    mlp,
    offload,
    tied_gpt,
    train,
    unlimited,
    untied_gpt_with_dropout,
    values,
)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_five_steps_of_adamw_are_those_of_the_unlimited_run_to_the_bit(make, prefetch):
    losses, weights = unlimited(make)
    module, optimizer = offload(make, prefetch)
    assert_same(train(module.module, optimizer), losses)
    assert_same(values(module.restore()), weights)


def test_the_values_may_lie_in_files(tmp_path):
    losses, weights = unlimited(tied_gpt)
    module, optimizer = offload(tied_gpt, folder=tmp_path)
    assert_same(train(module.module, optimizer), losses)
    kept = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert kept == sum(bytes_of(block) for block in module.module.blocks)
    assert_same(values(module.restore()), weights)


class Recomputed(nn.Module):
    """A block that is dropped in forward, and runs again in backward."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x)


def with_recomputed_blocks():
    model = untied_gpt_with_dropout()
    model.blocks = nn.ModuleList(map(Recomputed, model.blocks))
    return model


def loss_of_checkpoints(model):
    """The same from outside: what offloading makes of a block is inside the checkpoint."""

    def loss(ids, targets):
        x = model.embed(ids)
        for block in model.blocks:
            x = checkpoint(block, x)
        return functional.cross_entropy(model.unembed(x).flatten(0, 1), targets.flatten())

    return loss


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_layers_may_be_recomputed_inside_and_outside_of_offloading(prefetch):
    losses, weights = unlimited(untied_gpt_with_dropout)
    module, optimizer = offload(untied_gpt_with_dropout, prefetch)
    assert_same(train(module.module, optimizer, loss=loss_of_checkpoints(module.module)), losses)
    assert_same(values(module.restore()), weights)

    module, optimizer = offload(with_recomputed_blocks, prefetch)
    assert_same(train(module.module, optimizer), losses)
    assert_same(values(module.restore()).values(), weights.values())


@pytest.mark.parametrize("make", FEWER, ids=lambda make: make.__name__)
def test_activations_may_be_offloaded_over_the_same_link(make):
    losses, weights = unlimited(make)
    module, optimizer = offload(make)

    def loss(*batch):
        with offload_activations(module.link, min_bytes=1):
            return module.module.loss(*batch)

    assert_same(train(module.module, optimizer, loss=loss), losses)
    assert_same(values(module.restore()), weights)


def accumulate(model, optimizer, between=lambda: None):
    """Three steps of two batches each."""
    found = batches(model, 6)
    for step in range(3):
        optimizer.zero_grad()
        for batch in found[2 * step : 2 * step + 2]:
            model.loss(*batch).backward()
        between()
        optimizer.step()


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_gradients_add_up_and_an_evaluation_between_backward_and_step_keeps_nothing_old(prefetch):
    model = tied_gpt()
    accumulate(model, adamw(model.parameters()))
    module, optimizer = offload(tied_gpt, prefetch)
    evaluated = []

    @torch.no_grad()
    def evaluate():
        evaluated.append(module.module.loss(*batches(model)[0]))

    accumulate(module.module, optimizer, between=evaluate)
    evaluate()
    with torch.no_grad():
        assert evaluated[-1] == model.loss(*batches(model)[0])
    assert_same(values(module.restore()), values(model))


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_single_layer_that_stayed_after_an_evaluation_is_fetched_anew(prefetch):
    module = OffloadedModule(nn.Sequential(nn.Linear(2, 2)), Link(), prefetch)
    x = torch.ones(1, 2)
    with torch.no_grad():
        module(x)
        for host in module.host_parameters():
            host.fill_(1)
        assert_same(module(x), torch.full((1, 2), 3.0))


def largest(sizes, prefetch):
    """Bytes of the `prefetch` + 1 uses that lie side by side, each layer once, at their most."""
    uses = [*range(len(sizes)), *reversed(range(len(sizes)))]
    windows = (set(uses[i : i + prefetch + 1]) for i in range(len(uses)))
    return max(sum(sizes[layer] for layer in window) for window in windows)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 4])
@pytest.mark.parametrize("make", [mlp, tied_gpt])
def test_the_device_holds_the_largest_neighbours_and_no_byte_more(make, prefetch):
    module, optimizer = offload(make, prefetch)
    model = module.module
    sizes = [bytes_of(layer) for layer in layers_of(make()) or make().blocks]
    staying = bytes_of(make()) - sum(sizes)
    with memory_meter(model) as meter:
        train(model, optimizer, steps=2)
        assert meter.now_by_kind["parameters"] == staying
    assert meter.peak_by_kind["parameters"] == staying + largest(sizes, prefetch)
    assert meter.peak_by_kind["optimizer_state"] == 0


@pytest.mark.parametrize("prefetch", [0, 1, 2, 3, 9])
def test_the_link_carries_the_bytes_of_the_formula(prefetch):
    link, model = Link(), mlp()
    sizes = [bytes_of(layer) for layer in layers_of(model)]
    module = OffloadedModule(model, link, prefetch, layers_of(model))
    model.loss(*batches(model)[0]).backward()
    uses = [*sizes, *reversed(sizes)]
    needed = transfers(len(sizes), prefetch)
    assert [copy.is_evicted for copy in module.copies.values()] == [True] * len(module.copies)
    assert link.to_device_bytes == sum(b for b, copied in zip(uses, needed, strict=True) if copied)
    assert link.to_host_bytes == sum(sizes)
