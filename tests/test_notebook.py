"""`setup` and `show`: what a chapter's cells leave behind, and the cell that installs it all."""

from __future__ import annotations

import base64
import importlib.metadata
import inspect
import subprocess
import sys
import warnings

import matplotlib
import pytest
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.figure import Figure

from pedagogy import notebook
from pedagogy.exercises.compare import difference
from pedagogy.notebook import FIRST_CELL, MAX_PICTURE_BYTES, colab_badge, setup, show


@pytest.fixture(autouse=True)
def own_style():
    """What a test sets in matplotlib ends with it."""
    with matplotlib.rc_context():
        yield


@pytest.fixture
def shown(monkeypatch):
    """What `show` displays, as a list of (data, metadata)."""
    found: list[tuple[dict, dict]] = []

    def display(data, metadata=None, raw=False):
        assert raw
        found.append((data, metadata))

    monkeypatch.setattr("IPython.display.display", display)
    return found


def line_figure(label: str = "The line rises from 0 to 1.") -> Figure:
    """A small figure without pyplot."""
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([0, 1], [0, 1])
    figure.set_label(label)
    return figure


def test_a_function_is_shown_as_its_exact_source(shown):
    show(difference)
    (data, _), source = shown[0], inspect.getsource(difference).rstrip()
    assert data["text/plain"] == source
    assert data["text/markdown"] == f"```python\n{source}\n```"


def test_a_class_with_fences_in_its_docstring_is_shown_whole(shown, tmp_path, monkeypatch):
    (tmp_path / "fenced.py").write_text(
        'class Fenced:\n    """Use:\n\n    ```\n    x\n    ```\n    """\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    import fenced

    show(fenced.Fenced)
    assert shown[0][0]["text/markdown"].startswith("````python\nclass Fenced")
    assert shown[0][0]["text/markdown"].endswith("\n````")


def test_folded_source_opens_by_a_click(shown):
    show(difference, folded=True)
    markdown = shown[0][0]["text/markdown"]
    assert markdown.startswith("<details><summary>")
    assert "\n\n```python\n" in markdown
    assert markdown.endswith("\n\n</details>")
    assert shown[0][0]["text/plain"] == inspect.getsource(difference).rstrip()


def test_several_things_are_shown_in_order(shown):
    show(difference, line_figure())
    assert ["text/markdown" in data for data, _ in shown] == [True, False]


def test_N08_a_figure_is_shown_once_and_pyplot_forgets_it(shown):
    from matplotlib import pyplot

    figure = pyplot.figure()
    figure.set_label("Nothing is drawn yet.")
    assert show(figure) is None
    assert len(shown) == 1
    assert pyplot.get_fignums() == []


def test_N19_a_picture_carries_its_label_as_alternative_text(shown):
    show(line_figure())
    data, metadata = shown[0]
    assert metadata == {"image/png": {"alt": "The line rises from 0 to 1."}}
    assert data["text/plain"] == "[figure] The line rises from 0 to 1."


def test_N19_a_picture_without_a_finding_is_refused(shown):
    with pytest.raises(ValueError, match="no alternative text"):
        show(line_figure(label=""))
    assert shown == []


def test_an_alt_text_replaces_the_label(shown):
    show(line_figure(), alt="Another finding.")
    assert shown[0][1]["image/png"]["alt"] == "Another finding."


def test_one_alt_text_for_two_figures_is_refused(shown):
    with pytest.raises(ValueError, match="2 things"):
        show(line_figure(), line_figure(), alt="Which one?")


def test_N21_the_same_figure_gives_the_same_bytes_and_names_no_software(shown):
    show(line_figure())
    show(line_figure())
    first, second = (data["image/png"] for data, _ in shown)
    assert _bytes(first) == _bytes(second)
    assert b"Software" not in _bytes(first)


def _bytes(png: bytes | str) -> bytes:
    return png if isinstance(png, bytes) else base64.b64decode(png)


def test_N21_a_picture_above_200_kB_is_refused(shown):
    import numpy as np

    figure = Figure(figsize=(8, 8), dpi=100)
    noise = np.random.default_rng(0).random((800, 800, 3))
    figure.add_axes((0, 0, 1, 1)).imshow(noise, interpolation="nearest")
    figure.set_label("Noise does not compress.")
    with pytest.raises(ValueError, match=f"{MAX_PICTURE_BYTES:,} are allowed"):
        show(figure)


def test_what_is_neither_source_nor_picture_is_refused():
    with pytest.raises(TypeError, match="int"):
        show(3)


def test_setup_prints_nothing_and_silences_nothing_but_the_known_warnings(capfd):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        setup()
        known = "`torch.distributed.reduce_scatter_tensor` is deprecated. Please use another."
        warnings.warn(known, FutureWarning, stacklevel=1)
        warnings.warn("`torch.save` is deprecated.", FutureWarning, stacklevel=1)
        warnings.warn(known, UserWarning, stacklevel=1)
    assert [str(one.message)[:12] for one in caught] == ["`torch.save`", known[:12]]
    assert capfd.readouterr() == ("", "")


def test_N02_setup_gives_pictures_drawn_with_pyplot_the_workbooks_style():
    from pedagogy.plots.style import SETTINGS

    matplotlib.rcParams["figure.figsize"] = (1, 1)
    matplotlib.rcParams["font.family"] = ["monospace"]
    backend = matplotlib.rcParams._get_backend_or_none()
    setup()
    assert tuple(matplotlib.rcParams["figure.figsize"]) == tuple(SETTINGS["figure.figsize"])
    assert matplotlib.rcParams["font.family"] == ["DejaVu Sans"]
    assert matplotlib.rcParams._get_backend_or_none() == backend


def test_N12_setup_lets_deleted_results_go(monkeypatch):
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    setup()
    shell.run_cell("import weakref\nclass Big: pass\nbig = Big()\nref = weakref.ref(big)")
    for cell in ("big", "del big", "import gc\ngc.collect();"):
        shell.run_cell(cell, store_history=True)
    assert shell.user_ns["ref"]() is None
    assert shell.user_ns["_oh"] == {}


def test_setup_names_what_is_missing_or_too_old(monkeypatch):
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda name: ["numpy>=99", "nothere>=1", "x; extra == 'lab'"],
    )
    with pytest.raises(RuntimeError, match=r"numpy>=99, nothere>=1.*pip install 'numpy>=99'"):
        setup()


def test_the_first_cell_installs_from_the_wheel_beside_it_and_leaves_dependencies(
    tmp_path, monkeypatch
):
    (tmp_path / "pedagogy-0.1.0-py3-none-any.whl").touch()
    assert _commands_of_first_cell(tmp_path, monkeypatch, installed=False) == [
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
            str(tmp_path / "pedagogy-0.1.0-py3-none-any.whl"),
        ]
    ]


def test_the_first_cell_installs_from_the_repository_without_a_wheel(tmp_path, monkeypatch):
    (command,) = _commands_of_first_cell(tmp_path, monkeypatch, installed=False)
    assert command[-1] == f"git+{notebook.REPOSITORY}"


def test_N13_the_first_cell_installs_nothing_where_the_package_is(tmp_path, monkeypatch):
    assert _commands_of_first_cell(tmp_path, monkeypatch, installed=True) == []


def _commands_of_first_cell(folder, monkeypatch, installed: bool) -> list[list[str]]:
    """What the cell would run in `folder`, with pip replaced by a recorder."""
    commands: list[list[str]] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    if not installed:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(compile(FIRST_CELL, "first cell", "exec"), {})
    return commands


def test_the_badge_opens_the_notebook_on_colab():
    owner = notebook.REPOSITORY.removeprefix("https://github.com/")
    assert f"/github/{owner}/blob/main/notebooks/01.ipynb)" in colab_badge("01.ipynb")
