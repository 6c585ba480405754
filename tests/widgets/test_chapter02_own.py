"""One's own schedule is drawn below a reference, or told why it cannot run."""

import pytest

from pedagogy.plots.lanes import blocks
from pedagogy.widgets.chapter02 import own_schedule_explorer


@pytest.fixture
def own():
    made = own_schedule_explorer()
    yield made
    made.close()


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


def panel_titles(figure):
    return [text.get_text() for text in figure.texts if text.get_gid() == "title"][::2]


def test_ones_own_schedule_stands_under_the_reference_on_one_axis(own):
    own.set(text="F0 F1 B0 B1\nF0 B0 F1 B1", reference="GPipe")
    assert panel_titles(own.figure) == ["GPipe, for comparison", "Yours"]
    upper, lower = own.figure.axes
    assert upper.get_xlim() == lower.get_xlim()
    assert blocks(lower, "forward") == [(0, 0, 1), (0, 1, 2), (1, 1, 2), (1, 4, 5)]
    assert own.readout.startswith("Yours takes 9, GPipe 9; bubble_fraction 0.333 against 0.333")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no line"),
        ("F0 B0\nF0 B", "'B' is no action"),
        ("F0 B0\nF0", "B0@1 is missing"),
        ("F0 B0 F0", "F0@0 stands in the schedule twice"),
        ("B0 F0", "dead-lock"),
        ("F999999999 B0", "numbers below 32"),
        ("F0 B0\n" * 9, "9 ranks"),
    ],
)
def test_what_cannot_run_is_answered_with_the_reason_in_the_picture(own, text, reason):
    own.set(text=text)
    assert own.error is None
    (shown,) = [t.get_text() for t in own.figure.texts if t.get_gid() == "reason"]
    assert reason in " ".join(shown.split())
    assert own.readout.startswith("Yours cannot run: ")
    assert len(panel_titles(own.figure)) == 1
    assert tuple(own.figure.get_size_inches()) == (10.0, 5.2)


def test_the_reason_is_written_below_the_picture_and_above_its_end(own):
    ring = "\n".join(f"F{k} B{k} F{1 - k} B{1 - k}" for k in (0, 1, 0, 1, 0, 1, 0, 1))
    own.set(text=ring)
    (box,) = [t.get_window_extent() for t in own.figure.texts if t.get_gid() == "reason"]
    assert box.y0 > 0
    assert box.x1 < 1000
    assert box.y1 < own.figure.axes[0].get_window_extent().y0 - 40


def test_try_a_dead_lock(own):
    readout = chosen(own, "a dead-lock").readout
    assert "rank 0 stands at B0@0 and waits for B0@1 of rank 1" in readout
    assert "rank 1 stands at F1@1 and waits for F1@0 of rank 0" in readout


def test_try_less_in_flight(own):
    readout = chosen(own, "less in flight").readout
    assert readout.startswith("Yours takes 24, 1F1B 18;")
    assert "at most 2, 2, 1 in flight against 3, 2, 1" in readout


def test_try_fill_the_drain(own):
    readout = chosen(own, "fill the drain").readout
    assert readout.startswith("Yours takes 14, 1F1B 18;")
    lower = own.figure.axes[1]
    work = sum(e - s for gid in ("forward", "backward", "weight") for _, s, e in blocks(lower, gid))
    assert work == 3 * 4 * 3
