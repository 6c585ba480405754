"""C77, copies that are read or overwritten too early; and a model that does not fit."""

import pytest
import torch

from pedagogy.measure import BudgetExceeded, DeviceBudget, memory_meter
from pedagogy.offload import OffloadedModule, OffloadedOptimizer, offload_activations
from pedagogy.ranks import Link
from pedagogy.workloads import GPT
from tests.offload.training import (
    SIZES,
    adamw,
    assert_same,
    batches,
    tied_gpt,
    train,
    values,
)


def test_C77_twenty_steps_over_a_slow_link_are_equal_to_the_bit():
    plain, model = tied_gpt(), tied_gpt()
    losses = train(plain, adamw(plain.parameters()), steps=20)
    link = Link(bytes_per_second=2e7)
    module = OffloadedModule(model, link, prefetch=1)
    optimizer = OffloadedOptimizer(module, torch.optim.AdamW, lr=0.01, weight_decay=0.1)

    def loss(*batch):
        with offload_activations(link, min_bytes=4096):
            return model.loss(*batch)

    assert_same(train(model, optimizer, steps=20, loss=loss), losses)
    assert_same(values(module.restore()), values(plain))


def test_C77_a_host_that_does_not_wait_reads_old_data():
    link = Link(bytes_per_second=4e4)
    source, buffer = torch.ones(1000), torch.zeros(1000)  # 0.1 s
    copy = link.to_host(source, buffer)
    assert not buffer.any()  # read at once, as by an Adam that does not wait
    assert copy.finish() is buffer
    assert buffer.all()


def test_C77_a_device_that_does_not_wait_computes_with_old_weights():
    link = Link(bytes_per_second=4e4)
    host, weight = torch.full((1000,), 2.0), torch.full((1000,), 1.0)
    copy = link.to_device(host, weight)
    early = weight.sum()
    copy.wait()
    assert (early, weight.sum()) == (1000, 2000)


@pytest.mark.parametrize("way", ["to_host", "to_device"])
def test_C77_a_buffer_that_is_used_again_before_its_copy_is_done_raises(way):
    link = Link(bytes_per_second=4e4)
    buffer = torch.ones(1000)
    copy = getattr(link, way)(buffer, torch.zeros(1000))
    buffer.fill_(2)  # the next shard
    with pytest.raises(RuntimeError, match=f"4000 bytes was changed while it was copied {way}"):
        copy.finish()
    again = getattr(link, way)(buffer, torch.zeros(1000))
    assert_same(again.finish(), buffer)  # the link goes on
    buffer.fill_(3)


def test_C77_the_gradient_of_a_parameter_is_added_up_only_when_it_has_arrived():
    model = torch.nn.Linear(1000, 1, bias=False)
    optimizer = OffloadedOptimizer(model, torch.optim.SGD, Link(4e4), lr=1.0)
    start = model.weight.detach().clone()
    model(torch.ones(1, 1000)).sum().backward()
    (copy,) = optimizer.copies.values()
    assert copy.host.grad is None
    optimizer.step()
    assert_same(copy.host.grad, torch.ones(1, 1000))
    assert_same(model.weight.detach(), start - 1)


def test_C77_a_fetched_parameter_is_settled_before_the_host_changes_it():
    model = tied_gpt()
    module = OffloadedModule(model, Link(4e6), prefetch=2)
    optimizer = OffloadedOptimizer(module, torch.optim.SGD, lr=0.1)
    model.loss(*batches(model)[0]).backward()
    first = module.copies[model.blocks[0].attention.query.weight]
    first.fetch()
    under_way = first._fetched
    optimizer.step()
    under_way.finish()  # what computes with it has not been cheated


def wide_gpt():
    torch.manual_seed(0)
    return GPT(**{**SIZES, "layers": 6, "hidden": 24})


def test_a_model_that_does_not_fit_fails_and_offloaded_trains_to_the_same_bits():
    plain, optimizer = wide_gpt(), None
    optimizer = adamw(plain.parameters())
    with memory_meter(plain, optimizer) as meter:
        losses = train(plain, optimizer, steps=2)
    limit = meter.peak // 4

    model = wide_gpt()
    optimizer = adamw(model.parameters())
    with (
        pytest.raises(BudgetExceeded, match="over the budget"),
        DeviceBudget(limit, model, optimizer),
    ):
        train(model, optimizer, steps=2)

    model, link = wide_gpt(), Link()
    module = OffloadedModule(model, link, prefetch=1)
    optimizer = OffloadedOptimizer(module, torch.optim.AdamW, lr=0.01, weight_decay=0.1)

    def loss(*batch):
        with offload_activations(link):
            return model.loss(*batch)

    with DeviceBudget(limit, model) as budget:
        assert_same(train(model, optimizer, steps=2, loss=loss), losses)
    assert 0 < budget.peak <= limit
    assert_same(values(module.restore()), values(plain))
