"""A logarithmic axis has as many ticks as it has room for."""

from __future__ import annotations

import pytest

from pedagogy.plots import curves_figure


@pytest.mark.parametrize(
    ("largest", "last_label"), [(1e3, "1000"), (1e7, "10,000,000")], ids=["few", "many"]
)
def test_a_wide_axis_has_one_tick_a_decade(largest, last_label):
    sizes = [1.0, largest]
    figure = curves_figure({"a": (sizes, sizes)}, "A line rises.", x_scale="log", y_scale="log")
    figure.canvas.draw()
    axis = figure.axes[0].xaxis
    low, high = axis.get_view_interval()
    ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    whole = [10.0**power for power in range(8) if 10.0**power <= largest]
    assert (ticks == whole) == (largest > 1e4)
    assert set(whole) <= set(ticks)
    labels = dict(zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True))
    assert labels[largest].get_text() == last_label


def test_a_binary_axis_has_its_ticks_at_the_powers_of_two():
    figure = curves_figure({"a": ([1, 64], [1, 2])}, "A line rises.", x_scale="log2")
    figure.canvas.draw()
    axis = figure.axes[0].xaxis
    low, high = axis.get_view_interval()
    ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    assert ticks == [1, 2, 4, 8, 16, 32, 64]
