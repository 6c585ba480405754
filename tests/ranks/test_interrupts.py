"""Interrupts, killed kernels: a program that launches ranks is treated as a notebook would be."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

PROGRAM = textwrap.dedent("""
    import sys, time, torch
    from pedagogy.ranks import launch

    def wait_for_ever(group):
        group.barrier()
        if group.rank == 0:
            time.sleep(1000)
        group.all_reduce(torch.ones(1))

    def add(group):
        return group.all_reduce(torch.ones(1)).item()

    launch(add, 2)
    print("start", flush=True)
    try:
        launch(wait_for_ever, 4)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    begin = time.monotonic()
    print("next launch", list(launch(add, 2)), flush=True)
    print("end", flush=True)
    sys.stdin.readline()
""")


@pytest.fixture
def program(tmp_path):
    """A program in a process group of its own, as a kernel is."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "start\n"
    yield process
    process.stdin.close()
    process.kill()
    process.wait()
    process.stdout.close()


def ranks_of(process: subprocess.Popen) -> list[psutil.Process]:
    """The living ranks: the children of the program's forkserver."""
    below = psutil.Process(process.pid).children()
    return [rank for server in below for rank in alive(server.children())]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_until_gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while (left := alive(processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def wait_for_ranks(process: subprocess.Popen, count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 20
    while len(ranks := ranks_of(process)) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(ranks) == count
    return ranks


@pytest.mark.parametrize("target", ["the kernel alone", "its whole process group"])
@pytest.mark.parametrize("moment", range(4))
def test_an_interrupt_at_any_moment_ends_the_ranks_and_the_next_launch_works(
    program, target, moment
):
    time.sleep(random.Random(f"{target}{moment}").uniform(0.0, 0.4))  # also while ranks start
    begin = time.monotonic()
    send = os.kill if target == "the kernel alone" else os.killpg
    send(program.pid, signal.SIGINT)
    assert program.stdout.readline() == "interrupted\n"
    assert time.monotonic() - begin < 5
    assert program.stdout.readline() == "next launch [2.0, 2.0]\n"
    assert program.stdout.readline() == "end\n"
    assert not ranks_of(program)


def test_two_interrupts_in_a_row_are_one(program):
    wait_for_ranks(program, 4)
    os.kill(program.pid, signal.SIGINT)
    time.sleep(0.05)
    os.kill(program.pid, signal.SIGINT)
    lines = [program.stdout.readline() for _ in range(2)]
    assert lines[0] == "interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_kernel_takes_its_ranks_and_its_server_along(program, number, tmp_path):
    ranks = wait_for_ranks(program, 4)
    servers = psutil.Process(program.pid).children()
    folders = {os.path.dirname(f.path) for rank in ranks for f in rank.open_files()}
    os.kill(program.pid, number)
    assert not wait_until_gone(ranks + servers, 5)
    assert not [folder for folder in folders if "pedagogy-" in folder and os.path.exists(folder)]


def test_a_killed_server_takes_its_ranks_along_at_the_latest_with_the_kernel(program):
    ranks = wait_for_ranks(program, 4)
    (server,) = psutil.Process(program.pid).children()
    server.kill()
    program.kill()
    assert not wait_until_gone(ranks, 5)


def test_after_the_server_was_killed_an_interrupt_still_ends_the_ranks(program):
    ranks = wait_for_ranks(program, 4)
    (server,) = psutil.Process(program.pid).children()
    server.kill()
    os.kill(program.pid, signal.SIGINT)
    assert program.stdout.readline() == "interrupted\n"
    assert not wait_until_gone(ranks, 5)
    assert program.stdout.readline() == "next launch [2.0, 2.0]\n"
