"""The name of a curve stands where the curve ends."""

from __future__ import annotations

import pytest

from pedagogy.plots import curves_figure, style


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_names_stand_at_the_ends_of_their_lines(scale):
    curves = {"low": ([1, 2], [10.0, 10.0]), "high": ([1, 2], [10.0, 1000.0])}
    figure = curves_figure(curves, "One rises.", y_scale=scale)
    figure.draw_without_rendering()
    ax = figure.axes[0]
    places = {text.get_text(): text.xy[1] for text in ax.texts}
    for line in ax.lines:
        end = line.get_xydata()[-1]
        pixel = ax.transData.transform(end)
        assert places[line.get_label()] == pytest.approx(
            ax.transAxes.inverted().transform(pixel)[1]
        )


def test_levels_are_named_grey_lines_across_the_picture():
    figure = curves_figure({"need": ([1, 2], [5, 30])}, "It crosses.", levels={"card": 20.0})
    (ax,) = figure.axes
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines["card"].get_ydata()) == [20.0, 20.0]
    assert lines["card"].get_color() == style.MUTED != lines["need"].get_color()
    assert {text.get_text() for text in ax.texts} == {"card", "need"}


def test_the_y_axis_begins_where_it_is_told_to():
    figure = curves_figure({"need": ([1, 2], [18, 26])}, "It grows.", y_bottom=0)
    low, high = figure.axes[0].get_ylim()
    assert low == 0
    assert high > 26


def test_what_was_measured_can_stand_as_dots_beside_a_fitted_line():
    curves = {"measured": ([1, 2], [3, 5]), "fit": ([0, 2], [1, 5])}
    (ax,) = curves_figure(curves, "They agree.", dots=["measured"]).axes
    measured, fit = ax.get_lines()
    assert measured.get_linestyle() == "None" != fit.get_linestyle()
    assert (measured.get_marker() != "None", fit.get_marker()) == (True, "None")
    assert {text.get_text() for text in ax.texts} == {"measured", "fit"}
