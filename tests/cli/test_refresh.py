"""`pedagogy refresh` and `pedagogy run` on small notebooks, in a real kernel."""

from __future__ import annotations

import nbformat
import nbformat.v4 as v4
import pytest

from pedagogy.cli import chapters as chapters_module
from pedagogy.cli.chapters import CommandError
from pedagogy.cli.normal_form import IGNORED, MEASURED, keep_measured, normalise
from pedagogy.cli.refresh import refresh
from pedagogy.cli.report import write_report

SHOW_TIME = """\
import time
from matplotlib.figure import Figure
from pedagogy.notebook import show

figure = Figure(figsize=(2, 1))
figure.text(0, 0, str(time.time_ns()))
show(figure, alt="A time that differs.")"""


def written(folder, *sources, tags=()):
    """A notebook file with these code cells, all with these tags."""
    cells = [v4.new_code_cell(source, metadata={"tags": list(tags)}) for source in sources]
    path = folder / "toy.ipynb"
    nbformat.write(v4.new_notebook(cells=cells), path)
    return path


def test_refreshing_twice_gives_an_empty_diff(tmp_path):
    from pedagogy.notebook import FIRST_CELL

    slider = "import ipywidgets\n\nipywidgets.IntSlider(description='n')"
    path = written(tmp_path, FIRST_CELL, "print('a')\nprint('b')", slider)
    assert refresh(path) is True
    assert refresh(path) is False
    outputs = nbformat.read(path, as_version=4).cells[2].outputs
    assert list(outputs[0].data) == ["text/plain"]


def test_a_measured_picture_stays_as_committed_unless_fresh(tmp_path):
    path = written(tmp_path, SHOW_TIME, tags=[MEASURED])
    assert refresh(path) is True
    assert refresh(path) is False
    assert refresh(path, fresh=True) is True


def test_a_kept_output_is_in_normal_form_where_a_cell_was_taken_away_before_it(tmp_path):
    path = written(
        tmp_path, "first = 1", "second = 2", "import time\n\ntime.time()", tags=[IGNORED]
    )
    refresh(path)
    shorter = nbformat.read(path, as_version=4)
    del shorter.cells[0]
    nbformat.write(shorter, path)
    refresh(path)
    result = nbformat.read(path, as_version=4).cells[1]
    assert result.execution_count == result.outputs[0].execution_count == 2
    assert refresh(path) is False


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import sys\n\nprint('warning', file=sys.stderr)", "writes to stderr"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_notebook_that_fails_or_warns_is_refused_and_left_alone(tmp_path, source, problem):
    path = written(tmp_path, source)
    before = path.read_bytes()
    with pytest.raises(CommandError, match=problem):
        refresh(path)
    assert path.read_bytes() == before


def test_what_is_no_notebook_is_refused(tmp_path):
    (tmp_path / "not.ipynb").write_text("not JSON")
    with pytest.raises(CommandError, match="cannot read"):
        refresh(tmp_path / "not.ipynb")


@pytest.mark.parametrize(
    ("tag", "old", "new", "kept"),
    [
        (IGNORED, "took 0.21 s", "took 13.9 s", True),
        (IGNORED, "took 0.21 s", "lasted 0.21 s", False),
        (MEASURED, "equal: True", "equal: True", True),
        (MEASURED, "sent 8 bytes", "sent 9 bytes", False),
        ("other", "took 0.21 s", "took 0.22 s", False),
    ],
)
def test_measured_outputs_are_kept_where_nothing_else_changed(tag, old, new, kept):
    def notebook(text):
        output = v4.new_output("stream", text=text)
        cell = v4.new_code_cell("f()", id="one", outputs=[output], metadata={"tags": [tag]})
        made = v4.new_notebook(cells=[cell])
        normalise(made)
        return made

    fresh = notebook(new)
    keep_measured(fresh, notebook(old))
    assert fresh.cells[0].outputs[0].text == (old if kept else new)


def test_a_report_is_written_even_if_a_cell_fails(tmp_path, monkeypatch):
    written(tmp_path, "print('so far')", "1 / 0")
    monkeypatch.setattr(chapters_module, "chapters_folder", lambda: tmp_path)
    with pytest.raises(CommandError, match="ZeroDivisionError"):
        write_report("toy", tmp_path / "out" / "toy.html")
    page = (tmp_path / "out" / "toy.html").read_text()
    assert "so far" in page
    assert "ZeroDivisionError" in page


def test_N23_the_first_chapter_runs_in_an_empty_folder(tmp_path):
    path = write_report("00a", tmp_path / "report.html")
    assert path.read_text().count("data:image/png") >= 1
