"""Corners of launching and talking, each once a wrong answer, a false report or a leak."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import cloudpickle
import numpy
import psutil
import pytest
import torch
import torch.distributed as dist

from pedagogy.ranks import HangError, RankError, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def ends_soon(pid: int) -> bool:
    """Whether the process is gone, or dead and not yet reaped, within two seconds."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_a_mean_in_fp16_does_not_overflow_on_the_way():
    def worker(group):
        x = torch.full((3,), 40_000.0, dtype=torch.float16)
        started = x.clone()
        group.all_reduce_async_(started, "mean").wait()
        return [y.tolist() for y in (group.all_reduce(x, "mean"), started)]

    assert list(launch(worker, 2)) == [[[40_000.0] * 3] * 2] * 2


def test_lazy_negatives_and_conjugates_are_sent_as_what_they_say():
    def worker(group):
        stored = torch.tensor([1.0, 2.0])
        negative = torch._neg_view(stored) if group.rank else -stored
        group.all_reduce_(negative)
        conjugate = torch.tensor([1 + 2j]).conj()
        gathered = group.all_gather(conjugate)[1]
        if group.rank == 0:
            group.send(conjugate, 1)
            return negative.tolist(), gathered.tolist(), None
        return negative.tolist(), gathered.tolist(), group.recv(0).tolist()

    first, second = launch(worker, 2)
    assert first == ([-2, -4], [1 - 2j], None)
    assert second == ([-2, -4], [1 - 2j], [1 - 2j])


def test_a_dtype_that_gloo_lacks_is_refused_by_name():
    with pytest.raises(RankError, match=r"cannot send torch\.int16"):
        launch(lambda group: group.all_reduce(torch.ones(2, dtype=torch.int16)), 2)


def test_a_long_loop_of_raw_calls_is_not_one_long_wait():
    def worker(group):
        x = torch.ones(1_000_000)
        end = time.monotonic() + 4
        while True:
            dist.all_reduce(x.fill_(1))
            go_on = torch.tensor(float(time.monotonic() < end))
            dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
            if not go_on:
                return True

    assert all(launch(worker, 2, timeout=1.5))


def test_a_death_is_noticed_while_a_child_of_the_rank_lives_and_the_child_ends_too():
    def worker(group, file):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        with open(file, "w") as out:
            out.write(str(child.pid))
        os.kill(os.getpid(), 9)

    file = f"/tmp/pedagogy-test-{os.getpid()}"
    try:
        begin = time.monotonic()
        with pytest.raises(RankError, match="SIGKILL"):
            launch(worker, 1, file)
        assert time.monotonic() - begin < 5
        assert ends_soon(int(open(file).read()))  # noqa: SIM115
    finally:
        os.unlink(file)


def test_a_program_that_a_rank_started_does_not_outlive_the_launch():
    def worker(group):
        return subprocess.Popen(["sleep", "60"]).pid

    assert ends_soon(launch(worker, 1)[0])


def test_a_started_message_arrives_though_nobody_keeps_its_handle():
    def worker(group):
        if group.rank == 1:
            group.isend_(torch.ones(10), 0)
            group.barrier()
            return None
        time.sleep(0.7)
        received = group.recv_(torch.zeros(10), 1).sum().item()
        group.barrier()
        return received

    assert launch(worker, 2, timeout=10)[0] == 10


def test_a_thread_that_may_still_send_is_no_dead_lock_and_no_early_leaver():
    def with_a_timer(group):
        other = 1 - group.rank
        if group.rank == 0:
            threading.Timer(2.0, lambda: group.send(torch.ones(1), 1)).start()
            return group.recv(other).item()
        received = group.recv(other)
        group.send(received, other)
        return received.item()

    def leaves_a_thread(group):
        if group.rank == 0:
            threading.Timer(2.0, lambda: group.send(torch.ones(1), 1)).start()
            return None
        return group.recv(0).item()

    assert list(launch(with_a_timer, 2)) == [1, 1]
    assert launch(leaves_a_thread, 2)[1] == 1


def test_a_result_that_cannot_be_read_back_is_a_rank_error():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(one)

    with pytest.raises(RankError, match="what rank 0 returned cannot be read back: TypeError"):
        launch(lambda group: Odd(1, 2), 1)


def test_a_frozen_exception_keeps_its_message():
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    def worker(group):
        raise Frozen(7)

    with pytest.raises(RankError, match="Frozen"):
        launch(worker, 1)


def test_a_signal_without_a_name_is_reported_by_its_number():
    with pytest.raises(RankError, match="killed by signal 40 "):
        launch(lambda group: os.kill(os.getpid(), 40), 1)


def test_output_keeps_its_carriage_returns():
    def worker(group):
        print("1 %\r2 %\r\ndone", end="")

    assert launch(worker, 1).output == ["1 %\r2 %\r\ndone"]


def test_numbers_of_numpy_count_and_an_endless_timeout_is_refused():
    assert list(launch(lambda group: group.rank, numpy.int64(2))) == [0, 1]
    with pytest.raises(ValueError, match="timeout is inf s"):
        launch(lambda group: None, 1, timeout=float("inf"))
    with pytest.raises(ValueError, match="timeout is None s"):
        launch(lambda group: None, 1, timeout=None)


def test_a_hang_is_still_a_hang_beside_other_threads_but_by_the_timeout():
    def worker(group):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        group.recv(1 - group.rank)

    with pytest.raises(HangError, match="more than 1 s"):
        launch(worker, 2, timeout=1)
