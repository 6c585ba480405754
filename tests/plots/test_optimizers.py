"""Pictures of chapter 10: the artists say what the data say."""

import numpy as np
import pytest
import torch

from pedagogy.optimizers.adam8bit import code_values
from pedagogy.plots.optimizers import (
    code_values_figure,
    codes,
    largest_errors,
    optimizer_curves_figure,
    second_moment_figure,
    state_bytes_figure,
)


def line(ax, gid):
    (found,) = [one for one in ax.lines if one.get_gid() == gid]
    return found


def test_a_point_of_a_curve_is_the_mean_of_the_steps_that_end_there():
    losses = {"Adam": [4.0, 2.0, 3.0, 1.0], "SM3": [[4, 4, 4, 4], [5, 5, 5, 3], [6, 6, 6, 6]]}
    figure = optimizer_curves_figure(losses, window=2)
    (ax,) = figure.axes
    assert list(line(ax, "Adam").get_xdata()) == [1, 2, 3]
    assert list(line(ax, "Adam").get_ydata()) == [3, 2.5, 2]
    assert list(line(ax, "SM3").get_ydata()) == [5, 5, 4]  # the median of the seeds
    assert figure.get_label() == (
        "Mean loss of the last 2 of 4 steps: Adam 2.000, SM3 4.000 (4.000 to 6.000)."
    )
    with pytest.raises(ValueError, match="a window of 5 for 4 steps"):
        optimizer_curves_figure(losses, window=5)


def test_state_is_predicted_as_bars_and_measured_as_marks():
    figure = state_bytes_figure({"Adam": 800, "SM3": 20, "Adafactor": 20}, {"SM3": 20}, 400)
    (ax,) = figure.axes
    assert [p.get_width() for p in ax.patches if p.get_gid() == "predicted"] == [800, 20, 20]
    marks = line(ax, "measured")
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([20], [1])
    assert line(ax, "limit").get_xdata()[0] == 400
    assert figure.get_label() == (
        "Adam keeps 800 bytes beside 400 bytes of weights; SM3 2.5% of that; Adafactor 2.5% of "
        "that; measured: the same."
    )
    off = state_bytes_figure({"Adam": 800, "SM3": 20}, {"Adam": 800, "SM3": 25}).get_label()
    assert off.endswith("measured within 25%.")
    assert "measured" not in state_bytes_figure({"Adam": 800}).get_label()
    with pytest.raises(ValueError, match=r"measured \['SM3'\], but predicted \['Adam'\]"):
        state_bytes_figure({"Adam": 1}, {"SM3": 1})


def test_every_element_lies_where_its_two_values_are():
    true = torch.tensor([[1e-4, 1e-3], [1e-2, 0.0]])
    estimate = torch.tensor([[1e-4, 1.5e-3], [1e-1, 1.0]])
    figure = second_moment_figure({"exact": (true, true), "estimate": (true, estimate)})
    exact, ax = figure.axes
    (image,) = exact.images
    rows, columns = np.nonzero(~image.get_array().mask)
    assert list(rows) == list(columns)  # all on the diagonal
    assert len(rows) == 3  # the 0 is not drawn
    rows, columns = np.nonzero(~ax.images[0].get_array().mask)
    assert (rows >= columns).all()  # never below it
    assert (rows > columns).any()
    assert ax.get_xlim() == ax.get_ylim()
    assert figure.get_label() == (
        "exact is within a factor of 2 for 100% of the elements, above for 0%, median 1 times the "
        "true value (25% are 0); estimate is within a factor of 2 for 66.7% of the elements, above "
        "for 33.3%, median 1.5 times the true value (25% are 0)."
    )


def test_estimates_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="at least 1 is needed"):
        second_moment_figure({})
    with pytest.raises(ValueError, match="4 true values and 6 estimates"):
        second_moment_figure({"a": (torch.ones(2, 2), torch.ones(2, 3))})
    with pytest.raises(ValueError, match="some above 0"):
        second_moment_figure({"a": (torch.zeros(2, 2), torch.ones(2, 2))})


def test_the_codes_are_those_of_the_optimizer_and_of_a_grid():
    found = codes()
    assert set(found["dynamic"].tolist()) == set(code_values(signed=True).tolist())
    assert np.diff(found["evenly spaced"]) == pytest.approx(1 / 127)


def test_the_error_is_half_of_the_gap_and_at_most_the_number_itself():
    code = np.array([-1.0, 0.0, 0.5, 1.0])
    assert list(largest_errors([0.6, 0.4, 0.1], code)) == pytest.approx([0.25 / 0.6, 0.625, 1.0])
    sizes = np.geomspace(1e-6, 1, 500)
    for one in codes().values():
        nearest = np.abs(one[None] - sizes[:, None]).min(1) / sizes
        assert (nearest <= largest_errors(sizes, one) * (1 + 1e-9)).all()


def test_dynamic_values_are_better_for_small_numbers_and_worse_for_large_ones():
    figure = code_values_figure()
    left, right = figure.axes
    drawn = {one.get_gid(): one for one in left.collections}
    assert list(drawn) == list(codes())
    for one in drawn.values():
        assert len(one.get_segments()) == 255  # of the dynamic values 0 stands twice
        assert one.get_snap() is False  # two lines a pixel apart must not be drawn as one
    small, large = (
        {name: largest_errors([size], one)[0] for name, one in codes().items()}
        for size in (1e-3, 0.9)
    )
    assert small["dynamic"] < 0.2 < small["evenly spaced"] == 1
    assert large["evenly spaced"] < large["dynamic"]
    assert [line(right, name).get_ydata()[0] for name in codes()][1] == 1
    assert figure.get_label() == (
        "A number of a thousandth of the largest is off by at most: dynamic "
        f"{100 * small['dynamic']:.3g}%, evenly spaced 100%."
    )
