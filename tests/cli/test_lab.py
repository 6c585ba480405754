"""`pedagogy lab` copies the chapters, and never loses what a reader wrote."""

from __future__ import annotations

import pytest

from pedagogy.cli import lab
from pedagogy.cli.chapters import CommandError


@pytest.fixture
def originals(tmp_path, monkeypatch):
    """A folder of two chapters and a picture, in the place of the package's own."""
    folder = tmp_path / "originals"
    (folder / "images").mkdir(parents=True)
    for name in ("00a_start.ipynb", "01_more.ipynb", "images/map.png"):
        (folder / name).write_text(f"{name}, first version")
    monkeypatch.setattr(lab, "chapters_folder", lambda: folder)
    return folder


def test_everything_is_copied_into_a_folder_that_git_ignores(originals, tmp_path):
    lab.copy_chapters(tmp_path / "mine")
    for name in ("00a_start.ipynb", "01_more.ipynb", "images/map.png"):
        assert (tmp_path / "mine" / name).read_text() == f"{name}, first version"
    assert (tmp_path / "mine" / ".gitignore").read_text() == "*\n"


def test_a_changed_file_is_never_overwritten(originals, tmp_path):
    mine = tmp_path / "mine"
    lab.copy_chapters(mine)
    (mine / "01_more.ipynb").write_text("my answers")
    (originals / "01_more.ipynb").write_text("second version")
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
    (originals / "01_more.ipynb").write_text("second version")
    assert lab.copy_chapters(mine) == [f"{mine}: 1 files copied"]
    assert (mine / "01_more.ipynb").read_text() == "second version"
    assert lab.copy_chapters(mine) == []


def test_a_deleted_file_is_copied_again(originals, tmp_path):
    mine = tmp_path / "mine"
    lab.copy_chapters(mine)
    (mine / "00a_start.ipynb").unlink()
    lab.copy_chapters(mine)
    assert (mine / "00a_start.ipynb").read_text() == "00a_start.ipynb, first version"


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
