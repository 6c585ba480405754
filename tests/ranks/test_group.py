"""`Group`: every operation against its definition, and the cases that gloo gets silently wrong."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from pedagogy.ranks import RankError, grid, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZES = [1, 2, 3, 4]


def mine(rank: int, *shape: int) -> torch.Tensor:
    """A tensor that differs from rank to rank and from place to place."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) + 100 * rank


@pytest.mark.parametrize("size", SIZES)
def test_every_collective_gives_what_its_definition_says(size):
    def worker(group):
        x = mine(group.rank, 3, 2)
        parts = [mine(group.rank, 2) + 10 * i for i in range(group.size)]
        return {
            "sum": group.all_reduce(x),
            "mean": group.all_reduce(x, "mean"),
            "max": group.all_reduce(x, "max"),
            "min": group.all_reduce(x, "min"),
            "gathered": group.all_gather(x),
            "scattered": group.reduce_scatter(parts),
            "exchanged": group.all_to_all(parts),
            "broadcast": group.broadcast(x, source=group.size - 1),
            "untouched": x,
        }

    whole = torch.stack([mine(rank, 3, 2) for rank in range(size)])
    for rank, got in enumerate(launch(worker, size)):
        assert torch.equal(got["sum"], whole.sum(0))
        assert torch.equal(got["mean"], whole.mean(0))
        assert torch.equal(got["max"], whole.max(0).values)
        assert torch.equal(got["min"], whole.min(0).values)
        assert torch.equal(torch.stack(got["gathered"]), whole)
        total = sum(mine(other, 2) + 10 * rank for other in range(size))
        assert torch.equal(got["scattered"], total)
        for other, part in enumerate(got["exchanged"]):
            assert torch.equal(part, mine(other, 2) + 10 * rank)
        assert torch.equal(got["broadcast"], whole[-1])
        assert torch.equal(got["untouched"], whole[rank])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_dtypes_come_through(dtype):
    def worker(group):
        x = torch.full((5,), group.rank + 1).to(dtype)
        parts = [x[:2] + i for i in range(2)]
        return group.all_reduce(x), group.reduce_scatter(parts), group.all_gather(x)[1]

    for rank, (total, scattered, gathered) in enumerate(launch(worker, 2)):
        assert total.dtype == scattered.dtype == gathered.dtype == dtype
        assert total.tolist() == [3] * 5
        assert scattered.tolist() == [3 + 2 * rank] * 2
        assert gathered.tolist() == [2] * 5


def test_C13_groups_are_created_by_all_ranks_in_the_same_order():
    def worker(group):
        axes = grid(group, pp=2, dp=2)  # dp varies fastest: the columns are {0, 2} and {1, 3}
        x = torch.tensor([group.rank + 1.0])
        return axes["pp"].ranks, axes["pp"].all_reduce(x).item(), axes["dp"].all_reduce(x).item()

    assert list(launch(worker, 4)) == [
        ((0, 2), 4.0, 3.0),
        ((1, 3), 6.0, 3.0),
        ((0, 2), 4.0, 7.0),
        ((1, 3), 6.0, 7.0),
    ]


def test_a_grid_of_three_axes_has_the_last_one_fastest():
    def worker(group):
        axes = grid(group, dp=2, pp=1, tp=2)
        return {name: (axis.ranks, axis.rank) for name, axis in axes.items()}

    got = launch(worker, 4)
    assert got[0] == {"dp": ((0, 2), 0), "pp": ((0,), 0), "tp": ((0, 1), 0)}
    assert got[3] == {"dp": ((1, 3), 1), "pp": ((3,), 0), "tp": ((2, 3), 1)}


@pytest.mark.parametrize(("axes", "named"), [({"dp": 3}, "dp=3 = 3 ranks.*has 2"), ({}, "axis")])
def test_a_grid_that_does_not_fit_is_refused_by_its_numbers(axes, named):
    with pytest.raises(RankError, match=named):
        launch(lambda group: grid(group, **axes), 2)


def test_C19_strided_tensors_are_reduced_and_broadcast():
    def worker(group):
        value = group.rank + 1.0

        def column():
            return torch.tensor([[value, 0.0], [value, value]])[:, 0]

        in_place, asynchronous, sent = column(), column(), column()
        group.all_reduce_(in_place)
        group.all_reduce_async_(asynchronous).wait()
        group.broadcast_(sent)
        new = [group.all_reduce(column()), group.broadcast(column())]
        return [x.tolist() for x in (in_place, asynchronous, sent, *new)]

    expected = [[3, 3], [3, 3], [1, 1], [3, 3], [1, 1]]
    assert list(launch(worker, 2)) == [expected, expected]


def test_C19_raw_gloo_is_silently_wrong():
    """The trap itself: where this fails one day, torch refuses or does it right, and so it may."""

    def worker(group):
        value = group.rank + 1.0
        x = torch.tensor([[value, 0.0], [value, value]])[:, 0]
        dist.all_reduce(x)
        return x.tolist()

    assert list(launch(worker, 2)) != [[3, 3], [3, 3]]


def test_C19_a_strided_tensor_is_scattered():
    def worker(group):
        parts = list(torch.linspace(0, 5, 6)[::2].split(1))  # [0], [2], [4]
        return group.reduce_scatter(parts).item()

    assert list(launch(worker, 3)) == [0, 6, 12]


def test_C20_the_reduced_copy_is_returned_and_written_back():
    def worker(group):
        transposed = torch.ones(2, 3).t() * (group.rank + 1)
        expanded = torch.ones(1).expand(4) * (group.rank + 1)
        in_place = transposed.clone().t().t()
        group.all_reduce_(in_place)
        return group.all_reduce(transposed), group.all_reduce(expanded), in_place

    for tensors in launch(worker, 2):
        for tensor in tensors:
            assert torch.equal(tensor, torch.full_like(tensor, 3.0))


def test_C21_a_transposed_tensor_arrives_as_it_was_sent():
    def worker(group):
        if group.rank == 0:
            matrix = torch.arange(4).reshape(2, 2).t()
            group.send(matrix, 1)
            group.send_(matrix, 1)
            group.exchange(sends=[(matrix, 1)])
            return None
        buffers = [torch.zeros(2, 2, dtype=torch.int64) for _ in range(2)]
        received = group.recv(0)
        group.recv_(buffers[0], 0)
        group.exchange(receives=[(buffers[1], 0)])
        return [x.tolist() for x in (received, *buffers)]

    assert launch(worker, 2)[1] == [[[0, 2], [1, 3]]] * 3


def test_C21_a_strided_buffer_is_filled_in_its_places():
    def worker(group):
        if group.rank == 0:
            group.send_(torch.tensor([1.0, 2.0]), 1)
            return None
        matrix = torch.zeros(2, 2)
        group.recv_(matrix[:, 1], 0)
        return matrix.tolist()

    assert launch(worker, 2)[1] == [[0, 1], [0, 2]]


def test_C22_all_to_all_with_unequal_and_zero_counts():
    def worker(group):
        rows = (
            [torch.tensor([0, 1, 2]), torch.tensor([], dtype=torch.int64)]
            if group.rank == 0
            else [torch.tensor([100, 101]), torch.tensor([102])]
        )
        received = group.all_to_all(rows)
        back = group.all_to_all(received)  # the backward is the exchange reversed
        return [r.tolist() for r in received], [
            torch.equal(a, b) for a, b in zip(rows, back, strict=True)
        ]

    first, second = launch(worker, 2)
    assert first == ([[0, 1, 2], [100, 101]], [True, True])
    assert second == ([[], [102]], [True, True])


def test_C22_rows_of_a_matrix_keep_their_width():
    def worker(group):
        parts = [torch.full((group.rank + to, 3), float(group.rank)) for to in range(3)]
        return [tuple(part.shape) for part in group.all_to_all(parts)]

    assert list(launch(worker, 3)) == [[(s + r, 3) for s in range(3)] for r in range(3)]


def test_C23_ranks_that_disagree_are_told_by_shape_and_dtype():
    def shapes(group):
        group.all_reduce(torch.ones(2 + group.rank))

    def dtypes(group):
        group.all_gather(torch.ones(2, dtype=[torch.float32, torch.int32][group.rank]))

    def kinds(group):
        group.all_reduce(torch.ones(2)) if group.rank else group.broadcast(torch.ones(2))

    with pytest.raises(RankError, match=r"rank 0: all_reduce sum of \(2,\).*\n.*rank 1:.*\(3,\)"):
        launch(shapes, 2)
    with pytest.raises(RankError, match=r"float32\n.*int32"):
        launch(dtypes, 2)
    with pytest.raises(RankError, match=r"rank 0: broadcast from 0.*\n.*rank 1: all_reduce"):
        launch(kinds, 2)


def test_C23_a_message_brings_its_own_shape_and_dtype():
    def worker(group):
        if group.rank == 0:
            for x in (torch.ones(2), torch.ones(3, 0), torch.tensor(5), torch.ones(1).bool()):
                group.send(x, 1)
            return None
        return [(tuple(x.shape), str(x.dtype)) for x in (group.recv(0) for _ in range(4))]

    assert launch(worker, 2)[1] == [
        ((2,), "torch.float32"),
        ((3, 0), "torch.float32"),
        ((), "torch.int64"),
        ((1,), "torch.bool"),
    ]


def test_C23_a_message_without_a_header_is_not_taken_for_one():
    def worker(group):
        if group.rank == 0:
            group.send_(torch.ones(16, dtype=torch.int64), 1)
            group.barrier()
        else:
            group.recv(0)

    with pytest.raises(RankError, match="what rank 0 sent has no header"):
        launch(worker, 2)


def test_messages_from_anyone_tell_who_sent_them():
    def worker(group):
        if group.rank > 0:
            group.send(torch.full((group.rank,), float(group.rank)), 0)
            return None
        return sorted((source, x.tolist()) for source, x in (group.recv_any() for _ in range(3)))

    assert launch(worker, 4)[0] == [(1, [1]), (2, [2, 2]), (3, [3, 3, 3])]


def test_peers_are_ranks_of_the_group():
    def worker(group):
        column = grid(group, pp=2, tp=2)["pp"]
        if column.rank == 0:
            column.send(torch.tensor(group.rank), 1)
            return None
        return column.recv(0).item(), column.events[-1].peers

    got = launch(worker, 4)
    assert (got[2], got[3]) == ((0, (0,)), (1, (1,)))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda g: g.all_reduce(torch.ones(1), "median"), "sum, mean, max, min"),
        (lambda g: g.all_reduce(torch.ones(1).int(), "mean"), "not an integer"),
        (lambda g: g.reduce_scatter([torch.ones(1)]), "each of 2 ranks, got 1"),
        (lambda g: g.all_to_all([torch.ones(1)] * 3), "each of 2 ranks, got 3"),
        (lambda g: g.all_to_all([torch.ones(1), torch.ones(1).int()]), "one dtype"),
        (lambda g: g.broadcast(torch.ones(1), source=2), "source is 2.*0 to 1"),
        (lambda g: g.send(torch.ones(1), g.rank), "sends to itself"),
        (lambda g: g.recv(-1), "source is -1"),
        (lambda g: g.recv_(torch.ones(1), g.rank), "receives from itself"),
        (lambda g: g.send(torch.ones([1] * 14), 1 - g.rank), "14 dimensions; at most 13"),
    ],
)
def test_bad_input_is_refused_by_its_numbers(call, named):
    with pytest.raises(RankError, match=named):
        launch(call, 2)


def test_many_asynchronous_reductions_are_under_way_at_once():
    def worker(group):
        tensors = [torch.full((1000,), float(i + group.rank)) for i in range(8)]
        handles = [group.all_reduce_async_(x, "mean") for x in tensors]
        for handle in reversed(handles):
            handle.wait()
            handle.wait()
        return [x[0].item() for x in tensors]

    assert list(launch(worker, 2)) == [[i + 0.5 for i in range(8)]] * 2


def test_staged_groups_go_through_host_memory_and_give_the_same():
    """What happens on a shared GPU, on the CPU: the group is told that gloo cannot read it."""
    from pedagogy.ranks.group import Group
    from pedagogy.ranks.watch import Log

    def worker(group):
        staged = Group(
            group.process_group, range(group.size), Log(group.rank), group.device, staged=True
        )
        x = mine(group.rank, 3)
        parts = [mine(group.rank, 2) + i for i in range(group.size)]
        in_place, started = x.clone(), x.clone()
        staged.all_reduce_(in_place)
        staged.all_reduce_async_(started).wait()
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        buffer = torch.zeros(3, dtype=torch.float64)
        staged.exchange(sends=[(x, right)], receives=[(buffer, left)])
        results = [
            staged.all_reduce(x), in_place, started, buffer, *staged.all_gather(x),
            staged.reduce_scatter(parts), *staged.all_to_all(parts), staged.broadcast(x, 1),
        ]  # fmt: skip
        plain = [
            group.all_reduce(x), group.all_reduce(x), group.all_reduce(x), mine(left, 3),
            *group.all_gather(x), group.reduce_scatter(parts), *group.all_to_all(parts),
            group.broadcast(x, 1),
        ]  # fmt: skip
        equal = [torch.equal(a, b) for a, b in zip(results, plain, strict=True)]
        return equal, staged._wire.staged_bytes, group._wire.staged_bytes

    for equal, staged_bytes, plain_bytes in launch(worker, 3):
        assert all(equal)
        assert staged_bytes > 0
        assert plain_bytes == 0


def test_a_dropped_tensor_is_free_when_its_collective_returns():
    """gloo's thread holds on to a tensor a moment longer than it says; a memory meter would see."""

    def worker(group):
        late = 0
        for _ in range(200):
            x = torch.ones(64)
            alone = x._use_count()
            group.all_reduce_(x)
            late += x._use_count() > alone
            group.all_reduce_async_(x).wait()
            late += x._use_count() > alone
        return late

    assert list(launch(worker, 2)) == [0, 0]
