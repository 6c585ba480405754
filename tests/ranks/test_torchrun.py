"""The same script with and without torchrun, with one agent and with two, on loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = textwrap.dedent("""
    import torch
    from pedagogy.ranks import launch

    def worker(group):
        print("rank", group.rank, "of", group.size)
        return group.all_reduce(torch.tensor([float(group.rank)])).item()

    run = launch(worker, 4)
    assert list(run) == [6.0] * 4, run
    assert len(run.trace.of("all_reduce")) == 4
    run = launch(worker, 4)  # a second launch joins the group that exists
    assert run.output == [f"rank {r} of 4\\n" for r in range(4)]
""")
EXPECTED = "".join(f"rank {rank} of 4\n" for rank in range(4)) * 2
TORCHRUN = Path(sys.executable).with_name("torchrun")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err[-3000:]
    return out


def start(*command) -> subprocess.Popen:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_python_and_torchrun_run_the_same_script(script):
    assert shutil.which(TORCHRUN)
    assert finish(start(sys.executable, script)) == EXPECTED
    assert finish(start(TORCHRUN, "--standalone", "--nproc-per-node=4", script)) == EXPECTED


def test_two_agents_are_two_machines(script):
    arguments = [
        "--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1",
        f"--master-port={free_port()}",
    ]  # fmt: skip
    agents = [start(TORCHRUN, *arguments, f"--node-rank={node}", script) for node in range(2)]
    assert [finish(agent) for agent in agents] == [EXPECTED, ""]  # rank 0 prints


def test_another_number_of_processes_is_refused_by_the_numbers(script):
    process = start(TORCHRUN, "--standalone", "--nproc-per-node=2", script)
    _, err = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "torchrun started 2 processes, but launch asks for 4" in err


def test_a_failing_rank_is_named(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "from pedagogy.ranks import launch\n"
        "def worker(group):\n"
        "    if group.rank == 1: raise ValueError('boom')\n"
        "    group.barrier()\n"
        "launch(worker, 2, timeout=10)\n"
    )
    process = start(TORCHRUN, "--standalone", "--nproc-per-node=2", script)
    _, err = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "rank 1 raised ValueError: boom" in err
