"""The scripts that chapter 00b prints for torchrun run under it, as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from pedagogy.cli.chapters import find_chapter

TORCHRUN = Path(sys.executable).with_name("torchrun")
SUM = "[60.0, 64.0, 68.0, 72.0]\n"  # of [0, 1, 2, 3] + 10 * rank over 4 ranks


def scripts() -> list[str]:
    """The Python blocks of the cell about torchrun."""
    notebook = nbformat.read(find_chapter("00b"), as_version=4)
    (cell,) = [cell for cell in notebook.cells if cell.id == "torchrun"]
    return re.findall(r"```python\n(.*?)```", cell.source, re.DOTALL)


def test_the_chapter_prints_two_scripts():
    assert len(scripts()) == 2


@pytest.mark.parametrize("number", [0, 1], ids=["torch_alone", "pedagogy"])
def test_a_printed_script_runs_under_torchrun(number, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(scripts()[number])
    command = [TORCHRUN, "--standalone", "--nproc-per-node=4", path]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout == SUM
