"""The one form in which a notebook is committed, so that a diff shows what changed and no more.

Two executions of a chapter differ in many ways that mean nothing: counters, time stamps, the ids of
widgets, how a stream was cut into pieces, the version of whatever wrote a PNG. `normalise` removes
them all. What is left is the text, the pictures with their alternative text, and stable cell ids.

Some cells measure times, and so give another picture or another number on each run. They carry a
tag, and `keep_measured` puts their committed outputs back unless something else changed in them:
in a cell tagged `measured` the text must be the same, in one tagged `nbval-ignore-output` the text
must be the same but for its numbers.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
IGNORED = "nbval-ignore-output"
MEASURED = "measured"
KEPT_CELL_METADATA = ("jupyter", "tags")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# The chunks of a PNG that hold no picture: software, comments and time.
PNG_NOTES = (b"tEXt", b"zTXt", b"iTXt", b"tIME", b"eXIf")


def normalise(notebook: Any) -> None:
    """The notebook is in normal form; doing it again changes nothing."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = type(notebook.metadata)(METADATA)
    known: set[str] = set()
    count = 0
    for cell in notebook.cells:
        cell.source = cell.source.rstrip()
        cell.id = _stable_id(cell, known)
        cell.metadata = {
            key: cell.metadata[key] for key in KEPT_CELL_METADATA if key in cell.metadata
        }
        cell.pop("attachments", None)
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            cell.outputs = _normal_outputs(cell.outputs, count)


def keep_measured(notebook: Any, committed: Any) -> None:
    """Cells that measure times have the outputs that were committed, where nothing else changed."""
    before = {cell.id: cell for cell in committed.cells if cell.cell_type == "code"}
    for cell in notebook.cells:
        old = before.get(cell.id) if cell.cell_type == "code" else None
        if old is None or old.source != cell.source:
            continue
        tags = cell.metadata.get("tags", [])
        exactly = MEASURED in tags and _text(old) == _text(cell)
        roughly = IGNORED in tags and _without_numbers(old) == _without_numbers(cell)
        if exactly or roughly:
            cell.outputs = old.outputs


def _stable_id(cell: Any, known: set[str]) -> str:
    """The cell's own id if it has one, else one that follows from its text."""
    name = cell.get("id") or hashlib.sha256(cell.source.encode()).hexdigest()[:8]
    while name in known:
        name = hashlib.sha256(name.encode()).hexdigest()[:8]
    known.add(name)
    return name


def _normal_outputs(outputs: list, count: int) -> list:
    result: list = []
    for output in outputs:
        if output.output_type == "stream":
            last = result[-1] if result else None
            if last is not None and last.output_type == "stream" and last.name == output.name:
                last.text += output.text
                continue
        if output.output_type == "execute_result":
            output.execution_count = count
        if output.output_type in ("execute_result", "display_data"):
            output.data.pop(WIDGET_VIEW, None)
            output.metadata = {
                key: output.metadata[key] for key in sorted(output.metadata) if key in output.data
            }
            if "image/png" in output.data:
                output.data["image/png"] = _plain_png(output.data["image/png"])
        result.append(output)
    return result


def _plain_png(encoded: str) -> str:
    """The picture without notes on who wrote it and when."""
    png = base64.b64decode(encoded)
    position, kept = 8, [png[:8]]
    while position < len(png):
        (length,) = struct.unpack(">I", png[position : position + 4])
        end = position + 12 + length  # length, name, content, checksum
        if png[position + 4 : position + 8] not in PNG_NOTES:
            kept.append(png[position:end])
        position = end
    return base64.b64encode(b"".join(kept)).decode()


def _text(cell: Any) -> list:
    """Everything that a cell gave but its PNG pictures."""
    parts: list = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append((output.name, output.text))
        else:
            data = output.get("data", {})
            parts += [(kind, str(data[kind])) for kind in sorted(data) if kind != "image/png"]
    return parts


def _without_numbers(cell: Any) -> list:
    number = r"[-+]?\d[\d,]*(\.\d+)?([eE][-+]?\d+)?"
    return [(kind, " ".join(re.sub(number, "#", text).split())) for kind, text in _text(cell)]
