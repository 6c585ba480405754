"""The name of a curve stands where the curve ends."""

from __future__ import annotations

import pytest

from pedagogy.plots import curves_figure


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
