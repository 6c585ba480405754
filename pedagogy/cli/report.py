"""`pedagogy run CHAPTER`: one chapter is executed headless, and an HTML report is written."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from pedagogy.cli.chapters import CommandError, execute, find_chapter, needs_lab


def write_report(chapter: str, output: Path | None = None) -> Path:
    """The path of the report. The kernel's working directory is an empty folder.

    Raises: CommandError if a cell fails; the report then ends with the error.
    """
    for module in ("nbclient", "nbconvert", "nbformat"):
        if importlib.util.find_spec(module) is None:
            raise needs_lab(module)
    import nbformat

    path = find_chapter(chapter)
    output = output or Path("reports") / f"{path.stem}.html"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    try:
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder))
    except CommandError as error:
        _write_html(notebook, path.parent, output)
        raise CommandError(f"{error}\nthe report up to there: {output}") from None
    _write_html(notebook, path.parent, output)
    return output


def _write_html(notebook, folder: Path, output: Path) -> None:
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(embed_images=True)
    resources = {"metadata": {"path": str(folder), "name": output.stem}}
    page, _ = exporter.from_notebook_node(notebook, resources=resources)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error}") from None
