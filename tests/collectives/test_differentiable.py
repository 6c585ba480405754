"""The autograd pairs: forward and backward against one process that holds every rank's tensor.

One process computes loss = sum over ranks of <weight of the rank, output of the rank>, with all
ranks' inputs as leaves. Each rank computes its own term. Where a pair is right, both agree on the
gradient of every input.
"""

import sys

import cloudpickle
import pytest
import torch

from pedagogy import collectives
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def random(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_one_process(name, inputs):
    """Every rank's output, computed from all ranks' inputs (one process, plain torch)."""
    size = len(inputs)
    if name == "reduce_from":
        return [sum(inputs)] * size
    if name == "gather":
        return [torch.cat(inputs, 0)] * size
    if name == "reduce_scatter":
        return list(sum(inputs).chunk(size, 0))
    raise AssertionError(name)


def one_rank(group, name):
    x = random(group.rank, 4, 6).requires_grad_()
    output = getattr(collectives, name)(group, x)
    output.backward(random(100 + group.rank, *output.shape))
    return output.detach(), x.grad


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("name", ["gather", "reduce_scatter"])
def test_gather_and_reduce_scatter_are_each_others_backward(name, world_size):
    run = launch(one_rank, world_size, name)
    inputs = [random(rank, 4, 6).requires_grad_() for rank in range(world_size)]
    outputs = in_one_process(name, inputs)
    loss = sum((out * random(100 + rank, *out.shape)).sum() for rank, out in enumerate(outputs))
    loss.backward()
    for rank, (output, gradient) in enumerate(run):
        torch.testing.assert_close(output, outputs[rank].detach())
        torch.testing.assert_close(gradient, inputs[rank].grad)


def megatron_block(group, w_in, w_out, x):
    """An MLP whose hidden layer is cut over the ranks: f in front, g behind."""
    x = x.clone().requires_grad_()
    mine = [w.chunk(group.size, dim)[group.rank] for w, dim in ((w_in, 1), (w_out, 0))]
    mine = [w.clone().requires_grad_() for w in mine]
    hidden = torch.tanh(collectives.copy_to(group, x) @ mine[0])
    y = collectives.reduce_from(group, hidden @ mine[1])
    y.sum().backward()  # the gradient of a sum arrives expanded, with strides of 0
    return y.detach(), x.grad, mine[0].grad, mine[1].grad


def test_f_and_g_make_a_layer_that_is_cut_over_ranks_equal_to_the_whole():
    w_in, w_out, x = random(1, 5, 8), random(2, 8, 3), random(3, 7, 5)
    run = launch(megatron_block, 4, w_in, w_out, x)
    leaves = [t.clone().requires_grad_() for t in (x, w_in, w_out)]
    y = torch.tanh(leaves[0] @ leaves[1]) @ leaves[2]
    y.sum().backward()
    for rank, (output, x_grad, in_grad, out_grad) in enumerate(run):
        torch.testing.assert_close(output, y.detach())
        torch.testing.assert_close(x_grad, leaves[0].grad)
        torch.testing.assert_close(in_grad, leaves[1].grad.chunk(4, 1)[rank])
        torch.testing.assert_close(out_grad, leaves[2].grad.chunk(4, 0)[rank])


def split_and_gather(group, x):
    x = x.clone().requires_grad_()
    part = collectives.split_to(group, x, dim=1)
    whole = collectives.gather_from(group, part**2, dim=1)
    (whole * torch.arange(6.0, dtype=torch.float64)).t().sum().backward()
    return part.detach(), whole.detach(), x.grad


def test_split_and_gather_from_pass_a_slice_there_and_the_whole_back():
    x = random(0, 2, 6)
    for rank, (part, whole, gradient) in enumerate(launch(split_and_gather, 3, x)):
        torch.testing.assert_close(part, x[:, 2 * rank : 2 * rank + 2])
        torch.testing.assert_close(whole, x**2)
        torch.testing.assert_close(gradient, 2 * x * torch.arange(6.0, dtype=torch.float64))


def exchange_rows(group, counts):
    rows = counts[group.rank]
    xs = [torch.full((n, 2), 10.0 * group.rank + to, requires_grad=True)
          for to, n in enumerate(rows)]  # fmt: skip
    received = collectives.all_to_all(group, xs)
    loss = sum(((group.rank + 1) * t).sum() for t in received)
    loss.backward()
    return [t.detach() for t in received], [x.grad for x in xs]


def test_all_to_all_sends_gradients_back_to_where_the_rows_came_from():
    counts = [(3, 0), (2, 1)]
    for rank, (received, gradients) in enumerate(launch(exchange_rows, 2, counts)):
        assert [tuple(t.shape) for t in received] == [(counts[s][rank], 2) for s in range(2)]
        assert all((t == 10 * s + rank).all() for s, t in enumerate(received))
        for to, gradient in enumerate(gradients):  # rank `to` multiplied what it got by to + 1
            assert gradient.shape == (counts[rank][to], 2)
            assert (gradient == to + 1).all()


def reduce_strided(group):
    plain = torch.ones(2, 3) * (group.rank + 1)
    sums, gradients = [], []
    for x in (plain, plain.t(), plain[:, :1].expand(2, 3)):
        x = x.detach().requires_grad_()
        sums.append(collectives.reduce_from(group, x).detach())
        copy = collectives.copy_to(group, x)
        weight = torch.full(tuple(copy.shape), float(group.rank + 1)).t().contiguous().t()
        copy.backward(weight)  # a transposed gradient
        gradients.append(x.grad.clone())
        x.grad = None
        (collectives.copy_to(group, x).sum() * (group.rank + 1)).backward()  # an expanded one
        gradients.append(x.grad)
    return sums, gradients


def test_C20_strided_tensors_are_reduced():
    for sums, gradients in launch(reduce_strided, 2):
        assert all((total == 3.0).all() for total in sums)
        assert all((gradient == 3.0).all() for gradient in gradients)


class ReducesACopy(torch.autograd.Function):
    """A mutant of f: it reduces a contiguous copy and returns the gradient that it was given."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.group.all_reduce_(gradient.contiguous())
        return gradient, None


def reduce_with_the_mutant(group):
    x = torch.ones(2, 3, requires_grad=True)
    (ReducesACopy.apply(x, group).sum() * (group.rank + 1)).backward()
    return x.grad


def test_the_check_of_C20_notices_a_reduced_copy():
    gradients = list(launch(reduce_with_the_mutant, 2))
    assert not all((gradient == 3.0).all() for gradient in gradients)


def split_unevenly(group):
    with pytest.raises(ValueError, match="5 is not a multiple of 2") as caught:
        collectives.split_to(group, torch.ones(3, 5))
    return str(caught.value), len(group.events)


def test_a_dimension_that_the_ranks_do_not_divide_is_refused_before_anything_is_sent():
    for message, num_events in launch(split_unevenly, 2):
        assert "(3, 5)" in message
        assert num_events == 0
