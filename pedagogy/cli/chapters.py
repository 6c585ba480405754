"""Where the chapters lie, which one a person means, and how one is executed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pedagogy

if TYPE_CHECKING:
    from nbformat import NotebookNode

CELL_SECONDS = 120
KERNEL_SECONDS = 180


class CommandError(Exception):
    """Something that the person at the command line can mend; its text says what."""


def chapters_folder() -> Path:
    """The folder of the chapters: inside an installed package, or beside it in a checkout."""
    package = Path(pedagogy.__file__).resolve().parent
    for folder in (package / "_notebooks", package.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise CommandError(f"no chapters found in {package / '_notebooks'} or beside {package}")


def chapters() -> list[Path]:
    """The chapters' notebooks, in reading order."""
    return sorted(chapters_folder().glob("*.ipynb"))


def find_chapter(name: str) -> Path:
    """The one chapter whose file name starts with `name` ("00a", "01", or the whole name).

    Raises: CommandError that lists the chapters if none or several do.
    """
    stem = name.removesuffix(".ipynb")
    found = [path for path in chapters() if path.stem.startswith(stem)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(path.stem for path in found or chapters())
    problem = f"{len(found)} chapters start with" if found else "no chapter starts with"
    raise CommandError(f"{problem} {name!r}; choose one of: {known}")


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Every cell has run in a fresh python3 kernel with `folder` as its working directory.

    The kernel imports this very package. Raises: CommandError with the cell and the error.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        startup_timeout=KERNEL_SECONDS,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute(env=kernel_environment())
    except CellExecutionError as error:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without the terminal's colours
        raise CommandError(f"a cell raised an error:\n{text}") from None
    except CellTimeoutError as error:
        raise CommandError(f"a cell ran longer than {CELL_SECONDS} s:\n{error}") from None
    except DeadKernelError:
        raise CommandError("the kernel died, for example for lack of memory") from None


def kernel_environment() -> dict[str, str]:
    """The environment in which a kernel or a server finds this very package."""
    home = str(Path(pedagogy.__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH", "")
    parts = [home, *[part for part in known.split(os.pathsep) if part and part != home]]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts)}


def needs_lab(module: str) -> CommandError:
    """The error for a missing part of the extra `lab`."""
    return CommandError(
        f"{module} is not installed: {sys.executable} -m pip install 'pedagogy[lab]'"
    )
