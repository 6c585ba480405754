"""The command line: exit codes, errors that a person can act on, and which chapter is meant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pedagogy.cli import chapters as chapters_module
from pedagogy.cli import main
from pedagogy.cli.chapters import CommandError, find_chapter


@pytest.fixture
def three_chapters(tmp_path, monkeypatch):
    """A folder with three chapters, in the place of the package's own."""
    for name in ("00a_one_training_step", "00b_ranks_and_collectives", "01_data_parallelism"):
        (tmp_path / f"{name}.ipynb").touch()
    monkeypatch.setattr(chapters_module, "chapters_folder", lambda: tmp_path)


@pytest.mark.parametrize("name", ["01", "01_data", "01_data_parallelism.ipynb"])
def test_a_chapter_is_found_by_the_start_of_its_name(three_chapters, name):
    assert find_chapter(name).stem == "01_data_parallelism"


def test_an_ambiguous_chapter_lists_the_candidates(three_chapters):
    with pytest.raises(CommandError, match="2 chapters start with '00'; choose one of: 00a_one"):
        find_chapter("00")


def test_an_unknown_chapter_is_an_error_of_one_line_and_exit_code_1(three_chapters, capsys):
    assert main(["run", "99"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pedagogy run: no chapter starts with '99'; choose one of: 00a_one")


def test_a_wrong_word_is_exit_code_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["frobnicate"])
    assert stopped.value.code == 2
    assert "frobnicate" in capsys.readouterr().err


def test_doctor_says_what_this_machine_offers(capsys):
    assert main(["doctor"]) == 0
    assert "torch" in capsys.readouterr().out


def test_an_unknown_row_of_the_bench_lists_those_there_are(capsys):
    assert main(["bench", "no_such_row"]) == 1
    assert "no row is called no_such_row; there are:" in capsys.readouterr().err


def test_python_m_pedagogy_is_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "pedagogy", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("pedagogy 0.")
