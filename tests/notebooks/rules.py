"""The rules for committed notebooks: each is a function from a notebook to a list of problems."""

from __future__ import annotations

import re
from typing import Any

from pedagogy.cli.normal_form import IGNORED, WIDGET_VIEW

SPINE = (
    "the problem in numbers",
    "predict",
    "by hand",
    "write it",
    "the code",
    "run it",
    "explore",
    "when it stops paying",
    "in production",
    "from the paper",
    "on a gpu",
    "exercises",
    "takeaway",
    "sources",
)
OPTIONAL_SECTIONS = {"write it"}
MAX_CELL_LINES = 20
MAX_OUTPUT_BYTES = 200_000 * 4 // 3 + 100  # as base64
MAX_IGNORED_SHARE = 0.15


def code_cells(notebook: Any) -> list[Any]:
    """The code cells, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> list[Any]:
    """All outputs, in order."""
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def pictures(notebook: Any) -> list[Any]:
    """The outputs that hold a PNG."""
    return [output for output in outputs(notebook) if "image/png" in output.get("data", {})]


def is_explorer(output: Any) -> bool:
    """Whether an output is an explorer's."""
    return str(output.get("data", {}).get("text/plain", "")).startswith("Explorer")


def text_of(output: Any) -> str:
    """An output's text: what was printed, or its plain form."""
    return str(output.get("text") or output.get("data", {}).get("text/plain", ""))


def unsteady_text(notebook: Any) -> list[str]:
    """Texts that another run or another version would change."""
    unsteady = re.compile(r"0x[0-9a-f]{6,}|<Figure size|it/s\b|/tmp/|ipykernel_")
    return [text[:80] for text in map(text_of, outputs(notebook)) if unsteady.search(text)]


def split_streams(notebook: Any) -> list[str]:
    """Cells with more than one stdout stream, and the words of progress bars."""
    problems = [cell.source[:80] for cell in code_cells(notebook) if "tqdm" in cell.source]
    for cell in code_cells(notebook):
        streams = [output for output in cell.outputs if output.output_type == "stream"]
        if len(streams) > 1:
            problems.append(f"{len(streams)} streams: {cell.source[:60]}")
    return problems


def not_run_or_failed(notebook: Any) -> list[str]:
    """Cells that raised, or whose counts are not 1, 2, 3, ..."""
    problems = [output.evalue for output in outputs(notebook) if output.output_type == "error"]
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        problems.append(f"execution counts are {counts}")
    return problems


def on_stderr(notebook: Any) -> list[str]:
    """What was written to stderr."""
    return [output.text for output in outputs(notebook) if output.get("name") == "stderr"]


def without_alt_text(notebook: Any) -> list[str]:
    """Pictures, stored or in Markdown, without a sentence of alternative text."""
    alts = [output.metadata.get("image/png", {}).get("alt", "") for output in pictures(notebook)]
    problems = [f"output picture: alt {alt!r}" for alt in alts if len(alt.split()) < 3]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            problems += [
                f"Markdown picture {url}" for url in re.findall(r"!\[\s*\]\((.*?)\)", cell.source)
            ]
    return problems


def too_large(notebook: Any) -> list[str]:
    """Pictures above 200 kB, and HTML or SVG above that."""
    sizes = [
        (kind, len(str(content)))
        for output in outputs(notebook)
        for kind, content in output.get("data", {}).items()
    ]
    return [f"{kind}: {size} bytes" for kind, size in sizes if size > MAX_OUTPUT_BYTES]


def explorers_without_picture(notebook: Any) -> list[str]:
    """Explorers that show a static viewer nothing, and live views that were stored."""
    problems = [text_of(one) for one in outputs(notebook) if WIDGET_VIEW in one.get("data", {})]
    explorers = [one for one in outputs(notebook) if is_explorer(one)]
    return problems + [text_of(one) for one in explorers if "image/png" not in one.data]


def long_cells(notebook: Any) -> list[str]:
    """Code cells above 20 lines."""
    counts = [(cell.source.count("\n") + 1, cell.source[:60]) for cell in code_cells(notebook)]
    return [f"{count} lines: {start}" for count, start in counts if count > MAX_CELL_LINES]


def foreign_front_ends(notebook: Any) -> list[str]:
    """Code that works in one front end only, or reads a file beside the notebook."""
    foreign = (
        r"%matplotlib|ipympl|anywidget|google\.colab|\bopen\(|read_csv|^%|^!|interact\(|Output\("
    )
    cells = code_cells(notebook)[1:]  # the first cell is held to FIRST_CELL
    return [cell.source[:80] for cell in cells if re.search(foreign, cell.source, re.MULTILINE)]


def ignored_outputs(notebook: Any) -> list[str]:
    """More than 15 % of cells that are not compared, or one that no compared cell follows."""
    ignored = [IGNORED in cell.metadata.get("tags", []) for cell in code_cells(notebook)]
    problems = []
    if sum(ignored) > MAX_IGNORED_SHARE * len(ignored):
        problems.append(f"{sum(ignored)} of {len(ignored)} cells are tagged {IGNORED}")
    for this, following in zip(ignored, [*ignored[1:], True], strict=True):
        if this and following:
            problems.append(f"a cell tagged {IGNORED} is not followed by one that is compared")
    return problems


def broken_spine(notebook: Any) -> list[str]:
    """Sections of the spine that are missing, or whose first appearance is out of order."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = [text.strip().lower() for text in re.findall(r"^#+\s+(.*)$", prose, re.MULTILINE)]
    first = {
        name: next((index for index, text in enumerate(headings) if text.startswith(name)), None)
        for name in SPINE
    }
    missing = [name for name in SPINE if first[name] is None and name not in OPTIONAL_SECTIONS]
    present = [name for name in SPINE if first[name] is not None]
    in_order = sorted(present, key=lambda name: first[name])
    problems = [f"no section {name!r}" for name in missing]
    if present != in_order:
        problems.append(f"the order is {in_order}")
    return problems


def minutes(notebook: Any) -> int:
    """The minutes that a chapter takes, rounded to five.

    words / 200 + 1.5 a code cell + 3 a figure + 5 an explorer + 15 a coding exercise
    """
    words = sum(len(c.source.split()) for c in notebook.cells if c.cell_type == "markdown")
    explorers = sum(map(is_explorer, outputs(notebook)))
    figures = len(pictures(notebook)) - explorers
    code = code_cells(notebook)
    exercises = {name for cell in code for name in re.findall(r"\bcheck\((\w+)\)", cell.source)}
    total = words / 200 + 1.5 * len(code) + 3 * figures + 5 * explorers + 15 * len(exercises)
    return 5 * round(total / 5)


def misstated_minutes(notebook: Any) -> list[str]:
    """A title cell that does not state the minutes which the formula gives."""
    stated = [int(number) for number in re.findall(r"(\d+) minutes", notebook.cells[0].source)]
    right = minutes(notebook)
    return [] if right in stated else [f"stated {stated}, and the formula gives {right} minutes"]
