"""Panels that share their axes, and counts of whole numbers."""

import pytest

from pedagogy.plots.counts import counts_figure
from pedagogy.plots.panels import CurvePanel, curve_panels_figure


def panel(title, top=1.0, **more):
    return CurvePanel(
        title, {"a": ([0, 1], [[0, top], [0, top / 2]]), "b": ([0, 1], [1, 0])}, **more
    )


def test_panels_share_one_y_axis_and_have_one_legend():
    figure = curve_panels_figure([[panel("one"), panel("two", 9.0)], [panel("three")]], "They do.")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["one", "two", "three"]
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert figure.get_label() == "They do."


def test_a_mark_is_drawn_where_it_was_asked_for():
    figure = curve_panels_figure([[panel("one", mark=0.5), panel("two")]], "One mark.")
    marks = [[line for line in ax.get_lines() if line.get_gid() == "mark"] for ax in figure.axes]
    assert [len(found) for found in marks] == [1, 0]
    assert list(marks[0][0].get_xdata()) == [0.5, 0.5]


def test_panels_with_other_curves_are_refused():
    other = CurvePanel("other", {"c": ([0], [0])})
    with pytest.raises(ValueError, match=r"panel 'other' holds \['c'\], and the first one"):
        curve_panels_figure([[panel("one"), other]], "No.")


def heights(ax, name):
    found = [bars for bars in ax.containers if bars.get_label() == name]
    return [bar.get_height() for bar in found[0]]


def test_every_number_has_its_place_and_series_stand_on_each_other():
    panels = {"x": {"a": {0: 2, 3: 1}, "b": {0: 1}}, "y": {"a": {1: 4}, "b": {}}}
    first, second = counts_figure(panels, "Counts.").axes
    assert heights(first, "a") == [2, 0, 0, 1]
    assert heights(first, "b") == [1, 0, 0, 0]
    assert heights(second, "a") == [0, 4, 0, 0]
    assert next(bar.get_y() for bar in first.containers[1]) == 2
    assert first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[1] >= 4


def test_counts_of_nothing_are_refused():
    with pytest.raises(ValueError, match="1 panels hold 0 numbers"):
        counts_figure({"x": {"a": {}}}, "No.")
