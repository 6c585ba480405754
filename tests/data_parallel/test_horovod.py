"""`DistributedOptimizer`: negotiation, fusion, compression, and the initial state."""

import sys

import cloudpickle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pedagogy.data_parallel import (
    DistributedOptimizer,
    agree_on_order,
    broadcast_optimizer_state,
    fuse,
    negotiate,
)
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_tensors_are_sent_in_the_order_in_which_the_last_rank_has_them():
    assert negotiate([[0, 1, 2], [1, 2, 0], [1, 0, 2]]) == [1, 0, 2]
    assert negotiate([[0, 1], [1, 0]]) == [0, 1]
    assert negotiate([[2], [2, 0]]) == [2, 0]  # rank 0 never has tensor 0
    assert negotiate([[], []]) == []
    with pytest.raises(ValueError, match="rank 1 reported 3 tensors, some of them twice"):
        negotiate([[0], [0, 1, 0]])


@given(st.lists(st.lists(st.integers(0, 6), unique=True), min_size=1, max_size=4))
def test_negotiation_names_every_tensor_once_and_complete_ones_first(requests):
    order = negotiate(requests)
    assert sorted(order) == sorted(set().union(*requests))
    complete = [all(tensor in request for request in requests) for tensor in order]
    assert complete == sorted(complete, reverse=True)


def agree(group):
    ready = {0: [0, 1, 2], 1: [2, 1, 0], 2: [1]}[group.rank]
    order = agree_on_order(group, ready, 4)
    with pytest.raises(ValueError, match="the tensors are 0 to 3"):
        agree_on_order(group, [4], 4)
    return order, sum(event.nbytes for event in group.events)


def test_all_ranks_follow_the_coordinators_list():
    run = launch(agree, 3)
    assert [order for order, _ in run] == [[1, 0, 2]] * 3
    assert sum(nbytes for _, nbytes in run) == 4 * 8 * (2 + 2)  # 2 to the coordinator, 2 back


class TwoBranches(nn.Module):
    """Two layers that are used in an order which the rank chooses: its gradients come likewise."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x, order):
        for index in order:
            x = torch.tanh(self.layers[index](x))
        return x


def train_in_another_order(group):
    model = TwoBranches().double()  # other weights on each rank: the wrapper broadcasts
    optimizer = DistributedOptimizer(group, torch.optim.Adam(model.parameters()), fusion_bytes=64)
    order = [0, 1, 2] if group.rank % 2 else [2, 0, 1]
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for step in range(3):
        data = torch.Generator().manual_seed(10 * step + group.rank)
        x = torch.randn(2, 3, generator=data, dtype=torch.float64)
        model(x, order).square().mean().backward()
        came = list(optimizer._ready)
        optimizer.step()
        optimizer.zero_grad()
    return came, start, model.state_dict()


def test_ranks_whose_gradients_appear_in_different_orders_do_not_dead_lock():
    run = launch(train_in_another_order, 3, timeout=20.0)
    assert run[0][0] != run[1][0], "the gradients came in the same order; this tests nothing"
    model = TwoBranches().double()
    model.load_state_dict(run[0][1])
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        for rank in range(3):
            data = torch.Generator().manual_seed(10 * step + rank)
            x = torch.randn(2, 3, generator=data, dtype=torch.float64)
            order = [0, 1, 2] if rank % 2 else [2, 0, 1]
            (model(x, order).square().mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    for _, _, state in run:
        for name, value in model.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


def reduce_as_they_come(group):
    """The mutant: every rank sends its gradients in its own order, without negotiation."""
    tensors = [torch.full((4,), 1.0), torch.full((4,), 10.0)]
    for index in [0, 1] if group.rank else [1, 0]:
        group.all_reduce_(tensors[index])
    return [tensor[0].item() for tensor in tensors]


def test_without_negotiation_different_tensors_are_added():
    assert list(launch(reduce_as_they_come, 2)) == [[11.0, 11.0]] * 2  # 2 and 20 would be right


def compressed_step(group, compression):
    model = nn.Linear(50, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    wrapped = DistributedOptimizer(group, optimizer, compression=compression)
    torch.manual_seed(group.rank)
    before = sum(event.nbytes for event in group.events if event.kind == "all_reduce")
    model(torch.randn(8, 50)).square().mean().backward()
    wrapped.step()
    sent = sum(event.nbytes for event in group.events if event.kind == "all_reduce") - before
    return sent, model.weight.grad, model.weight.grad.dtype


def test_fp16_on_the_wire_halves_the_bytes_and_keeps_three_digits():
    full = launch(compressed_step, 2, None)
    for compression in ("fp16", torch.float16, "bf16"):
        half = launch(compressed_step, 2, compression)
        for rank in range(2):
            assert half[rank][0] * 2 == full[rank][0] == 2 * 4 * (50 * 20 + 20) // 2
            assert half[rank][2] == torch.float32
            tolerance = 2e-2 if compression == "bf16" else 2e-3
            scale = full[rank][1].abs().max()
            error = (half[rank][1] - full[rank][1]).abs().max() / scale
            assert 0 < error < tolerance


def large_gradients(group):
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = DistributedOptimizer(group, torch.optim.SGD([parameter], lr=1.0), "fp16")
    parameter.grad = torch.full((3,), 40_000.0)
    optimizer.step()
    return parameter.grad


def test_a_sum_that_fp16_cannot_hold_is_averaged_without_overflow():
    for gradient in launch(large_gradients, 2):
        assert gradient.tolist() == [40_000.0] * 3  # the sum, 80,000, is above 65,504


def resume(group):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (1 + group.rank))
    if group.rank == 0:  # only rank 0 has read the checkpoint
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    wrapped = DistributedOptimizer(group, optimizer)
    scheduler_sees = wrapped.param_groups[0]["lr"]
    state = wrapped.state_dict()["state"]
    with pytest.raises(ValueError, match="source is 9"):
        broadcast_optimizer_state(group, optimizer, source=9)
    return model.weight.detach(), state, scheduler_sees


def test_a_run_may_start_from_what_only_rank_0_has_read():
    run = launch(resume, 3)
    assert run[0][1][0]["step"] == 2
    for weight, state, learning_rate in run:
        assert learning_rate == 0.01
        torch.testing.assert_close(weight, run[0][0], rtol=0, atol=0)
        torch.testing.assert_close(state, run[0][1], rtol=0, atol=0)


def with_closure(group):
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = DistributedOptimizer(group, torch.optim.SGD([parameter], lr=1.0))

    def closure():
        optimizer.zero_grad()
        loss = (parameter * (group.rank + 1)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return parameter.item()


def test_a_closures_gradients_are_averaged_before_the_step():
    assert list(launch(with_closure, 2)) == [-1.5, -1.5]


def line_search(group, num_parts):
    """LBFGS on `num_parts` parts of the data, of which a rank has its share."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x, y = torch.randn(32, 4).double(), torch.randn(32, 1).double()
    share = slice(None) if num_parts == 1 else slice(group.rank, None, num_parts)
    plain = torch.optim.LBFGS(model.parameters(), max_iter=8, line_search_fn="strong_wolfe")
    optimizer = DistributedOptimizer(group, plain)
    num_calls = 0

    def closure():
        nonlocal num_calls
        num_calls += 1
        optimizer.zero_grad()
        loss = (model(x[share]) - y[share]).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    return num_calls, loss.item(), model[0].weight.detach()


def test_a_line_search_sees_the_mean_loss_and_decides_alike_on_all_ranks():
    alone = launch(line_search, 1, 1)[0]
    for num_calls, loss, weight in launch(line_search, 2, 2, timeout=20.0):
        assert num_calls == alone[0] > 8
        assert loss == pytest.approx(alone[1], rel=1e-12)
        torch.testing.assert_close(weight, alone[2], rtol=1e-6, atol=1e-8)


def schedule(group):
    model = nn.Linear(2, 1)
    wrapped = DistributedOptimizer(group, torch.optim.SGD(model.parameters(), lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(wrapped.optimizer, 1, gamma=0.5)
    model(torch.ones(1, 2) * (group.rank + 1)).sum().backward()
    before = model.weight.detach().clone()
    wrapped.step()
    scheduler.step()
    return before - model.weight.detach(), wrapped.param_groups[0]["lr"]


def test_a_scheduler_of_the_wrapped_optimizer_sets_the_rate_of_both():
    for step, learning_rate in launch(schedule, 2):
        torch.testing.assert_close(step, torch.full((1, 2), 1.5))
        assert learning_rate == 0.5


def change_afterwards(group):
    messages = []
    for change in ("add", "unfreeze"):
        model, other = nn.Linear(2, 1), nn.Linear(2, 1)
        model.bias.requires_grad_(False)
        optimizer = DistributedOptimizer(group, torch.optim.SGD(model.parameters(), lr=1.0))
        if change == "add":
            optimizer.add_param_group({"params": list(other.parameters())})
        else:
            model.bias.requires_grad_(True)
        (model(torch.ones(1, 2)) + other(torch.ones(1, 2))).sum().backward()
        with pytest.raises(RuntimeError) as caught:
            optimizer.step()
        messages.append(str(caught.value))
    return messages


def test_parameters_that_were_added_or_unfrozen_later_are_not_skipped_silently():
    added, unfrozen = launch(change_afterwards, 1)[0]
    assert "2 parameters were added or unfrozen after wrapping" in added
    assert "1 parameters were added or unfrozen after wrapping" in unfrozen


def complex_gradients(group):
    parameter = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    plain = torch.optim.SGD([parameter], lr=1.0)
    with pytest.raises(ValueError, match=r"1 parameters are complex, and torch\.float16"):
        DistributedOptimizer(group, plain, compression="fp16")
    parameter.grad = torch.full((2,), 2 + 4j) * group.rank
    DistributedOptimizer(group, plain).synchronize()
    return parameter.grad.tolist()


def test_complex_gradients_are_averaged_whole_and_never_compressed():
    assert list(launch(complex_gradients, 2)) == [[1 + 2j, 1 + 2j]] * 2


def test_tensors_are_fused_in_order_up_to_the_limit():
    tensors = [torch.zeros(n) for n in (2, 2, 2, 10, 1)] + [torch.zeros(1, dtype=torch.float64)]
    sizes = [[t.numel() for t in run] for run in fuse(tensors, 16)]
    assert sizes == [[2, 2], [2], [10], [1], [1]]


def refuse(group):
    optimizer = torch.optim.SGD(nn.Linear(2 + group.rank, 2).parameters(), lr=1.0)
    messages = []
    for arguments in ({"compression": "int8"}, {"fusion_bytes": 0}, {}):
        with pytest.raises(ValueError, match=" ") as caught:
            DistributedOptimizer(group, optimizer, **arguments)
        messages.append(str(caught.value))
    return messages


def test_bad_input_is_refused_with_the_numbers():
    for compression, fusion, shapes in launch(refuse, 2):
        assert "'int8'; it can be None, 'fp16', 'bf16'" in compression
        assert "fusion_bytes is 0" in fusion
        assert "2 tensors of 6 elements; rank 1: 2 tensors of 8" in shapes
