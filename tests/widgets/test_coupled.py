"""A control of a coupled explorer offers only what the other controls allow."""

import pytest

from pedagogy.plots import style
from pedagogy.widgets.coupled import Bounds, CoupledExplorer


def render(ranks, count, step):
    return style.finding(style.new_figure(4, 1), f"{ranks} {count} {step}.")


@pytest.fixture
def explorer():
    made = CoupledExplorer(
        render,
        bounds={"count": lambda ranks, **_: Bounds(ranks, 12 // ranks * ranks, ranks, ranks == 1)},
        play="step",
        last=lambda ranks, count: ranks * count,
        ranks=(1, 6, 2),
        count=(1, 12, 4),
        step=(0, 100, 0),
    )
    yield made
    made.close()


@pytest.mark.parametrize(
    ("bounds", "value", "nearest"),
    [
        (Bounds(4, 12, 4), 7, 8),
        (Bounds(4, 12, 4), 1, 4),
        (Bounds(5, 12, 5), 12, 10),
        (Bounds(0, 3), 9, 3),
    ],
)
def test_a_value_moves_to_the_nearest_that_is_allowed(bounds, value, nearest):
    assert bounds.nearest(value) == nearest


def test_a_moved_control_takes_those_that_depend_on_it_along(explorer):
    explorer.controls["ranks"].value = 5
    count = explorer.controls["count"]
    assert (count.value, count.min, count.max, count.step) == (5, 5, 10, 5)
    assert explorer.readout == "5 5 0."
    explorer.controls["ranks"].value = 3
    assert (count.value, count.min, count.max, count.step) == (6, 3, 12, 3)


@pytest.mark.parametrize("names", [("ranks", "count", "step"), ("step", "count", "ranks")])
def test_several_values_are_set_whatever_their_order(explorer, names):
    explorer.set(ranks=6, count=12)
    wanted = {"ranks": 4, "count": 8, "step": 30}
    assert explorer.set(**{name: wanted[name] for name in names}).values == wanted
    assert explorer.error is None


def test_a_control_with_nothing_to_choose_is_disabled(explorer):
    explorer.set(ranks=1)
    assert explorer.controls["count"].disabled
    explorer.set(ranks=2)
    assert not explorer.controls["count"].disabled


def test_a_value_that_moved_is_told_once_and_with_the_reason():
    def multiples(ranks, **_):
        return Bounds(ranks, 12 // ranks * ranks, ranks, why="only multiples")

    made = CoupledExplorer(
        render, bounds={"count": multiples}, ranks=(1, 6, 2), count=(1, 12, 4), step=(0, 9, 0)
    )
    assert made.readout == "2 4 0."
    made.controls["ranks"].value = 5
    assert made.readout == "5 5 0. count went from 4 to 5: only multiples."
    made.controls["step"].value = 1
    assert made.readout == "5 5 1."
    assert made.set(count=12).readout == "5 10 1. count went from 12 to 10: only multiples."
    made.close()


def test_steps_end_where_the_other_values_say(explorer):
    explorer.set(ranks=2, count=12, step=24)
    explorer.set(count=2)
    assert explorer.values == {"ranks": 2, "count": 2, "step": 4}


def test_an_unknown_name_is_refused(explorer):
    with pytest.raises(ValueError, match="no control named"):
        explorer.set(rank=2)
