"""Cases of notebooks and widgets that no other file asserts under their name."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import nbformat
import pytest
import torch

from pedagogy.cli.chapters import chapters
from pedagogy.plots import style
from pedagogy.ranks import launch, machine, supervisor
from pedagogy.widgets import Explorer
from tests.notebooks import rules

PACKAGE = Path(__file__).resolve().parents[2] / "pedagogy"
each_chapter = pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)


def render(number: int) -> style.StyledFigure:
    return style.finding(style.new_figure(4, 2), f"It is {number}.")


def test_N03_a_widget_cell_has_one_fixed_text_whatever_its_controls_hold():
    explorer = Explorer(render, number=(1, 9, 3))
    before = explorer._repr_mimebundle_()[0]["text/plain"]
    explorer.set(number=7)
    assert explorer._repr_mimebundle_()[0]["text/plain"] == before
    explorer.close()


def test_N03_N11_no_output_widget_and_no_interact_is_used():
    used = {
        getattr(node.func, "attr", getattr(node.func, "id", ""))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }
    assert "HTML" in used  # the walk does see widgets
    assert not used & {"interact", "interactive", "interactive_output", "Output"}


@each_chapter
def test_N04_a_cell_has_one_stream_and_no_progress_bar(path):
    assert rules.split_streams(nbformat.read(path, as_version=4)) == []


@each_chapter
def test_N07_nothing_stands_on_stderr(path):
    assert rules.on_stderr(nbformat.read(path, as_version=4)) == []


def test_N07_the_collectives_warn_of_nothing_in_the_ranks():
    def worker(group):
        import warnings

        warnings.simplefilter("error")
        x = torch.ones(4)
        group.all_reduce(x), group.all_gather(x), group.broadcast(x), group.barrier()
        group.reduce_scatter(list(x.split(2))), group.all_to_all(list(x.split(2)))
        return True

    run = launch(worker, 2)
    assert all(run)
    assert run.output == ["", ""]


def test_N11_what_the_ranks_print_is_whole_when_launched_from_a_thread():
    texts = []

    def body():
        texts.append(launch(lambda group: print("line\n" * 50, end=""), 2).output)

    for _ in range(5):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    assert texts == [["line\n" * 50] * 2] * 5


def test_N24_the_parent_waits_in_short_polls_and_refuses_what_memory_cannot_hold(monkeypatch):
    assert supervisor.POLL <= 0.2
    monkeypatch.setattr(machine, "available_bytes", lambda: 10**9)
    with pytest.raises(ValueError, match=r"8 ranks need about 1\.2 GB"):
        launch(lambda group: None, 8)
