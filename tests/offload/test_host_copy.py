"""A parameter that is not there cannot be read, and what the host holds is what counts."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.offload import HostCopy, OffloadedModule, OffloadedOptimizer
from pedagogy.ranks import Link
from tests.offload.training import (
    assert_same,
    batches,
    layers_of,
    mlp,
    offload,
    tied_gpt,
    train,
    unlimited,
    values,
)

READING = {
    "plus": lambda p: p + 1,
    "product": lambda p: torch.ones(1, 2) @ p,
    "linear": lambda p: functional.linear(torch.ones(1, 2), p),
    "clone": lambda p: p.clone(),
    "detach": lambda p: p.detach(),
    "data": lambda p: p.data,
    "item": lambda p: p[0, 0].item(),
    "numpy": lambda p: p.numpy(),
    "tolist": lambda p: p.tolist(),
    "write": lambda p: p.copy_(torch.ones(2, 2)),
    "transpose": lambda p: p.T,
    "stack": lambda p: torch.stack([torch.ones(2, 2), p]),
    "norm": lambda p: nn.utils.parameters_to_vector([p]),
}


def evicted():
    copy = HostCopy(nn.Parameter(torch.arange(4.0).view(2, 2)), Link())
    copy.evict()
    return copy


@pytest.mark.parametrize("name", READING)
def test_whoever_touches_a_parameter_that_is_not_there_is_told_so(name):
    copy = evicted()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"parameter of shape .*host memory"):
        READING[name](copy.parameter)


def test_its_memory_is_free_its_size_can_be_asked_and_its_values_return():
    copy = evicted()
    p = copy.parameter
    assert p.untyped_storage().nbytes() == 0
    assert (p.shape, p.nbytes, p.dtype, p.numel(), p.grad) == ((2, 2), 16, torch.float32, 4, None)
    assert repr(p) == "parameter of shape (2, 2) in host memory"
    with pytest.raises(RuntimeError, match=r"^data reads"):
        p.data  # noqa: B018
    copy.fetch()
    copy.wait()
    assert type(p) is nn.Parameter
    assert_same(p.detach(), torch.arange(4.0).view(2, 2))


def test_a_parameter_that_shares_its_storage_is_refused():
    with pytest.raises(ValueError, match="16 bytes lies in a storage of 64"):
        HostCopy(nn.Parameter(torch.zeros(4, 4)[0]), Link())


def test_a_value_that_changes_on_the_device_is_not_lost_in_silence():
    model = nn.Linear(2, 2)
    optimizer = OffloadedOptimizer(model, torch.optim.SGD, lr=0.1)
    with torch.no_grad():
        model.weight.zero_()
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="was changed on the device"):
        optimizer.step()


def test_what_the_host_holds_is_what_the_device_computes_with():
    module, _ = offload(tied_gpt)
    batch = batches(module.module)[0]
    with torch.no_grad():
        before = module.module.loss(*batch)
        module.copies[module.module.blocks[1].attention.query.weight].host.fill_(0.1)
        assert module.module.loss(*batch) != before


def test_the_modules_state_dict_has_the_values_while_they_are_away():
    _, weights = unlimited(tied_gpt)
    module, optimizer = offload(tied_gpt)
    train(module.module, optimizer)
    assert_same(values(module.module), weights)
    assert_same(list(values(module).values()), list(weights.values()))
    with pytest.raises(RuntimeError, match="host memory"):
        module.module.blocks.state_dict()  # of a part: there is nobody to answer
    assert all(copy.is_evicted for copy in module.copies.values())


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_is_loaded_into_host_memory(assign):
    saved = {name: torch.rand_like(value) for name, value in tied_gpt().state_dict().items()}
    saved["head.weight"] = saved["token.weight"]
    plain, module = tied_gpt(), OffloadedModule(tied_gpt(), Link())
    for model in (plain, module.module):
        model.load_state_dict(saved, assign=assign)
    batch = batches(plain)[0]
    with torch.no_grad():
        assert_same(module.module.loss(*batch), plain.loss(*batch))
    assert_same([host.detach() for host in module.host_parameters()], in_blocks(saved))
    assert_same(values(module.restore()), saved)


def in_blocks(saved):
    return [value for name, value in saved.items() if name.startswith("blocks.")]


def test_restore_gives_back_a_module_like_any_other():
    model, plain = mlp(), mlp()
    layers = layers_of(model)
    module = OffloadedModule(model, Link(), layers=layers)
    assert module.restore() is model
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert not any("forward" in vars(layer) for layer in layers)
    for one in (model, plain):
        one.loss(*batches(one)[0]).backward()
    assert_same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    again = OffloadedModule(model, Link(), layers=layers)
    with torch.no_grad():
        assert_same(again.module.loss(*batches(model)[0]), plain.loss(*batches(model)[0]))


def forgotten():
    """Offloaded, trained for a step, and left behind; nobody closes or restores anything."""
    module, optimizer = offload(tied_gpt)
    train(module.module, optimizer, steps=1)
    return weakref.ref(module), weakref.ref(module.link)


def test_what_is_forgotten_is_collected_and_its_threads_end():
    before = set(threading.enumerate())
    gc.disable()  # until all are counted
    try:
        references = [reference for _ in range(3) for reference in forgotten()]
        mine = set(threading.enumerate()) - before
    finally:
        gc.enable()
    assert len(mine) == 9  # two directions and the host, of each link
    gc.collect()
    assert [reference() for reference in references] == [None] * 6
    for thread in mine:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in mine)


def test_a_link_with_a_copy_under_way_does_not_keep_the_interpreter():
    code = """
import torch
from pedagogy.ranks import Link
link = Link(bytes_per_second=4e6)
link.to_host(torch.ones(100_000))
link.on_host(print, "started")
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
