"""`DataParallel` next to another one, around SyncBatchNorm, in a module, after an exception."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.data_parallel import DataParallel, SyncBatchNorm
from pedagogy.ranks import grid, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Sometimes(nn.Module):
    """`second` takes part only where it is asked to."""

    def __init__(self, between):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.between = between
        self.always = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.double()

    def forward(self, x, use_second):
        x = self.between(self.first(x))
        return self.always(x) + (self.second(x) if use_second else 0)


def rows(rank):
    return torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]]).double() * (rank + 1)


def gradients(*models):
    return [p.grad.clone() for model in models for p in model.parameters()]


def seeded_pair():
    torch.manual_seed(0)
    return Sometimes(nn.Identity()), Sometimes(nn.Identity())


def two_wrappers(group):
    early, late = seeded_pair()
    early_wrapped, late_wrapped = DataParallel(group, early), DataParallel(group, late)
    middle = early_wrapped(rows(group.rank), True)  # backward comes to `late` first
    late_wrapped(middle, group.rank == 0).square().sum().backward()
    return gradients(early, late)


def test_two_wrappers_on_one_group_keep_their_gradients_where_a_rank_leaves_a_parameter_unused():
    early, late = seeded_pair()
    for rank in range(3):
        (late(early(rows(rank), True), rank == 0).square().sum() / 3).backward()
    for found in launch(two_wrappers, 3, timeout=20.0):
        torch.testing.assert_close(found, gradients(early, late))


def around_batch_norm(group):
    torch.manual_seed(0)
    model = Sometimes(SyncBatchNorm(group, 2, affine=False))
    wrapped = DataParallel(group, model, bucket_bytes=1)
    wrapped(rows(group.rank), group.rank == 0).square().sum().backward()
    return gradients(model)


def test_the_buckets_around_a_sync_batch_norm_do_not_meet_its_messages():
    torch.manual_seed(0)
    model = Sometimes(nn.BatchNorm1d(2, affine=False))
    x = model.between(model.first(torch.cat([rows(0), rows(1)])))
    second = torch.cat([model.second(x[:3]), torch.zeros(3, 2)])
    ((model.always(x) + second).square().sum() / 2).backward()
    for found in launch(around_batch_norm, 2, timeout=20.0):
        torch.testing.assert_close(found, gradients(model))


def replicas_on_a_grid(group):
    axes = grid(group, pp=2, dp=2)
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    wrapped = DataParallel(axes["dp"], model)
    wrapped(torch.full((1, 2), float(group.rank))).sum().backward()
    return wrapped.group.ranks, model.weight.grad.tolist()


def test_each_line_of_a_grid_averages_for_itself():
    run = launch(replicas_on_a_grid, 4, timeout=20.0)
    low, high = ((0, 1), [[0.5, 0.5]]), ((2, 3), [[2.5, 2.5]])
    assert list(run) == [low, low, high, high]


class FailsOnce(torch.autograd.Function):
    """The identity, whose backward raises where it is told to."""

    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise FloatingPointError
        return gradient, None


def fail_and_go_on(group, bucket_bytes):
    torch.manual_seed(0)
    first, last, other = (nn.Linear(2, 2, bias=False) for _ in range(3))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([first, other, last])

        def forward(self, x, fails):
            x = FailsOnce.apply(first(x), fails)
            return last(x) if fails else other(x)

    wrapped = DataParallel(group, Model(), bucket_bytes)
    x = torch.ones(1, 2) * (group.rank + 1)
    with pytest.raises(FloatingPointError):
        wrapped(x, True).sum().backward()
    failed = group.now()
    wrapped.zero_grad()
    wrapped(x, False).sum().backward()
    starts = [event.start for event in group.events if event.kind == "backward"]
    return other.weight.grad, first.weight.grad, last.weight.grad, starts[0] > failed


@pytest.mark.parametrize("bucket_bytes", [1, 10**6])
def test_after_an_exception_in_backward_the_next_gradients_are_averaged(bucket_bytes):
    run = launch(fail_and_go_on, 2, bucket_bytes, timeout=20.0)
    for other, first, last, starts_afterwards in run:
        torch.testing.assert_close(first, run[0][1], rtol=0, atol=0)
        torch.testing.assert_close(other, run[0][0], rtol=0, atol=0)
        assert first.abs().sum() > 0
        assert last is None
        assert starts_afterwards, "the span of backward began in the one that failed"
    torch.manual_seed(0)
    weight = nn.Linear(2, 2, bias=False).weight
    x = torch.tensor([[1.5, 1.5]])  # the mean over the ranks: everything here is linear in x
    expected = (x @ weight.T).repeat(2, 1)
    torch.testing.assert_close(run[0][0], expected.detach())


def saved_inside(group):
    model = nn.Sequential(DataParallel(group, nn.Linear(2, 2)), nn.BatchNorm1d(2))
    saved = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.load_state_dict(saved)
    equal = all(torch.equal(saved[name], value) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match="Missing key") as caught:
        model.load_state_dict({n: t for n, t in saved.items() if n != "0.bias"})
    return list(saved)[:2], equal, "0.module.bias" in str(caught.value)


def test_a_module_that_contains_a_wrapper_loads_what_it_saved():
    assert launch(saved_inside, 1)[0] == (["0.weight", "0.bias"], True, True)


class Table(nn.Module):
    """Returns its own parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self):
        return self.weight


def call_often(group):
    table = Table()
    wrapped = DataParallel(group, table)
    for _ in range(5):
        wrapped()
    return len(table.weight._backward_hooks or ())


def test_a_parameter_that_a_module_returns_gets_no_hook_for_each_forward():
    assert launch(call_often, 1)[0] == 0
