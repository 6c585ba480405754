"""`pedagogy refresh`: a committed notebook is executed again and written in normal form.

Running it twice changes nothing. A notebook that raises an error or writes to stderr is refused,
and its file is left as it was.
"""

from __future__ import annotations

import base64
import copy
import importlib.util
from pathlib import Path

from pedagogy.cli.chapters import CommandError, execute, needs_lab
from pedagogy.cli.normal_form import keep_measured, normalise

COVER = "cover"


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
        normalise(notebook)  # what was kept may have stood in a cell of another number
    nbformat.validate(notebook)
    write_cover(notebook, path.parent)
    result = nbformat.writes(notebook) + "\n"
    if result == text:
        return False
    path.write_text(result, encoding="utf-8")
    return True


def write_cover(notebook, folder: Path) -> None:
    """README's picture is the picture of the cell tagged `cover`, if the notebook has one."""
    for cell in notebook.cells:
        if COVER in cell.metadata.get("tags", []):
            (picture,) = [o.data["image/png"] for o in cell.outputs if "image/png" in o.data]
            file = folder / "images" / "house_figure.png"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(base64.b64decode(picture))


def _refuse_stderr(notebook, path: Path) -> None:
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                raise CommandError(
                    f"{path.name}, cell {number} writes to stderr, and a chapter writes nothing "
                    f"there:\n{cell.source}\n---\n{output.text}"
                )
