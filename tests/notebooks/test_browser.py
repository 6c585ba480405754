"""Every chapter in a real JupyterLab in a real browser: all cells run, every control is moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest

from pedagogy.cli.chapters import chapters_folder
from pedagogy.cli.normal_form import normalise
from tests.notebooks import controls
from tests.notebooks.controls import explorers
from tests.notebooks.lab_server import LabPage, chromium, lab_server

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NOTEBOOKS = sorted(path.name for path in chapters_folder().glob("*.ipynb"))

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",  # as root in a container there is none
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine"),
]


TOY = "toy.ipynb"
TOY_CELL = """\
import ipywidgets

from pedagogy.plots.style import new_figure
from pedagogy.widgets import Explorer
from pedagogy.widgets.slow import SlowExplorer


def render(used, ignored):
    if used == "broken":
        raise ValueError("no such thing")
    figure = new_figure(4, 2)
    figure.text(0, 0, f"{used}")
    figure.set_label(f"It is {used}.")
    return figure"""
TOY_EXPLORERS = (
    "Explorer(render, used=(0, 9, 9), ignored=(0, 9, 3))",
    "SlowExplorer(render, used=ipywidgets.RadioButtons(options=['p', 'q']), ignored=True)",
    "Explorer(render, used=['a', 'broken'], ignored=True)",
)


def write_toy(path: Path) -> None:
    """A notebook whose explorers each have a control that is ignored; the third one can fail."""
    cells = [nbformat.v4.new_code_cell(source) for source in (TOY_CELL, *TOY_EXPLORERS)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    normalise(notebook)
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium: one context, so that JupyterLab itself is loaded once."""
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGUMENTS)
        yield running.new_context(viewport={"width": 1400, "height": 1000})
        running.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A JupyterLab on a copy of the chapters, and on a notebook that only this file has."""
    folder = tmp_path_factory.mktemp("chapters")
    shutil.copytree(chapters_folder(), folder, dirs_exist_ok=True)
    write_toy(folder / TOY)
    with lab_server(folder, tmp_path_factory.mktemp("jupyter")) as found:
        yield found


@pytest.fixture
def opened(browser, address, request, tmp_path):
    """The notebook that the test names, open; a picture of the page is kept if the test fails."""
    failed = request.session.testsfailed
    lab = LabPage(browser)
    picture = tmp_path / f"{Path(request.param).stem}.png"
    try:
        lab.open(address, request.param)
        yield lab
    except Exception:
        lab.page.screenshot(path=picture)
        print(f"\nthe page that did not open: {picture}")
        raise
    finally:
        if request.session.testsfailed > failed:
            lab.page.screenshot(path=picture)
            print(f"\nthe page when the test failed: {picture}")
        lab.end_kernel()


@pytest.mark.parametrize("opened", NOTEBOOKS, indirect=True)
def test_every_cell_runs_and_every_control_changes_its_picture(opened):
    opened.run_all()
    assert opened.cells_not_run() == []
    assert opened.problems() == []
    found = explorers(opened.page)
    for number, explorer in enumerate(found, start=1):
        assert explorer.is_drawn(), f"explorer {number} shows no picture"
        for index in range(len(explorer.controls())):
            kind, element = explorer.controls()[index]
            moved = explorer.move(kind, element)
            assert moved, f"explorer {number}: control {index + 1} (a {kind}) changes nothing"
        assert explorer.is_drawn(), f"explorer {number} shows no picture after its controls moved"
    assert opened.problems() == []


@pytest.mark.parametrize("opened", [TOY], indirect=True)
def test_a_dead_control_and_a_render_that_fails_are_noticed(opened, monkeypatch):
    monkeypatch.setattr(controls, "MOVE_SECONDS", 1)
    opened.run_all()
    plain, slow, fragile = explorers(opened.page)
    assert [plain.move(*control) for control in plain.controls()] == [True, False]
    assert sorted(slow.move(*control) for control in slow.controls()) == [False, True]
    assert opened.problems() == []
    toggles = next(control for control in fragile.controls() if control[0] == "toggles")
    fragile.move(*toggles)
    assert opened.problems() == ["ValueError: no such thing"]
