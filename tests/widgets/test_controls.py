"""Controls come from a shorthand, and anything else is refused with the control's name."""

import ipywidgets
import pytest

from pedagogy.widgets.controls import choice, make_control


@pytest.mark.parametrize(
    ("shorthand", "kind", "value"),
    [
        ((1, 8, 4), ipywidgets.IntSlider, 4),
        ((1, 8, 4, 0.5), ipywidgets.FloatSlider, 4.0),
        ((0.0, 1.0, 0.25), ipywidgets.FloatSlider, 0.25),
        (["mixed", "fp32"], ipywidgets.ToggleButtons, "mixed"),
        (["a", "b", "c", "d", "e"], ipywidgets.Dropdown, "a"),
        (["a choice with a long name", "b"], ipywidgets.Dropdown, "a choice with a long name"),
        (True, ipywidgets.Checkbox, True),
        (choice([("1 MB", 1), ("2 MB", 2)], 2), ipywidgets.SelectionSlider, 2),
    ],
)
def test_a_shorthand_becomes_a_control(shorthand, kind, value):
    widget = make_control("bucket_size", shorthand)
    assert type(widget) is kind
    assert widget.value == value
    assert widget.description == "bucket size"


@pytest.mark.parametrize("shorthand", [(1, 2), [], "text", None])
def test_another_shorthand_is_refused_with_its_name(shorthand):
    with pytest.raises(ValueError, match="control 'depth': expected"):
        make_control("depth", shorthand)


def test_a_default_outside_its_slider_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match="'depth': the default 9 is not within 1 to 8"):
        make_control("depth", (1, 8, 9))
