"""On a machine with a GPU: the chapters run there, and their "On a GPU" cells leave a record.

The record, `notebooks/gpu_record.json`, is dated and names device and versions. A chapter that
is not in it says "not yet run on a GPU"; no figure is ever written by hand.
"""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
RECORD = NOTEBOOKS / "gpu_record.json"
HEADING = "# on a gpu"


def gpu_cells(notebook) -> list:
    """The code cells under the heading "On a GPU"."""
    found, inside = [], False
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.lstrip().startswith("#"):
            inside = cell.source.lower().lstrip("#").strip().startswith(HEADING.lstrip("# "))
        elif cell.cell_type == "code" and inside:
            found.append(cell)
    return found


def printed(cells: list) -> str:
    """What the cells print, one after the other."""
    outputs = [output for cell in cells for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_chapter_says_what_it_would_show_without_a_gpu(path):
    cells = gpu_cells(nbformat.read(path, as_version=4))
    source = "".join(cell.source for cell in cells)
    assert "launch(" in source or "torch.cuda.is_available()" in source  # ranks, or one device
    assert printed(cells).strip()


@pytest.mark.gpu
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_chapter_runs_on_this_gpu_and_is_recorded(path, tmp_path):
    import torch

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    text = printed(gpu_cells(notebook))
    assert "equal: True" in text
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record[path.stem] = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "printed": text.splitlines(),
    }
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
