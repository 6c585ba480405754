"""The production twin: PyTorch's DDP and its communication hook, beside ours."""

import sys

import cloudpickle
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from pedagogy.data_parallel import DataParallel, DistributedOptimizer
from pedagogy.parameters import bucket
from pedagogy.ranks import launch
from pedagogy.workloads import GPT, text_batch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def make_gpt(rank):
    torch.manual_seed(rank)
    return GPT(layers=2, hidden=32, heads=2, sequence=16)


def train(group, wrap, steps=3):
    """The same loop for both: wrap, forward, backward, step. Returns gradients and weights."""
    model = make_gpt(group.rank)
    wrapped = wrap(group, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gradients = []
    for step in range(steps):
        x, y = text_batch(2, 16, seed=group.rank, step=step)
        functional.cross_entropy(wrapped(x).flatten(0, 1), y.flatten()).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return gradients, [p.detach().clone() for p in model.parameters()]


def ours(group, model):
    return DataParallel(group, model, bucket_bytes=2**15)


def theirs(group, model):
    return DistributedDataParallel(model, bucket_cap_mb=2**15 / 2**20)


def train_both(group):
    return train(group, ours), train(group, theirs)


def test_our_replicas_and_ddps_have_the_same_gradients_and_weights():
    for mine, ddp in launch(train_both, 3):
        torch.testing.assert_close(mine, ddp, rtol=1e-5, atol=1e-7)


def both_in_fp16(group):
    hooked = make_gpt(group.rank)
    ddp = DistributedDataParallel(hooked)
    ddp.register_comm_hook(None, fp16_compress_hook)

    model = make_gpt(group.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DistributedOptimizer(group, optimizer, compression="fp16")

    x, y = text_batch(2, 16, seed=group.rank)
    functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten()).backward()
    functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    own = [p.grad.clone() for p in model.parameters()]
    wrapped.synchronize()
    return own, [p.grad for p in model.parameters()], [p.grad for p in hooked.parameters()]


def test_fp16_compression_equals_ddps_communication_hook():
    run = launch(both_in_fp16, 2)
    exact = [sum(parts) / 2 for parts in zip(*(own for own, _, _ in run), strict=True)]
    for _, mine, ddp in run:
        torch.testing.assert_close(mine, ddp, rtol=2e-3, atol=1e-6)
        worst = max((a - b).abs().max().item() for a, b in zip(mine, exact, strict=True))
        assert worst > 0, "nothing was compressed"


def bucket_sizes(group):
    wrapped = DataParallel(group, make_gpt(0), bucket_bytes=2**15)
    return [[p.numel() for p in one.parameters] for one in wrapped.buckets]


def test_our_buckets_hold_the_parameters_from_the_last_to_the_first():
    (sizes,) = launch(bucket_sizes, 1)
    expected = bucket(list(make_gpt(0).parameters()), 2**15, 2**15)
    assert sizes == [[p.numel() for p in one] for one in expected]
    assert [n for one in sizes for n in one] == [p.numel() for p in make_gpt(0).parameters()][::-1]
