"""The project as a whole: its layers, its style, its wheel, and the one place of its address."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pedagogy import __version__, notebook

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "pedagogy").rglob("*.py"))
PYPROJECT = (ROOT / "pyproject.toml").read_text()
README = (ROOT / "README.md").read_text()


def run(*command: str) -> subprocess.CompletedProcess:
    """The command has run in the project's root, its output kept."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_imports_go_downwards_only():
    code = "import sys; from importlinter.cli import lint_imports as lint; "
    found = run(sys.executable, "-c", code + "sys.exit(lint(no_cache=True))")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff_has_no_complaint(command):
    found = run(sys.executable, "-m", "ruff", *command.split(), "--no-cache", ".")
    assert found.returncode == 0, found.stdout + found.stderr


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import pedagogy, sys; print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    assert run(sys.executable, "-c", code).stdout == "[]\n"


def test_closed_forms_run_without_torch():
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in SOURCES
        if path.is_relative_to(ROOT / "pedagogy" / "costs") and path.stem != "__init__"
    ]
    code = f"import sys, importlib; [importlib.import_module(name) for name in {names}]"
    found = run(sys.executable, "-c", f"{code}; print('torch' in sys.modules)")
    assert names
    assert found.stdout == "False\n", found.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_public_name_has_a_docstring(path):
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [
        node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")
    ]
    methods = [
        node
        for owner in public
        if isinstance(owner, ast.ClassDef) and not owner.bases  # an override has its base's
        for node in owner.body
        if isinstance(node, kinds) and not node.name.startswith("_")
    ]
    bare = [node.name for node in public + methods if not ast.get_docstring(node)]
    assert bare == []
    assert ast.get_docstring(tree) or not tree.body


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory) -> set[str]:
    """The files in a wheel that was built now, with the build tools that are here."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder))
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"pedagogy-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize(
    ("folder", "pattern", "inside"),
    [
        ("notebooks", "*.ipynb", "pedagogy/_notebooks"),
        ("pedagogy/costs/tables", "*.csv", "pedagogy/costs/tables"),
        ("pedagogy", "*.py", "pedagogy"),
    ],
)
def test_a_wheel_holds_the_chapters_the_tables_and_the_code(wheel_names, folder, pattern, inside):
    files = [path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).rglob(pattern)]
    assert files
    assert {f"{inside}/{name}" for name in files} <= wheel_names


def test_a_wheel_holds_no_tests(wheel_names):
    assert not [name for name in wheel_names if name.startswith(("tests/", "notebooks/"))]


def test_versions_agree():
    assert f'version = "{__version__}"' in PYPROJECT


def test_the_address_is_that_of_the_project_urls_everywhere():
    (address,) = re.findall(r'^Repository = "(.*)"', PYPROJECT, re.MULTILINE)
    assert address == notebook.REPOSITORY
    owner = address.removeprefix("https://github.com/")
    badges = re.findall(r"colab\.research\.google\.com/github/([^/]+/[^/]+)/", README)
    assert set(badges) == {owner}


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m venv .venv && .venv/bin/pip install -e '.[lab]' && .venv/bin/pedagogy lab",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest",
    ],
)
def test_the_readme_gives_the_two_commands(command):
    assert command in README.splitlines()


def test_every_file_that_the_readme_names_exists():
    targets = re.findall(r"\]\((?!https?:|#)([^)]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_notebook_is_in_the_readmes_table():
    names = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert names
    assert {name for name in names if f"(notebooks/{name})" not in README} == set()


def test_N06_cells_and_kernels_have_explicit_time_limits():
    assert re.search(r"--nbval-cell-timeout=\d+", PYPROJECT)
    assert re.search(r"--nbval-kernel-startup-timeout=\d{3}", PYPROJECT)


def test_N13_nothing_that_a_platform_brings_is_pinned():
    (core,) = re.findall(r"^dependencies = \[\n(.*?)^\]", PYPROJECT, re.MULTILINE | re.DOTALL)
    requirements = re.findall(r'"(.*?)"', core)
    assert len(requirements) >= 7
    assert all(re.fullmatch(r"[a-z-]+>=[\d.]+", one) for one in requirements)


def test_N14_no_front_end_of_one_platform_is_needed():
    foreign = re.compile(r"^\s*(import|from) (google|ipympl|anywidget)\b", re.MULTILINE)
    assert [str(path) for path in SOURCES if foreign.search(path.read_text())] == []
