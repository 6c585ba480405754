"""A slow explorer draws when it is told to, and then what the controls hold at that moment."""

import gc

import ipywidgets

from pedagogy.plots import style
from pedagogy.widgets import SlowExplorer

calls = []


def render_square(side: int, kind: str) -> style.StyledFigure:
    """A square, if its side is not 13."""
    calls.append((side, kind))
    if side == 13:
        raise ValueError("unlucky")
    return style.finding(style.new_figure(6, 2), f"A {kind} square of {side}.")


def widgets_alive() -> int:
    gc.collect()
    instances = getattr(ipywidgets.widgets.widget, "_instances", None)
    return len(ipywidgets.Widget.widgets if instances is None else instances)


def test_N12_a_slow_explorer_closes_all_its_widgets_too():
    before = widgets_alive()
    SlowExplorer(render_square, side=(1, 20, 2), kind=["full"]).close()
    assert widgets_alive() == before


def test_a_slow_explorer_runs_the_last_of_twenty_values_once():
    calls.clear()
    slow = SlowExplorer(render_square, side=(1, 40, 2), kind=["full"])
    for side in range(20, 40):
        slow.controls["side"].value = side
    assert calls == [(2, "full")]
    assert "press Run" in slow._note.value
    slow._button.click()
    assert calls == [(2, "full"), (39, "full")]
    assert slow.readout.startswith("A full square of 39")
    assert "these values" in slow._note.value
    assert not slow._button.disabled
    slow.close()


def test_a_slow_explorer_shows_an_error_and_runs_again():
    slow = SlowExplorer(render_square, side=(1, 40, 2), kind=["full"])
    slow.controls["side"].value = 13
    slow.run()
    assert "unlucky" in slow.view.value
    slow.controls["side"].value = 3
    slow.run()
    assert "<img" in slow.view.value
    slow.close()
