"""`pedagogy lab`: the reader works in a folder of their own, and what they write is never lost.

The chapters are copied into the folder without their outputs, which hold the answers to what the
reader is asked to predict; only explorers show their default picture until they run. A small
manifest beside them remembers what was copied. A chapter that still is what was copied follows the
package when that is upgraded; one that the reader has changed, by running or editing it, is left
alone. The folder ignores itself in git, so a checkout stays clean whatever is run in it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path

from pedagogy.cli.chapters import (
    CommandError,
    chapters,
    chapters_folder,
    kernel_environment,
    needs_lab,
)

MANIFEST = ".pedagogy.json"


def copy_chapters(folder: Path) -> list[str]:
    """The folder holds every chapter, unexecuted; none that the reader changed was touched.

    Returns: the lines that say what was done.

    Raises: CommandError if `folder` cannot be written, or is the chapters' own folder.
    """
    source = chapters_folder()
    if folder.resolve() == source.resolve():
        raise CommandError(f"{folder} holds the originals; choose another folder with --folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        return _copy_all(source, folder)
    except OSError as error:
        raise CommandError(f"cannot write to {folder}: {error}") from None


def open_lab(folder: Path, port: int | None, browser: bool) -> int:
    """JupyterLab has run on the first chapter in `folder` until it was stopped; its exit code."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise needs_lab("jupyterlab")
    from jupyterlab.labapp import main

    arguments = [
        f"--ServerApp.root_dir={folder.resolve()}",
        f"--LabApp.default_url=/lab/tree/{chapters()[0].name}",
    ]
    arguments += [f"--ServerApp.port={port}"] if port is not None else []
    arguments += [] if browser else ["--no-browser"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # in a container, as a rule
        arguments.append("--allow-root")
    os.environ.update(kernel_environment())
    try:
        return main(arguments) or 0
    except SystemExit as stopped:
        return int(stopped.code or 0)


def _copy_all(source: Path, folder: Path) -> list[str]:
    manifest_file = folder / MANIFEST
    manifest = json.loads(manifest_file.read_text()) if manifest_file.exists() else {}
    copied, kept = [], []
    for original in sorted(path for path in source.rglob("*") if path.is_file()):
        name = original.relative_to(source).as_posix()
        if any(part.startswith(".") for part in Path(name).parts):
            continue
        shipped, target = original.read_bytes(), folder / name
        new = without_outputs(shipped) if original.suffix == ".ipynb" else shipped
        present = _digest(target.read_bytes()) if target.exists() else None
        if present == _digest(new):
            manifest[name] = present
        elif present in (None, manifest.get(name), _digest(shipped)):  # the last: with outputs
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(new)
            manifest[name] = _digest(new)
            copied.append(name)
        else:
            kept.append(name)
    manifest_file.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    lines = [f"{folder}: {len(copied)} files copied"] if copied else []
    lines += [f"{name}: you changed it, so it was left as it is" for name in kept]
    return lines


def without_outputs(notebook: bytes) -> bytes:
    """The same notebook, as if no cell of it had ever run; explorers keep their default picture."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            pictures = [output for output in cell["outputs"] if _is_explorer(output)]
            cell.update(outputs=pictures, execution_count=None)
            for output in pictures:
                output["execution_count"] = None
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def _is_explorer(output: dict) -> bool:
    return "".join(output.get("data", {}).get("text/plain", "")).startswith("Explorer:")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
