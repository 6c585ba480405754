"""Messages that are started and finished apart, lanes beside a group, and groups of some ranks."""

import sys
import time

import cloudpickle
import pytest
import torch

from pedagogy.ranks import HangError, RankError, grid, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool]


def message(sender: int, number: int) -> torch.Tensor:
    """Shape, dtype and layout differ from message to message; some are empty or have no axis."""
    generator = torch.Generator().manual_seed(100 * sender + number)
    shape = [(3, 5), (), (0, 4), (2, 1, 7), (20_000,)][number % 5]
    x = torch.randint(2, shape, generator=generator).to(DTYPES[(number + sender) % len(DTYPES)])
    return x.transpose(0, -1) if x.dim() > 1 else x  # not dense


def all_to_all_at_once(group, count):
    """Every rank starts all its sends before it receives anything."""
    others = [peer for peer in range(group.size) if peer != group.rank]
    arrivals = {peer: group.irecv(peer) for peer in others}  # before anything was sent
    handles = [group.isend(message(group.rank, n), peer) for n in range(count) for peer in others]
    right = True
    for number in range(count):
        for peer in others:
            x, expected = arrivals[peer].wait(), message(peer, number)
            right &= x.dtype == expected.dtype and torch.equal(x, expected)
            if number + 1 < count:
                arrivals[peer] = group.irecv(peer)
    for handle in handles:
        handle.wait()
        handle.wait()  # a second wait returns at once
    return right


@pytest.mark.parametrize("size", [2, 3])
def test_started_messages_arrive_whole_in_order_and_never_block(size):
    run = launch(all_to_all_at_once, size, 25)
    assert list(run) == [True] * size
    for rank in range(size):
        sent = run.trace.of("send", rank)
        expected = [message(rank, n).nbytes for n in range(25) for _ in range(size - 1)]
        assert [event.nbytes for event in sent] == expected
        assert len(run.trace.of("recv", rank)) == 25 * (size - 1)
        assert all(event.nbytes == 0 for event in run.trace.of("recv", rank))


def test_started_and_blocking_messages_understand_each_other():
    def worker(group):
        x = torch.arange(6.0).reshape(2, 3)
        if group.rank == 0:
            group.isend(x, 1).wait()
            group.send(x + 1, 1)
            return None
        return [group.recv(0), group.irecv(0).wait()]

    x = torch.arange(6.0).reshape(2, 3)
    for found, expected in zip(launch(worker, 2)[1], [x, x + 1], strict=True):
        assert torch.equal(found, expected)


def test_a_message_without_a_header_is_told_from_one_with():
    def worker(group):
        if group.rank == 0:
            group.send_(torch.zeros(16, dtype=torch.int64), 1)
        else:
            group.irecv(0).wait()

    with pytest.raises(RankError, match="what rank 0 sent has no header"):
        launch(worker, 2)


def test_waiting_for_a_started_message_that_nobody_sends_is_explained():
    def worker(group):
        if group.rank == 1:
            group.irecv(0).wait()

    with pytest.raises(HangError, match=r"rank 0 finished normally while rank 1 .*\(recv\)"):
        launch(worker, 2)


def test_a_rank_can_neither_send_to_itself_nor_to_a_rank_that_is_not_there():
    def worker(group):
        said = []
        for wrong in (
            lambda: group.isend(torch.zeros(1), 0),
            lambda: group.irecv(0),
            lambda: group.isend(torch.zeros(1), 1),
            lambda: group.irecv(-1),
        ):
            try:
                wrong()
            except ValueError as error:
                said.append(str(error))
        return said

    (said,) = launch(worker, 1)
    assert ["itself" in text for text in said] == [True, True, False, False]
    assert all("ranks of this group are 0 to 0" in text for text in said[2:])


# --- lanes ---------------------------------------------------------------------------------------


def test_messages_in_a_lane_do_not_queue_behind_those_of_the_group():
    def worker(group):
        lane = group.lane("express")
        assert group.lane("express") is lane
        assert group.lane("other") is not lane
        if group.rank == 0:
            handles = [group.isend(torch.full((50_000,), 1.0), 1), lane.isend(torch.ones(2), 1)]
            for handle in handles:
                handle.wait()
            return None
        return [len(lane.recv(0)), len(group.recv(0))]  # the other order

    assert launch(worker, 2)[1] == [2, 50_000]


# --- subsets -------------------------------------------------------------------------------------


def overlapping(group):
    """Groups that overlap, made by ranks that have made different numbers of groups before."""
    groups = []
    for number, ranks in enumerate([(0, 1), (0, 1), (2, 0), (1,), (0, 1, 2), (1, 2), (0, 1)]):
        if group.rank in ranks:
            groups.append(group.subset(ranks, f"number {number}"))
    x = torch.tensor(float(group.rank))
    return [(one.ranks, one.name, [int(y) for y in one.all_gather(x)], one._key) for one in groups]


def test_subsets_that_overlap_are_made_and_used_in_any_number():
    run = launch(overlapping, 3, timeout=20)
    expected = {
        0: [(0, 1), (0, 1), (0, 2), (0, 1, 2), (0, 1)],
        1: [(0, 1), (0, 1), (1,), (0, 1, 2), (1, 2), (0, 1)],
        2: [(0, 2), (0, 1, 2), (1, 2)],
    }
    by_name = {}
    for rank, found in enumerate(run):
        assert [ranks for ranks, _, _, _ in found] == expected[rank]
        for ranks, name, gathered, key in found:
            assert gathered == list(ranks)
            by_name.setdefault(name, set()).add(key)
    assert all(len(keys) == 1 for keys in by_name.values())  # what a hang is explained by


def test_subsets_of_a_grids_axes_are_made_apart():
    def worker(group):
        axes = grid(group, dp=2, pp=2)
        if group.rank < 2:
            axes["pp"].subset([0, 1], "more in the first pipeline")
        ends = axes["dp"].subset([1, 0], "replicas")
        return ends.ranks, int(ends.all_reduce(torch.tensor(10**group.rank)))

    expected = [((0, 2), 101), ((1, 3), 1010), ((0, 2), 101), ((1, 3), 1010)]
    assert list(launch(worker, 4, timeout=20)) == expected


def test_a_member_that_does_not_make_the_subset_is_named():
    def worker(group):
        if group.rank == 0:
            group.subset([0, 1], "pair")

    start = time.monotonic()
    with pytest.raises(HangError, match=r"rank 1 finished normally while rank 0 .*\(subset\)"):
        launch(worker, 2)
    assert time.monotonic() - start < 10
