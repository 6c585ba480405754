"""What `DataParallel` promises besides equality: overlap, no_sync, bytes, errors."""

import itertools
import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.data_parallel import DataParallel, average_gradients, broadcast_parameters
from pedagogy.ranks import launch
from pedagogy.workloads import GPT, ConvNet, digits_batch, text_batch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def mlp(seed, *sizes):
    torch.manual_seed(seed)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*layers).double()


def inputs(rank, step=0):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator, dtype=torch.float64)


def gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def expected_gradients(ranks, steps):
    """The mean over ranks of the sum over steps, in one process."""
    model = mlp(0, 6, 9, 5)
    for rank in ranks:
        for step in steps:
            (model(inputs(rank, step)).square().mean() / len(ranks)).backward()
    return gradients(model)


def several_ways(group):
    model = mlp(group.rank, 6, 9, 5)
    wrapped = DataParallel(group, model, bucket_bytes=200)
    found = {}

    def backward(step):
        wrapped(inputs(group.rank, step)).square().mean().backward()

    with wrapped.no_sync():
        backward(0)
    found["inside no_sync"] = gradients(model)
    sent = len([event for event in group.events if event.kind == "all_reduce"])
    backward(1)
    found["after no_sync"] = gradients(model)
    model.zero_grad(set_to_none=False)
    backward(0)
    found["zeroed"] = gradients(model)
    backward(1)
    found["two backwards"] = gradients(model)
    model.zero_grad()
    model(inputs(group.rank, 2)).square().mean().backward()
    found["called without the wrapper"] = gradients(model)
    return found, sent


def test_gradients_are_averaged_once_for_each_backward_that_synchronises():
    run = launch(several_ways, 3)
    for rank, (found, num_sent) in enumerate(run):
        right = {
            "inside no_sync": expected_gradients([rank], [0]),
            "after no_sync": expected_gradients(range(3), [0, 1]),
            "zeroed": expected_gradients(range(3), [0]),
            "two backwards": expected_gradients(range(3), [0, 1]),
            "called without the wrapper": expected_gradients(range(3), [2]),
        }
        assert num_sent == 0, "no_sync sent something"
        for name, values in right.items():
            torch.testing.assert_close(found[name], values, rtol=1e-12, atol=1e-12, msg=name)


class Branches(nn.Module):
    """The branch that a rank takes depends on its data; `never` is used by nobody."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 2) for _ in range(3))
        self.never = nn.Linear(2, 2)
        self.double()

    def forward(self, x, branch):
        return self.branches[branch](x)


def take_branches(group):
    results = []
    for average in ("naive", "wrapper"):
        torch.manual_seed(group.rank)
        model = Branches()
        if average == "naive":
            broadcast_parameters(group, model)
            model(inputs(group.rank), group.rank % 2).sum().backward()
            average_gradients(group, model.parameters())
        else:
            wrapped = DataParallel(group, model, bucket_bytes=1)
            wrapped(inputs(group.rank), group.rank % 2).sum().backward()
        results.append(gradients(model))
    return results


def test_ranks_that_use_different_parameters_agree_and_unused_ones_keep_no_gradient():
    torch.manual_seed(0)
    model = Branches()
    for rank in range(3):
        (model(inputs(rank), rank % 2).sum() / 3).backward()
    expected = gradients(model)
    assert [gradient is None for gradient in expected] == [False] * 4 + [True] * 4
    for by_average in launch(take_branches, 3):
        for found in by_average:
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def one_gpt_step(group):
    model = GPT(layers=2, hidden=128, heads=4, sequence=32)
    wrapped = DataParallel(group, model, bucket_bytes=2**18)
    counted = sum(event.nbytes for event in group.events)
    x, y = text_batch(4, 32, step=group.rank)
    loss = nn.functional.cross_entropy(wrapped(x).flatten(0, 1), y.flatten())
    loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    numel = sum(p.numel() for p in parameters)
    sent = sum(event.nbytes for event in group.events) - counted
    return sent, numel, len(parameters), len(wrapped.buckets)


def test_a_step_sends_the_gradients_and_one_number_for_each_parameter():
    run = launch(one_gpt_step, 2)
    for sent, numel, num_parameters, num_buckets in run:
        assert num_buckets > 3
        assert sent == 2 * (2 - 1) * 4 * (numel + num_parameters) // 2  # 2(N-1)/N


def test_all_reduces_start_while_backward_is_still_running():
    run = launch(one_gpt_step, 2)
    for rank in range(2):
        (backward,) = run.trace.of(kind="backward", rank=rank)
        (forward,) = run.trace.of(kind="forward", rank=rank)
        (wait,) = run.trace.of(kind="wait", rank=rank)
        reduces = run.trace.of(kind="all_reduce", rank=rank)
        inside = [event for event in reduces if backward.start <= event.start < backward.end]
        assert forward.end <= backward.start < backward.end <= wait.start
        assert len(inside) >= len(reduces) - 1 > 2
        assert all(event.end <= wait.end for event in reduces)


def state_dicts(group):
    torch.manual_seed(group.rank)
    model = ConvNet(4)
    wrapped = DataParallel(group, model)
    wrapped(digits_batch(4, step=group.rank)[0]).sum().backward()
    names = list(wrapped.state_dict())
    saved = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    for parameter in model.parameters():
        parameter.data.zero_()
    wrapped.load_state_dict(saved)
    equal = all(torch.equal(saved[n], t) for n, t in model.state_dict().items())
    return names == list(model.state_dict()), equal, saved


def test_a_replica_is_saved_as_if_it_were_alone_and_starts_with_rank_0s_buffers():
    run = launch(state_dicts, 2)
    assert [(names, equal) for names, equal, _ in run] == [(True, True)] * 2
    for name, tensor in run[0][2].items():
        if "running" not in name:  # each rank's own statistics, see batch_norm.py
            torch.testing.assert_close(tensor, run[1][2][name], rtol=0, atol=0)


def refused(group):
    messages = {}

    def catch(name, error, function):
        before = len(group.events)
        with pytest.raises(error) as caught:
            function()
        messages[name] = (str(caught.value), len(group.events) - before)

    model = mlp(0, 6, 9, 5)
    frozen = mlp(0, 6, 5).requires_grad_(False)
    catch("limit", ValueError, lambda: DataParallel(group, model, bucket_bytes=0))
    catch("frozen", ValueError, lambda: DataParallel(group, frozen))
    catch("source", ValueError, lambda: broadcast_parameters(group, model, source=7))
    other = mlp(0, 6, 9 + group.rank, 5)
    catch("shapes", ValueError, lambda: DataParallel(group, other))
    model[1].requires_grad_(False)
    wrapped = DataParallel(group, model)
    model[1].requires_grad_(True)
    catch("unfrozen", RuntimeError, lambda: wrapped(inputs(0)))
    sparse = nn.Embedding(5, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    catch("sparse", ValueError, lambda: average_gradients(group, sparse.parameters()))
    return messages


def test_bad_input_is_refused_with_the_numbers_before_gradients_are_sent():
    for messages in launch(refused, 2):
        assert "bucket_bytes is 0" in messages["limit"][0]
        assert "0 of the parameters" in messages["frozen"][0]
        assert "source is 7; the ranks of this group are 0 to 1" in messages["source"][0]
        assert "4 tensors of 113 elements; rank 1: 4 tensors of 125" in messages["shapes"][0]
        assert "2 parameters were unfrozen" in messages["unfrozen"][0]
        assert "1 parameters have sparse gradients" in messages["sparse"][0]
        silent = {name for name, (_, num_events) in messages.items() if num_events == 0}
        assert silent == {"limit", "frozen", "source", "unfrozen", "sparse"}


def reentrant(group):
    from torch.utils.checkpoint import checkpoint

    model = mlp(0, 6, 6, 6)
    shared = model[0]
    wrapped = DataParallel(group, model)
    x = inputs(group.rank).requires_grad_()
    out = checkpoint(shared, checkpoint(shared, x, use_reentrant=True), use_reentrant=True)
    with pytest.raises(RuntimeError, match="came twice in one backward"):
        (wrapped(x).sum() + out.sum()).backward()
    return True


def test_a_gradient_that_comes_twice_in_one_backward_is_refused():
    assert launch(reentrant, 1)[0]
