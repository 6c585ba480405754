"""An explorer is driven in plain Python: values in, one picture and one sentence out."""

import ast
import base64
import gc
import io
import sys
import types
import warnings
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
import pytest

import pedagogy.widgets
from pedagogy.plots import style
from pedagogy.widgets import Explorer, Try
from pedagogy.widgets.explorer import WIDGET_VIEW


def render_square(side: int = 2, kind: str = "full") -> style.StyledFigure:
    """A square, if its side is not 13."""
    calls.append((side, kind))
    if side == 13:
        raise ValueError("side 13 <is> unlucky")
    figure = style.new_figure(6, 2 if side < 20 else 3)
    style.add_axes(figure, 0.5, 0.5, 5, 1).plot([0, side], [0, side])
    return style.finding(figure, f"A {kind} square of {side} has {side * side} cells & no more.")


calls = []
TRY = Try("three", "has 9 cells", {"side": 3})


@pytest.fixture
def explorer():
    calls.clear()
    made = Explorer(render_square, side=(1, 20, 2), kind=["full", "empty"], try_this=[TRY])
    yield made
    made.close()


def widgets_alive() -> int:
    gc.collect()
    module = ipywidgets.widgets.widget
    instances = getattr(module, "_instances", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return len(ipywidgets.Widget.widgets if instances is None else instances)


def test_it_shows_the_default_picture_and_its_sentence_at_once(explorer):
    assert explorer.values == {"side": 2, "kind": "full"}
    assert explorer.readout == "A full square of 2 has 4 cells & no more."
    assert explorer.view.value.startswith('<img src="data:image/svg+xml;base64,')
    assert calls == [(2, "full")]


def test_the_sentence_is_the_readout_and_the_alt_text(explorer):
    escaped = "A full square of 2 has 4 cells &amp; no more."
    assert f'alt="{escaped}"' in explorer.view.value
    assert explorer.view.value.endswith(f">{escaped}</p>")


def test_garbage_is_collected_again_after_a_picture_and_after_an_error(explorer):
    for side in (3, 13):
        explorer.set(side=side)
        assert gc.isenabled()
    gc.disable()
    try:
        explorer.set(side=4)
        assert not gc.isenabled(), "a reader who switched it off keeps it off"
    finally:
        gc.enable()


def test_N08_moving_a_control_draws_exactly_one_picture(explorer):
    for side in (3, 4, 5):
        explorer.controls["side"].value = side
    assert calls == [(2, "full"), (3, "full"), (4, "full"), (5, "full")]
    assert explorer.view.value.count("<img") == 1
    assert plt.get_fignums() == []


def test_set_moves_several_controls_and_draws_once(explorer):
    explorer.set(side=7, kind="empty")
    assert calls[1:] == [(7, "empty")]
    assert explorer.readout.startswith("A empty square of 7")
    with pytest.raises(ValueError, match=r"\['depth'\]; there are \['kind', 'side'\]"):
        explorer.set(depth=1)


def test_an_error_is_shown_and_the_controls_stay_alive(explorer):
    explorer.set(side=13)
    assert explorer.figure is None
    assert explorer.readout == "ValueError: side 13 <is> unlucky"
    assert "ValueError: side 13 &lt;is&gt; unlucky" in explorer.view.value
    assert 'role="alert"' in explorer.view.value
    explorer.controls["side"].value = 3
    assert explorer.error is None
    assert "<img" in explorer.view.value


def test_N17_an_error_brings_its_own_ink_and_paper(explorer):
    explorer.set(side=13)
    assert "background:#FFF1EB" in explorer.view.value
    assert "color:#7A2E00" in explorer.view.value


def test_an_error_at_the_first_picture_does_not_prevent_the_explorer():
    broken = Explorer(render_square, side=(1, 20, 13), kind=["full"])
    data, _ = broken._repr_mimebundle_()
    assert "image/png" not in data
    assert broken.set(side=2).readout.startswith("A full square of 2")
    broken.close()


def test_N09_the_view_keeps_its_height(explorer):
    heights = {explorer.view.layout.height}
    for side in (3, 13, 20, 5):
        explorer.set(side=side)
        heights.add(explorer.view.layout.height)
    assert heights == {"266px"}, "200 pixels of picture and 66 for the readout"


def test_N12_a_hundred_moves_leave_no_widget_and_no_figure_behind():
    before = widgets_alive()
    made = Explorer(
        render_square,
        side=(1, 12, 2),
        kind=["full", "empty"],
        try_this=[TRY],
        play="side",
        last=lambda kind: 12,
    )
    grown = widgets_alive()
    for i in range(100):
        made.controls["side"].value = 1 + i % 12
    assert widgets_alive() == grown
    assert plt.get_fignums() == []
    made.close()
    assert widgets_alive() == before


def test_N16_the_bundle_holds_a_live_view_a_picture_and_a_fixed_text(explorer):
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {WIDGET_VIEW, "image/png", "text/plain"}
    assert data["text/plain"] == "Explorer: square (run the cell to move its 2 controls)"
    assert "0x" not in repr(explorer)
    assert metadata["image/png"]["alt"] == explorer.readout
    image = plt.imread(io.BytesIO(base64.b64decode(data["image/png"])))
    height, width, _ = image.shape
    assert width == 600
    assert height > 200, "the readout and what to try stand below the picture"
    assert image[..., 3].min() == 1.0


def test_N16_an_output_stays_below_200_kB(explorer):
    assert len(explorer._repr_mimebundle_()[0]["image/png"]) < 200_000


def test_in_colab_the_bundle_holds_the_live_view_alone(explorer, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {WIDGET_VIEW}
    assert metadata == {}


def test_a_try_this_button_sets_its_values(explorer):
    (button,) = [w for w in explorer._held if isinstance(w, ipywidgets.Button)]
    assert button.description == "three"
    button.click()
    assert explorer.values == {"side": 3, "kind": "full"}
    assert "has 9 cells" in explorer.readout


def test_a_player_moves_its_control_and_stops_at_the_last_step():
    made = Explorer(
        render_square,
        side=(0, 20, 0),
        kind=["full", "empty"],
        play="side",
        last=lambda kind: {"full": 5, "empty": 3}[kind],
    )
    (player,) = [w for w in made._held if isinstance(w, ipywidgets.Play)]
    assert (player.max, made.controls["side"].max) == (5, 5)
    player.value = 4
    assert made.values["side"] == 4
    made.set(kind="empty")
    assert (made.values["side"], player.value, player.max) == (3, 3, 3)
    made.set(side=5, kind="full")
    assert made.values == {"side": 5, "kind": "full"}
    made.close()


def test_a_wrong_rule_for_the_last_step_is_shown_too():
    made = Explorer(
        render_square, side=(0, 9, 0), kind=["full"], play="side", last=lambda kind: 1 / 0
    )
    assert made.readout == "ZeroDivisionError: division by zero"
    made.close()


# What ipywidgets 7.7 and 8 both have, and no more.
COMMON = {
    "Box",
    "Button",
    "Checkbox",
    "Dropdown",
    "FloatSlider",
    "HBox",
    "HTML",
    "IntSlider",
    "Label",
    "Layout",
    "Play",
    "SelectionSlider",
    "Textarea",
    "ToggleButtons",
    "VBox",
    "Widget",
    "link",
}


def test_N13_only_core_widgets_common_to_ipywidgets_7_and_8_are_used():
    used = set()
    for path in Path(pedagogy.widgets.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ipywidgets":
                used.add(node.attr)
            assert not (isinstance(node, ast.ImportFrom) and node.module == "ipywidgets"), path
    assert {"HTML", "Play"} <= used <= COMMON
