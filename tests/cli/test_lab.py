"""`pedagogy lab` copies the chapters, and never loses what a reader wrote."""

from __future__ import annotations

import hashlib
import json

import nbformat
import pytest

from pedagogy.cli import lab
from pedagogy.cli.chapters import CommandError

ANSWER = "seven"  # what the question's cell prints


def notebook(text: str, output: str = ANSWER) -> str:
    """A chapter of one paragraph and one executed cell, in the form in which chapters are kept."""
    cell = nbformat.v4.new_code_cell("print(answer)", id="code", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", text=output)]
    cells = [nbformat.v4.new_markdown_cell(text, id="text"), cell]
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells)) + "\n"


@pytest.fixture
def originals(tmp_path, monkeypatch):
    """A folder of two chapters and a picture, in the place of the package's own."""
    folder = tmp_path / "originals"
    (folder / "images").mkdir(parents=True)
    for name in ("00a_start.ipynb", "01_more.ipynb"):
        (folder / name).write_text(notebook("first version"))
    (folder / "images/map.png").write_text("a picture, first version")
    monkeypatch.setattr(lab, "chapters_folder", lambda: folder)
    return folder


def test_everything_is_copied_into_a_folder_that_git_ignores(originals, tmp_path):
    lab.copy_chapters(tmp_path / "mine")
    for name in ("00a_start.ipynb", "01_more.ipynb"):
        assert "first version" in (tmp_path / "mine" / name).read_text()
    assert (tmp_path / "mine/images/map.png").read_text() == "a picture, first version"
    assert (tmp_path / "mine" / ".gitignore").read_text() == "*\n"


def test_no_output_stands_in_the_copy_and_all_of_them_in_the_original(originals, tmp_path):
    before = (originals / "00a_start.ipynb").read_text()
    lab.copy_chapters(tmp_path / "mine")
    copied = (tmp_path / "mine/00a_start.ipynb").read_text()
    original = nbformat.reads(before, as_version=4)
    assert ANSWER in before
    assert ANSWER not in copied
    original.cells[1].update(outputs=[], execution_count=None)
    assert copied == nbformat.writes(original) + "\n"
    nbformat.validate(nbformat.reads(copied, as_version=4))
    assert (originals / "00a_start.ipynb").read_text() == before


def test_an_explorer_shows_its_default_picture_in_the_copy(originals, tmp_path):
    cell = nbformat.v4.new_code_cell("an_explorer()", id="explorer", execution_count=2)
    data = {"text/plain": "Explorer: ring (run the cell)", "image/png": "iVBORw0KGgo="}
    cell.outputs = [nbformat.v4.new_output("execute_result", data=data, execution_count=2)]
    chapter = nbformat.reads(notebook("first version"), as_version=4)
    chapter.cells.append(cell)
    (originals / "01_more.ipynb").write_text(nbformat.writes(chapter) + "\n")
    lab.copy_chapters(tmp_path / "mine")
    copied = nbformat.read(tmp_path / "mine/01_more.ipynb", as_version=4)
    nbformat.validate(copied)
    assert copied.cells[1].outputs == []
    assert dict(copied.cells[2].outputs[0].data) == data
    assert copied.cells[2].execution_count is None


def test_the_manifest_remembers_the_copies_as_they_are(originals, tmp_path):
    lab.copy_chapters(tmp_path / "mine")
    manifest = json.loads((tmp_path / "mine/.pedagogy.json").read_text())
    assert len(manifest) == 3
    for name, digest in manifest.items():
        assert digest == hashlib.sha256((tmp_path / "mine" / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_copy_with_outputs_that_an_earlier_version_made_is_updated(
    has_manifest, originals, tmp_path
):
    mine = tmp_path / "mine"
    mine.mkdir()
    content = (originals / "01_more.ipynb").read_bytes()
    (mine / "01_more.ipynb").write_bytes(content)
    if has_manifest:
        (originals / "01_more.ipynb").write_text(notebook("second version"))
        known = {"01_more.ipynb": hashlib.sha256(content).hexdigest()}
        (mine / ".pedagogy.json").write_text(json.dumps(known))
    assert lab.copy_chapters(mine) == [f"{mine}: 3 files copied"]
    assert ANSWER not in (mine / "01_more.ipynb").read_text()
    assert lab.copy_chapters(mine) == []


def test_other_outputs_alone_are_no_new_version(originals, tmp_path):
    lab.copy_chapters(tmp_path / "mine")
    (originals / "01_more.ipynb").write_text(notebook("first version", output="eight"))
    assert lab.copy_chapters(tmp_path / "mine") == []


def test_a_changed_file_is_never_overwritten(originals, tmp_path):
    mine = tmp_path / "mine"
    lab.copy_chapters(mine)
    (mine / "01_more.ipynb").write_text("my answers")
    (originals / "01_more.ipynb").write_text(notebook("second version"))
    for _ in range(2):
        assert lab.copy_chapters(mine) == ["01_more.ipynb: you changed it, so it was left as it is"]
        assert (mine / "01_more.ipynb").read_text() == "my answers"


def test_a_file_of_the_readers_that_was_never_copied_is_kept(originals, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "01_more.ipynb").write_text("my own notebook")
    lab.copy_chapters(mine)
    assert (mine / "01_more.ipynb").read_text() == "my own notebook"


def test_an_unchanged_file_follows_the_package(originals, tmp_path):
    mine = tmp_path / "mine"
    lab.copy_chapters(mine)
    (originals / "01_more.ipynb").write_text(notebook("second version"))
    assert lab.copy_chapters(mine) == [f"{mine}: 1 files copied"]
    assert "second version" in (mine / "01_more.ipynb").read_text()
    assert lab.copy_chapters(mine) == []


def test_a_deleted_file_is_copied_again(originals, tmp_path):
    mine = tmp_path / "mine"
    lab.copy_chapters(mine)
    (mine / "00a_start.ipynb").unlink()
    lab.copy_chapters(mine)
    assert "first version" in (mine / "00a_start.ipynb").read_text()


def test_the_originals_are_not_copied_onto_themselves(originals):
    with pytest.raises(CommandError, match="holds the originals"):
        lab.copy_chapters(originals)


def test_a_folder_that_cannot_be_written_is_named(originals, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CommandError, match="cannot write to"):
        lab.copy_chapters(tmp_path / "file")


def test_jupyterlab_opens_on_the_first_chapter(originals, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("jupyterlab.labapp.main", started.append)
    monkeypatch.setattr(lab, "chapters", lambda: [originals / "00a_start.ipynb"])
    monkeypatch.setenv("PYTHONPATH", "")
    assert lab.open_lab(tmp_path, port=9999, browser=False) == 0
    assert started[0][:4] == [
        f"--ServerApp.root_dir={tmp_path}",
        "--LabApp.default_url=/lab/tree/00a_start.ipynb",
        "--ServerApp.port=9999",
        "--no-browser",
    ]
