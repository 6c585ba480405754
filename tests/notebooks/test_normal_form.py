"""Every committed notebook keeps the rules, and each rule fails on a notebook that breaks it."""

from __future__ import annotations

import base64
import copy
import warnings

import nbformat
import nbformat.v4 as v4
import pytest

from pedagogy.cli.chapters import chapters
from pedagogy.cli.normal_form import METADATA, normalise
from pedagogy.notebook import FIRST_CELL, colab_badge
from tests.notebooks import rules

each_chapter = pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)


def read(path):
    """The notebook of that file, as version 4."""
    return nbformat.read(path, as_version=4)


def test_there_are_chapters():
    assert len(chapters()) >= 3


@each_chapter
def test_N05_the_kernel_is_python3(path):
    assert dict(read(path).metadata) == METADATA


@each_chapter
def test_N21_a_notebook_is_in_normal_form_and_below_a_megabyte(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000
    notebook = nbformat.reads(text, as_version=4)
    normalise(notebook)
    assert nbformat.writes(notebook) + "\n" == text, f"run: pedagogy refresh {path.name}"


@each_chapter
def test_N22_cell_ids_are_there_and_unique(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nbformat.validate(read(path))
    ids = [cell.id for cell in read(path).cells]
    assert len(set(ids)) == len(ids)


@each_chapter
def test_the_first_cell_and_the_badge_are_the_common_ones(path):
    notebook = read(path)
    assert rules.code_cells(notebook)[0].source == FIRST_CELL
    assert colab_badge(path.name) in notebook.cells[0].source + notebook.cells[1].source


def broken(**cell) -> nbformat.NotebookNode:
    """A notebook with one code cell that breaks a rule."""
    cell["outputs"] = [nbformat.from_dict(one) for one in cell.get("outputs", [])]
    twice = [v4.new_code_cell(**{"source": "x", **copy.deepcopy(cell)}) for _ in range(2)]
    return v4.new_notebook(cells=[v4.new_markdown_cell("# Takes 1 minutes"), *twice])


def stream(text: str, name: str = "stdout") -> dict:
    """A stream output."""
    return {"output_type": "stream", "name": name, "text": text}


def displayed(**data) -> dict:
    """An output that displays data."""
    return {"output_type": "display_data", "data": data, "metadata": {}}


PNG = {"image/png": "A" * 40}
LARGE = {"image/png": "A" * 300_000}
RULES = {
    "N01_texts_are_steady": (rules.unsteady_text, broken(outputs=[stream("<a at 0x7f00aa>")])),
    "N04_one_stream_a_cell": (rules.split_streams, broken(outputs=[stream("a"), stream("b")])),
    "every_cell_has_run": (rules.not_run_or_failed, broken(execution_count=7)),
    "N07_stderr_is_empty": (rules.on_stderr, broken(outputs=[stream("!", "stderr")])),
    "N14_core_widgets_only": (rules.foreign_front_ends, broken(source="%matplotlib widget")),
    "N23_no_file_beside_it": (rules.foreign_front_ends, broken(source="open('data.csv')")),
    "N16_an_explorer_has_a_picture": (
        rules.explorers_without_picture,
        broken(outputs=[displayed(**{"text/plain": "Explorer: a"})]),
    ),
    "N19_pictures_have_alt_text": (rules.without_alt_text, broken(outputs=[displayed(**PNG)])),
    "N21_no_output_is_large": (rules.too_large, broken(outputs=[displayed(**LARGE)])),
    "cells_have_20_lines_at_most": (rules.long_cells, broken(source="x\n" * 20 + "x")),
    "few_outputs_are_ignored": (
        rules.ignored_outputs,
        broken(metadata={"tags": ["nbval-ignore-output"]}),
    ),
    "the_spine_is_in_order": (rules.broken_spine, broken()),
    "the_minutes_follow_from_the_formula": (rules.misstated_minutes, broken()),
}


@pytest.mark.parametrize(("rule", "breaks_it"), RULES.values(), ids=RULES)
def test_a_rule_fails_on_a_notebook_that_breaks_it(rule, breaks_it):
    assert rule(breaks_it)


@each_chapter
@pytest.mark.parametrize("rule", [rule for rule, _ in RULES.values()], ids=RULES)
def test_a_chapter_keeps_the_rule(path, rule):
    assert rule(read(path)) == []


def test_a_spine_out_of_order_is_noticed():
    cells = [v4.new_markdown_cell(f"## {name}") for name in (*rules.SPINE[1:], rules.SPINE[0])]
    assert rules.broken_spine(v4.new_notebook(cells=cells)) != []
    in_order = [v4.new_markdown_cell(f"## {name.capitalize()}: more") for name in rules.SPINE]
    assert rules.broken_spine(v4.new_notebook(cells=in_order)) == []


def test_the_minutes_are_counted_by_the_formula():
    explorer = displayed(**PNG, **{"text/plain": "Explorer: a"})
    outputs = [nbformat.from_dict(one) for one in (displayed(**PNG), displayed(**PNG), explorer)]
    cells = [
        v4.new_markdown_cell("word " * 2000),  # 10 minutes
        v4.new_code_cell("show(x)", outputs=outputs),  # 1.5 + 2 * 3 + 5
        v4.new_code_cell("check(f)"),  # 1.5 + 15
    ]
    assert rules.minutes(v4.new_notebook(cells=cells)) == 40  # 39, to five


def test_normalising_twice_changes_nothing_more():
    notebook = broken(outputs=[stream("a"), stream("b"), displayed(**{"text/plain": "c"})])
    notebook.metadata["widgets"] = {"state": {}}
    notebook.cells[1].metadata["execution"] = {"iopub.status.busy": "2026-01-01"}
    normalise(notebook)
    once = copy.deepcopy(notebook)
    normalise(notebook)
    assert notebook == once
    assert notebook.cells[1].outputs[0].text == "ab"
    assert notebook.cells[1].metadata == {}
    assert len({cell.id for cell in notebook.cells}) == 3


def test_the_readmes_picture_is_one_that_a_chapter_drew():
    covers = [
        output.data["image/png"]
        for path in chapters()
        for cell in read(path).cells
        if "cover" in cell.metadata.get("tags", [])
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    (picture,) = covers
    stored = (chapters()[0].parent / "images" / "house_figure.png").read_bytes()
    assert base64.b64decode(picture) == stored
