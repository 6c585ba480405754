"""`launch`: results, errors, hangs and interrupts, each provoked for real."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import textwrap
import threading
import time

import cloudpickle
import numpy
import psutil
import pytest
import torch

from pedagogy.ranks import HangError, RankError, grid, launch, starting
from pedagogy.ranks.machine import cores_available

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rank_processes() -> list[psutil.Process]:
    """Every process below this one, the forkserver and its ranks, except the forkserver itself."""
    server = starting._server.process.pid if starting._server else None
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid != server and process.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """After every test: no rank lives, and no folder of a launch is left."""
    yield
    deadline = time.monotonic() + 5
    while (left := rank_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_results_come_back_by_rank_with_the_arguments_passed_on():
    def worker(group, base, factor):
        return base + group.rank * factor

    run = launch(worker, 3, 10, factor=2)
    assert list(run) == [10, 12, 14]
    assert (len(run), run.device, run.backend) == (3, "cpu", "gloo")


def test_one_rank_is_a_launch_like_any_other():
    assert list(launch(lambda group: group.all_reduce(torch.ones(2)).tolist(), 1)) == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"world_size": 0}, "world_size is 0"),
        ({"world_size": 2.0}, r"world_size is 2\.0"),
        ({"world_size": True}, "world_size is True"),
        ({"world_size": 2, "timeout": 0}, "timeout is 0"),
        ({"world_size": 2, "device": "tpu"}, "'auto', 'cpu' or 'cuda'"),
        ({"world_size": 100_000}, "100000 ranks need about"),
        ({"worker": 3, "world_size": 2}, "worker is 3"),
    ],
)
def test_bad_arguments_are_refused_by_name_before_a_process_starts(arguments, named):
    arguments = {"worker": lambda group: None} | arguments
    with pytest.raises(ValueError, match=named):
        launch(**arguments)


def test_a_worker_that_cannot_travel_is_refused_by_name():
    lock = threading.Lock()

    def holds_a_lock(group):
        return lock

    with pytest.raises(ValueError, match=r"'holds_a_lock'.*cannot travel"):
        launch(holds_a_lock, 2)


def test_L01_ranks_are_not_forked_from_the_calling_process():
    """A thread and a marker of this process must not be in the ranks (nor would a CUDA context)."""
    os.environ.pop("MARK", None)
    torch.marker_of_the_caller = True

    def worker(group):
        return hasattr(torch, "marker_of_the_caller"), threading.active_count(), os.getppid()

    for _ in range(2):
        for marked, threads, parent in launch(worker, 2):
            assert not marked
            assert threads == 2  # the worker's and the one that talks to the launcher
            assert parent != os.getpid()
    del torch.marker_of_the_caller


def test_L02_functions_lambdas_and_closures_of_main_travel_by_value(tmp_path):
    script = tmp_path / "no_guard.py"
    script.write_text(
        textwrap.dedent("""
        from pedagogy.ranks import launch
        print("main runs")
        factor = 2
        def worker(group):
            return group.rank * factor
        def make(shift):
            return lambda group: group.rank + shift
        print(list(launch(worker, 2)), list(launch(lambda g: -g.rank, 2)), list(launch(make(5), 2)))
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "main runs\n[0, 2] [0, -1] [5, 6]\n", done.stderr


def test_L03_a_worker_whose_module_cannot_be_imported_is_reported(tmp_path, monkeypatch):
    module = tmp_path / "fails_in_ranks.py"
    module.write_text("def worker(group):\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import fails_in_ranks

    module.write_text("raise ImportError('not in a rank')\n")
    begin = time.monotonic()
    with pytest.raises(RankError, match="ImportError: not in a rank"):
        launch(fails_in_ranks.worker, 2)
    assert time.monotonic() - begin < 5


def test_L04_no_port_is_fixed_and_the_environment_stays_as_it_was():
    before = dict(os.environ)
    taken = socket.socket()
    try:
        taken.bind(("127.0.0.1", 29500))
        taken.listen()
    except OSError:
        pass  # somebody else holds it: as good
    with taken:
        for _ in range(5):
            assert list(launch(lambda group: group.all_reduce(torch.ones(1)).item(), 2)) == [2, 2]
    assert dict(os.environ) == before


def test_L04_two_programs_launch_at_once(tmp_path):
    code = (
        "from pedagogy.ranks import launch; import torch\n"
        "for _ in range(3): print(launch(lambda g: g.all_reduce(torch.ones(1)).item(), 2)[1])"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    programs = [
        subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [p.communicate(timeout=60)[0] for p in programs] == ["2.0\n2.0\n2.0\n"] * 2


@pytest.mark.parametrize(("size", "culprit"), [(2, 1), (4, 1), (4, 0)])
def test_L05_the_rank_that_raised_is_reported_and_not_its_consequences(size, culprit):
    def worker(group):
        if group.rank == culprit:
            raise ValueError("boom")
        group.all_reduce(torch.ones(4))

    begin = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(worker, size)
    assert time.monotonic() - begin < 2
    assert str(caught.value).startswith(f"rank {culprit} raised ValueError: boom\n")
    assert 'raise ValueError("boom")' in str(caught.value)  # the worker's own line
    assert "process.py" not in str(caught.value)  # and none of ours
    assert (caught.value.rank, caught.value.kind) == (culprit, "ValueError")


def test_L06_a_huge_error_arrives_shortened():
    def worker(group):
        raise RuntimeError("x" * 2_000_000)

    with pytest.raises(RankError, match="characters left out") as caught:
        launch(worker, 2)
    assert 1000 < len(str(caught.value)) < 20_000


def test_L06_a_deep_recursion_arrives():
    def worker(group):
        return worker(group)

    with pytest.raises(RankError, match="RecursionError"):
        launch(worker, 2)


def test_an_exception_whose_text_raises_is_reported_all_the_same():
    class Nasty(Exception):
        def __str__(self):
            raise TypeError("no text")

    def worker(group):
        raise Nasty

    with pytest.raises(RankError, match="Nasty"):
        launch(worker, 2)


def test_L09_threads_are_shared_out_and_the_readers_own_number_wins(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    mine = torch.get_num_threads()
    share = max(1, cores_available() // 4)
    assert list(launch(lambda group: torch.get_num_threads(), 4)) == [share] * 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert list(launch(lambda group: torch.get_num_threads(), 2)) == [3, 3]
    assert torch.get_num_threads() == mine


def test_L11_an_interface_that_does_not_exist_does_not_matter_on_one_machine(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "does-not-exist")
    run = launch(lambda group: group.all_reduce(torch.ones(1)).item(), 2)
    assert list(run) == [2, 2]
    assert run.output == ["", ""]


def test_L12_no_tcp_store_is_needed(monkeypatch):
    """Wheels for Windows lack libuv, which a TCPStore uses by default; a FileStore needs none."""

    def worker(group):
        return group.all_reduce(torch.ones(1)).item()

    import torch.distributed as dist

    def refuse(*_, **__):
        raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")

    monkeypatch.setattr(dist, "TCPStore", refuse)
    assert launch(worker, 2)[0] == 2
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RuntimeError, match="WSL 2"):
        launch(worker, 2)


def test_L13_output_is_one_block_in_rank_order(capsys):
    def worker(group):
        time.sleep(0.02 * (3 - group.rank))
        print(f"hello from {group.rank}")
        os.write(2, f"native text of {group.rank}\n".encode())  # not through Python

    expected = [f"hello from {r}\nnative text of {r}\n" for r in range(3)]
    for _ in range(5):
        assert launch(worker, 3).output == expected
        out, err = capsys.readouterr()
        assert (out, err) == ("".join(expected), "")


def test_output_is_shown_when_a_rank_fails(capsys):
    def worker(group):
        print("last words of", group.rank)
        raise ValueError

    with pytest.raises(RankError):
        launch(worker, 2)
    assert capsys.readouterr().out == "last words of 0\nlast words of 1\n"


def test_L14_a_finished_run_leaves_nothing_on_stderr(capfd):
    run = launch(lambda group: group.barrier(), 2)
    assert run.output == ["", ""]
    assert capfd.readouterr() == ("", "")


def test_L17_a_rank_that_returns_early_is_named_within_seconds():
    def worker(group):
        if group.rank != 1:
            group.all_reduce(torch.ones(1))

    begin = time.monotonic()
    with pytest.raises(HangError, match=r"rank 1 finished normally while rank [02] was still"):
        launch(worker, 3)
    assert time.monotonic() - begin < 5


def test_a_rank_may_return_early_when_nobody_needs_it_any_more():
    def worker(group):
        if group.rank == 0:
            group.send(torch.ones(3), 1)
            return 0.0
        time.sleep(1.2)  # rank 0 has long returned when this one begins to receive
        total = group.recv(0).sum()
        time.sleep(0.8)  # two rounds of questions pass
        return total.item()

    assert list(launch(worker, 2)) == [0.0, 3.0]


def test_a_dead_lock_is_explained_long_before_the_timeout():
    def worker(group):
        other = (group.rank + 1) % 3
        received = group.recv((group.rank + 2) % 3)
        group.send(received, other)

    begin = time.monotonic()
    with pytest.raises(HangError) as caught:
        launch(worker, 3, timeout=60)
    assert time.monotonic() - begin < 10
    text = str(caught.value)
    assert "0 -> 2 -> 1 -> 0" in text
    assert [row[:3] for row in caught.value.table] == [
        ("0", "recv", "2"),
        ("1", "recv", "0"),
        ("2", "recv", "1"),
    ]
    assert text.count("received = group.recv((group.rank + 2) % 3)") == 3


def test_a_wait_longer_than_the_timeout_is_reported_with_who_does_what():
    def worker(group):
        if group.rank == 1:
            time.sleep(60)
        group.barrier()

    begin = time.monotonic()
    with pytest.raises(HangError) as caught:
        launch(worker, 2, timeout=1)
    assert time.monotonic() - begin < 5
    assert "rank 0 has waited in barrier for more than 1 s (timeout)" in str(caught.value)
    assert caught.value.table[0][:3] == ("0", "barrier", "1")
    assert caught.value.table[1][1] == "computes"
    assert "time.sleep(60)" in caught.value.table[1][4]


def test_timeout_limits_one_wait_and_not_the_run():
    def worker(group):
        for _ in range(4):
            time.sleep(0.5)
            group.barrier()
        return True

    assert all(launch(worker, 2, timeout=1.5))


def test_a_straggler_is_not_taken_for_a_dead_lock():
    def worker(group):
        if group.rank == 0:
            time.sleep(3)
            group.send(torch.ones(1), 1)
        else:
            group.recv(0)
        return True

    assert all(launch(worker, 2))


def test_a_rank_killed_by_a_signal_is_named_with_the_likely_cause():
    def worker(group):
        if group.rank == 2:
            os.kill(os.getpid(), 9)
        group.all_reduce(torch.ones(1))

    with pytest.raises(RankError, match=r"rank 2 was killed by signal 9 \(SIGKILL\).*memory"):
        launch(worker, 4)


def test_a_rank_that_leaves_through_the_back_door_is_named():
    def worker(group):
        if group.rank == 1:
            os._exit(3)
        group.barrier()

    with pytest.raises(RankError, match=r"rank 1 ended by itself .*exit code 3"):
        launch(worker, 2)


def test_sys_exit_in_a_worker_is_an_error_with_its_rank():
    def worker(group):
        sys.exit(4)

    with pytest.raises(RankError, match="raised SystemExit: 4"):
        launch(worker, 2)


def test_a_huge_result_arrives_and_a_view_leaves_its_storage_behind():
    def worker(group):
        big = torch.arange(30_000_000, dtype=torch.float32)  # 120 MB
        return big if group.rank == 0 else big[10:13]

    full, view = launch(worker, 2)
    assert full[-1] == torch.tensor(29_999_999, dtype=torch.float32)
    assert view.tolist() == [10, 11, 12]
    assert view.untyped_storage().nbytes() == 12


def test_modules_and_parameters_come_back_as_themselves():
    def worker(group):
        layer = torch.nn.Linear(2, 3)
        layer(torch.ones(2)).sum().backward()
        return layer, layer.weight.grad, torch.ones(2, requires_grad=True) * 2

    layer, gradient, product = launch(worker, 1)[0]
    assert isinstance(layer.weight, torch.nn.Parameter)
    assert layer.weight.requires_grad
    assert torch.equal(gradient, torch.ones(3, 2))
    assert not product.requires_grad  # its graph stayed in the rank


def test_ranks_are_seeded_differently_and_the_same_each_time():
    def worker(group):
        return torch.rand(1).item(), numpy.random.rand(), random.random()

    first, second = list(launch(worker, 3)), list(launch(worker, 3))
    assert first == second
    assert all(len(set(column)) == 3 for column in zip(*first, strict=True))


def test_environment_search_path_and_directory_travel_with_each_launch(tmp_path, monkeypatch):
    def worker(group):
        import a_module_of_mine

        return os.environ.get("MARK"), a_module_of_mine.value, os.getcwd()

    launch(lambda group: None, 1)  # the server runs already
    module = tmp_path / "a_module_of_mine.py"
    module.write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARK", "one")
    assert launch(worker, 1)[0] == ("one", 1, str(tmp_path))
    module.write_text("value = 22\n")
    monkeypatch.delenv("MARK")
    assert launch(worker, 1)[0] == (None, 22, str(tmp_path))


def test_the_server_never_imports_the_package():
    launch(lambda group: None, 1)
    maps = open(f"/proc/{starting._server.process.pid}/cmdline").read()  # noqa: SIM115
    assert "server.py" in maps

    def worker(group):
        import inspect

        import pedagogy.ranks.server as module  # in the rank, for its list alone

        return module.PRELOAD + module.LATER, inspect.getsource(module)

    names, source = launch(worker, 1)[0]
    assert not [name for name in names if name.startswith("pedagogy")]
    top = source.split("def become_rank")[0]
    assert "import pedagogy" not in top
    assert "from pedagogy" not in top


def test_a_killed_server_is_started_again():
    launch(lambda group: None, 2)
    old = starting._server.process
    old.kill()
    old.wait()
    assert list(launch(lambda group: group.rank, 2)) == [0, 1]
    assert starting._server.process.pid != old.pid


def test_ranks_can_be_fresh_interpreters(monkeypatch):
    """The way of macOS, on this machine too."""
    monkeypatch.setenv("PEDAGOGY_START", "spawn")

    def worker(group):
        print("spawned", group.rank)
        return group.all_reduce(torch.ones(2)).tolist()

    run = launch(worker, 2)
    assert list(run) == [[2, 2], [2, 2]]
    assert run.output == ["spawned 0\n", "spawned 1\n"]

    def fails(group):
        raise ValueError("boom")

    with pytest.raises(RankError, match="ValueError: boom"):
        launch(fails, 2)


def test_launches_from_two_threads_follow_each_other():
    results = []

    def body():
        results.append(list(launch(lambda group: group.all_reduce(torch.ones(1)).item(), 2)))

    threads = [threading.Thread(target=body) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [[2, 2]] * 3


def test_many_launches_leak_neither_file_nor_process():
    def count():
        return len(os.listdir("/proc/self/fd"))

    worker = lambda group: group.all_reduce(torch.ones(1)).item()  # noqa: E731
    launch(worker, 2)
    before = count()
    for _ in range(25):
        assert launch(worker, 2)[0] == 2
    assert count() <= before
    assert not rank_processes()


def test_the_timeout_holds_for_calls_of_torch_distributed_itself():
    def worker(group):
        import torch.distributed as dist

        if group.rank == 0:
            dist.barrier()  # without a Group: nothing is counted
        else:
            time.sleep(60)

    begin = time.monotonic()
    with pytest.raises(HangError, match=r"for more than 1 s \(timeout\)") as caught:
        launch(worker, 2, timeout=1)
    assert time.monotonic() - begin < 6
    assert caught.value.table[0][1].startswith("torch.distributed ")
    assert "dist.barrier()" in caught.value.table[0][4]


def test_two_groups_of_the_same_ranks_and_name_are_not_taken_for_one():
    def worker(group):
        channels = [grid(group, dp=2)["dp"] for _ in range(2)]
        channels[group.rank].all_reduce(torch.ones(3))

    begin = time.monotonic()
    with pytest.raises(HangError, match="a dead-lock"):
        launch(worker, 2, timeout=60)
    assert time.monotonic() - begin < 10
