"""`pedagogy refresh`: a committed notebook is executed again and written in normal form.

Running it twice changes nothing. A notebook that raises an error or writes to stderr is refused,
and its file is left as it was.
"""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

from pedagogy.cli.chapters import CommandError, execute, needs_lab
from pedagogy.cli.normal_form import keep_measured, normalise


def refresh(path: Path, fresh: bool = False) -> bool:
    """The file holds the outputs of a new execution; whether that changed it.

    Outputs that hold measured times stay as committed, unless `fresh` or their text changed.
    Raises: CommandError if the file cannot be read, a cell fails, or something is on stderr.
    """
    if importlib.util.find_spec("nbclient") is None:
        raise needs_lab("nbclient")
    import nbformat

    try:
        text = path.read_text(encoding="utf-8")
        committed = nbformat.reads(text, as_version=4)
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read {path}: {error}") from None
    notebook = copy.deepcopy(committed)
    normalise(notebook)  # so that every cell has an id before it runs
    execute(notebook, path.parent)
    _refuse_stderr(notebook, path)
    normalise(notebook)
    if not fresh:
        keep_measured(notebook, committed)
    nbformat.validate(notebook)
    result = nbformat.writes(notebook) + "\n"
    if result == text:
        return False
    path.write_text(result, encoding="utf-8")
    return True


def _refuse_stderr(notebook, path: Path) -> None:
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                raise CommandError(
                    f"{path.name}, cell {number} writes to stderr, and a chapter writes nothing "
                    f"there:\n{cell.source}\n---\n{output.text}"
                )
