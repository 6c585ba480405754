"""Activations that wait in host memory: gradients to the bit, every storage once."""

import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from pedagogy.measure import memory_meter
from pedagogy.offload import offload_activations
from pedagogy.ranks import Link
from pedagogy.recompute import checkpoint
from pedagogy.workloads.gpt import Attention
from tests.offload.training import (
    assert_same,
    batches,
    convnet,
    mlp,
    tied_gpt,
    untied_gpt_with_dropout,
)

MODELS = [tied_gpt, untied_gpt_with_dropout, convnet, mlp]


def arrived(link):
    """All that was asked of the link until now is done."""
    for way in link._engines.values():
        way.submit(int).result()


def gradients(make, block=lambda loss: loss()):
    model = make()
    torch.manual_seed(3)
    loss = block(lambda: model.loss(*batches(model)[0]))
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()], dict(model.named_buffers())


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_gradients_are_those_of_the_plain_step_to_the_bit(make, prefetch):
    def block(loss):
        with offload_activations(Link(), prefetch, min_bytes=1):
            return loss()

    assert_same(gradients(make, block), gradients(make))


def saved_storages(model, batch, given=()):
    """Bytes of what autograd saves, each storage once, but for parameters and what was given."""
    owned = {t.untyped_storage()._cdata for t in (*model.parameters(), *given)}
    found, alive = {}, []

    def note(tensor):
        storage = tensor.untyped_storage()
        alive.append(tensor)
        if storage._cdata not in owned:
            found[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        model.loss(*batch)
    return list(found.values())


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("least", [1, 1024])
def test_each_storage_goes_once_and_returns_once(make, least):
    model, link = make(), Link()
    batch = batches(model)[0]
    expected = sum(size for size in saved_storages(make(), batch) if size >= least)
    with offload_activations(link, min_bytes=least):
        loss = model.loss(*batch)
    assert link.to_host_bytes == expected
    loss.backward()
    assert link.to_device_bytes == expected


def test_the_input_of_query_key_and_value_goes_once():
    torch.manual_seed(0)
    link = Link()
    attention, x = Attention(32, 2, 8), torch.randn(3, 8, 32)
    linear = [attention.query, attention.key, attention.value]
    with offload_activations(link):
        y = sum(layer(x) for layer in linear)
    arrived(link)
    assert (link.to_host_bytes, len(link.trace)) == (x.nbytes, 1)
    y.sum().backward()
    assert (link.to_device_bytes, len(link.trace)) == (x.nbytes, 2)


@pytest.mark.parametrize("least", [1, 512])
@pytest.mark.parametrize("make", [tied_gpt, mlp])
def test_after_forward_the_device_holds_only_what_is_too_small_to_send(make, least):
    model, link = make(), Link()
    batch = batches(model)[0]
    sizes = saved_storages(model, batch, given=(*batch, *model.buffers()))
    with memory_meter(model) as meter:
        with offload_activations(link, min_bytes=least):
            loss = model.loss(*batch)
        arrived(link)
        held = meter.now_by_kind["activations"]
    assert held == sum(size for size in sizes if size < least) + loss.nbytes


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_prefetch_more_are_on_their_way_back_than_backward_asked_for(prefetch):
    x = torch.ones(256, requires_grad=True)
    link, seen = Link(), []
    with offload_activations(link, prefetch):
        y = x
        for _ in range(6):
            y = y * y.detach().exp()  # saves one factor, 1024 bytes
            y.register_hook(lambda gradient: seen.append(link.to_device_bytes // 1024))
    assert link.to_host_bytes == 6 * 1024
    y.sum().backward()
    assert seen == [0, *(min(asked + prefetch, 6) for asked in range(1, 6))]
    assert link.to_device_bytes == 6 * 1024


def test_a_tensor_that_changes_in_place_after_it_was_saved_raises_as_without():
    for block in (lambda: offload_activations(Link()), nullcontext):
        x = torch.ones(1000, requires_grad=True)
        y = x * 2
        with block():
            z = y.square()
        y.add_(1)
        with pytest.raises(RuntimeError, match=r"changed in place|inplace operation"):
            z.sum().backward()


@pytest.mark.parametrize("speed", [None, 1e6])  # slow: it changes while it is copied
def test_a_tensor_that_changes_between_two_savings_is_sent_again(speed):
    link = Link(speed)
    factor = torch.ones(1000)
    x = torch.ones(1000, requires_grad=True)
    with offload_activations(link):
        first = x * factor
        factor.add_(1)
        second = x * factor
    assert link.to_host_bytes == 8000
    second.sum().backward()
    assert_same(x.grad, torch.full((1000,), 2.0))
    with pytest.raises(RuntimeError, match="changed in place"):
        first.sum().backward()


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_it_works_inside_and_around_a_checkpoint(make):
    def around(loss):
        with offload_activations(Link(), min_bytes=1):
            return checkpoint(loss)

    def inside(loss):
        return checkpoint(lambda: around(loss))

    def both(loss):
        return checkpoint(lambda: inside(loss))

    plain = gradients(make)
    for block in (around, inside, both):
        assert_same(gradients(make, block), plain)


def test_inside_a_checkpoint_only_what_the_checkpoint_keeps_goes_over_the_link():
    link, x = Link(), torch.randn(64, 32)
    layer = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
    with offload_activations(link):
        y = checkpoint(layer, x)
    assert link.to_host_bytes == x.nbytes
    y.sum().backward()
    assert link.to_device_bytes == x.nbytes


def test_blocks_may_be_nested_and_the_inner_link_carries_the_inner_tensors():
    outer, inner = Link(), Link()
    x = torch.randn(1000, requires_grad=True)
    with offload_activations(outer):
        y = x.exp()
        with offload_activations(inner):
            z = y.sin()
    z.sum().backward()
    assert (outer.to_host_bytes, inner.to_host_bytes) == (y.nbytes, y.nbytes)
    assert_same(x.grad, y.detach() * y.detach().cos())


def test_a_graph_may_be_used_twice():
    x = torch.randn(1000, requires_grad=True)
    with offload_activations(Link()):
        y = x.exp().sin().sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    assert_same(x.grad, 2 * once)


def test_wanted_chooses():
    link = Link()
    x = torch.randn(1000, requires_grad=True)
    with offload_activations(link, wanted=lambda tensor: tensor.min() > 0):
        (x.exp() * x.sin()).sum().backward()
    assert link.to_host_bytes == x.nbytes  # the exponential; not x, nor its sine
    plain = x.detach().requires_grad_()
    (plain.exp() * plain.sin()).sum().backward()
    assert_same(x.grad, plain.grad)


def test_what_backward_has_used_is_free_again():
    link = Link()
    x = torch.randn(1000, requires_grad=True)
    with offload_activations(link):
        y = x.exp()
        z = y.sin()
    gone = weakref.ref(y.untyped_storage())
    del y
    arrived(link)
    assert gone() is None
    with memory_meter() as meter:
        z.sum().backward()
        del z
    assert meter.now == x.grad.nbytes


def test_a_negative_prefetch_is_refused():
    with pytest.raises(ValueError, match="prefetch -1"), offload_activations(prefetch=-1):
        pass


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_slow_link_leaves_no_more_on_the_device_than_is_under_way(prefetch):
    link = Link(bytes_per_second=4e5)  # a tensor takes 10 ms, a tanh a hundredth of that
    x = torch.zeros(1000, requires_grad=True)
    with memory_meter() as meter, offload_activations(link, prefetch):
        for _ in range(12):
            x = x.tanh()
        after = meter.now_by_kind["activations"]
    assert after <= (prefetch + 1) * 4000  # and the last result
    assert meter.peak <= (prefetch + 3) * 4000
    link.close()
