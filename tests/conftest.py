"""Tests marked `gpu` are left out where there is no GPU, and the report says so.

The tests' own process computes with one thread: its tensors are tiny, and a second thread costs
more than it does. Ranks and kernels set their own. Two such processes share the files of tests
(pytest-xdist).
"""

from __future__ import annotations

import pytest

_left_out = 0


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """For all tests of this process."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    """The file that takes longest comes first; tests for a GPU are left out without one."""
    global _left_out
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing or _has_gpu():
        return
    config.hook.pytest_deselected(items=needing)
    items[:] = [item for item in items if item not in needing]
    _left_out = len(needing)


def pytest_sessionfinish(session):
    """A worker process tells how many it left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = _left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Each worker collects all tests, and so leaves out the same ones."""
    global _left_out
    _left_out = max(_left_out, getattr(node, "workeroutput", {}).get("left_out", 0))


def pytest_terminal_summary(terminalreporter):
    """Say why tests were deselected."""
    if _left_out:
        terminalreporter.write_line(
            f"{_left_out} tests marked gpu: this machine has no CUDA device"
        )


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
