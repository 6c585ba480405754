"""Chapter 07: answers as readers write them, right and wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pedagogy.exercises import engine
from pedagogy.exercises.chapter07 import MAKESPAN
from pedagogy.exercises.chapter07_hooks import HOOKS
from pedagogy.exercises.chapter07_host import HOST
from pedagogy.offload import simulate_offload


def of_the_package(compute, transfer, prefetch):
    return simulate_offload(compute, transfer, prefetch).makespan


def with_four_lists(compute, transfer, prefetch):
    n = len(compute)
    copy_end, layer_end = [0] * n, [0] * n
    for j in range(n):
        after_copy = copy_end[j - 1] if j else 0
        room = layer_end[j - 1 - prefetch] if j >= prefetch + 1 else 0
        copy_end[j] = max(after_copy, room) + transfer[j]
        after_layer = layer_end[j - 1] if j else 0
        layer_end[j] = max(after_layer, copy_end[j]) + compute[j]
    return layer_end[-1]


def in_lock_step(compute, transfer, prefetch):
    if prefetch == 0:
        return sum(compute) + sum(transfer)
    pairs = zip(compute[:-1], transfer[1:], strict=True)
    return transfer[0] + sum(max(pair) for pair in pairs) + compute[-1]


def one_less(compute, transfer, prefetch):
    n = len(compute)
    ended, link, device = [0.0] * n, 0.0, 0.0
    for j in range(n):
        room = ended[j - prefetch] if j >= prefetch else 0.0
        link = max(link, room) + transfer[j]
        device = max(device, link) + compute[j]
        ended[j] = device
    return device


def from_the_end(compute, transfer, prefetch):
    ended, link = [], 0.0
    for j in range(len(compute)):
        room = ended[j - 1 - prefetch] if j else 0.0
        link = max(link, room) + transfer[j]
        ended.append(max(link, ended[-1] if j else 0.0) + compute[j])
    return ended[-1]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (of_the_package, "correct"),
        (with_four_lists, "correct"),
        (from_the_end, "negative index counts from the end"),
        (in_lock_step, "right for prefetch 0 and 1"),
        (one_less, "room for k layers in all"),
        (lambda compute, transfer, prefetch: max(sum(compute), sum(transfer)), "not yet"),
    ],
)
def test_timelines_are_explained(answer, says):
    assert says in engine.explain(MAKESPAN, answer)


# --- hooks ----------------------------------------------------------------------------------------


def handles_in_the_graph(to_host, to_device, number_of):
    sent = {}

    def pack(tensor):
        base = tensor._base if tensor._base is not None else tensor
        if base.is_leaf and base.requires_grad:
            return lambda: tensor
        key = number_of(tensor)
        if key not in sent:
            sent[key] = to_host(base.reshape(-1))
        handle, view = sent[key], (tensor.shape, tensor.stride(), tensor.storage_offset())
        return lambda: torch.as_strided(to_device(handle), *view)

    return pack, lambda packed: packed()


def as_in_the_documentation(to_host, to_device, number_of):
    return (lambda tensor: to_host(tensor)), (lambda packed: to_device(packed))


def by_address(to_host, to_device, number_of):
    sent = {}

    def pack(tensor):
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return tensor
        address = tensor.untyped_storage().data_ptr()
        if address not in sent:
            sent[address] = to_host(tensor.new_empty(0).set_(tensor.untyped_storage()))
        return sent[address], tensor.shape, tensor.stride(), tensor.storage_offset()

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        return to_device(packed[0]).as_strided(*packed[1:])

    return pack, unpack


def by_number(to_host, to_device, number_of):
    sent = {}

    def pack(tensor):
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return tensor
        if number_of(tensor) not in sent:
            whole = tensor.new_empty(0).set_(tensor.untyped_storage())
            sent[number_of(tensor)] = to_host(whole)
        handle = sent[number_of(tensor)]
        return handle, tensor.shape, tensor.stride(), tensor.storage_offset()

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        return to_device(packed[0]).as_strided(*packed[1:])

    return pack, unpack


def leaves_stay(to_host, to_device, number_of):
    sent = {}

    def pack(tensor):
        if tensor.is_leaf and tensor.requires_grad:
            return tensor
        if number_of(tensor) not in sent:
            whole = tensor.new_empty(0).set_(tensor.untyped_storage())
            sent[number_of(tensor)] = to_host(whole)
        return number_of(tensor), tensor.shape, tensor.stride(), tensor.storage_offset()

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        return to_device(sent[packed[0]]).as_strided(*packed[1:])

    return pack, unpack


def kept_beside_the_handle(to_host, to_device, number_of):
    pack, unpack = by_number(to_host, to_device, number_of)
    return lambda tensor: (pack(tensor), tensor), lambda pair: unpack(pair[0])


def viewed_by_its_size(to_host, to_device, number_of):
    pack, _ = by_number(to_host, to_device, number_of)

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        return to_device(packed[0]).view(packed[1])

    return pack, unpack


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (kept_beside_the_handle, "kept on the device as well"),
        (viewed_by_its_size, "has not the shape, the strides"),
        (handles_in_the_graph, "correct"),
        (as_in_the_documentation, "And weights are sent as well"),
        (by_address, "The key is an address"),
        (leaves_stay, "not yet. Weights stay, but their views are sent"),
        (lambda to_host, to_device, number_of: to_host, "A pair of functions was asked for"),
    ],
)
def test_hooks_are_explained(answer, says):
    assert says in engine.explain(HOOKS, answer)


# --- the optimizer on the host --------------------------------------------------------------------


def in_place(weights, masters, num_steps, gradient_of, make_optimizer, to_host, to_device):
    parameter = masters.detach().clone().requires_grad_()
    optimizer = make_optimizer([parameter])
    for step in range(num_steps):
        optimizer.zero_grad()
        parameter.grad = to_host(gradient_of(step, weights)).to(torch.float32)
        optimizer.step()
        with torch.no_grad():
            weights.copy_(to_device(parameter.to(torch.float16)))
    return weights, parameter, 2 * 2 * weights.numel() * num_steps


def shares_memory(weights, masters, num_steps, gradient_of, make_optimizer, to_host, to_device):
    host = nn.Parameter(masters)
    optimizer = make_optimizer([host])
    for step in range(num_steps):
        host.grad = to_host(gradient_of(step, weights)).float()
        optimizer.step()
        weights = to_device(host.detach().half())
    return weights, host, 4 * weights.numel() * num_steps


def all_inside_the_loop(
    weights, masters, num_steps, gradient_of, make_optimizer, to_host, to_device
):
    crossed = 0
    for step in range(num_steps):
        host = nn.Parameter(masters.clone())
        optimizer = make_optimizer([host])
        gradient = to_host(gradient_of(step, weights))
        host.grad = gradient.float()
        optimizer.step()
        masters = host.detach()
        weights = to_device(masters.half())
        crossed += gradient.nbytes + weights.nbytes
    return weights, masters, crossed


def rounded_after_each_step(
    weights, masters, num_steps, gradient_of, make_optimizer, to_host, to_device
):
    host, crossed = nn.Parameter(masters.clone()), 0
    optimizer = make_optimizer([host])
    for step in range(num_steps):
        host.grad = to_host(gradient_of(step, weights)).float()
        optimizer.step()
        host.data = host.data.half().float()
        weights = to_device(host.detach().half())
        crossed += 2 * weights.nbytes
    return weights, host.detach(), crossed


def cast_at_the_wrong_ends(
    weights, masters, num_steps, gradient_of, make_optimizer, to_host, to_device
):
    host, crossed = nn.Parameter(masters.clone()), 0
    optimizer = make_optimizer([host])
    for step in range(num_steps):
        host.grad = to_host(gradient_of(step, weights).float())
        optimizer.step()
        arrived = to_device(host.detach())
        weights = arrived.half()
        crossed += host.grad.nbytes + arrived.nbytes
    return weights, host.detach(), crossed


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (rounded_after_each_step, "the masters are rounded to 16 bits"),
        (in_place, "correct"),
        (shares_memory, "changes its argument `masters` in place"),
        (all_inside_the_loop, "The optimizer is made anew in each step"),
        (cast_at_the_wrong_ends, "Both ways cross the link in fp32"),
    ],
)
def test_training_on_the_host_is_explained(answer, says):
    assert says in engine.explain(HOST, answer)
