"""Move an explorer's controls as a reader would."""

from typing import Any


def assert_every_control_moves(explorer: Any) -> None:
    """Both ends and the middle of each control draw without an error, in a picture of one size."""
    size = tuple(explorer.figure.get_size_inches())
    for name, widget in explorer.controls.items():
        options = getattr(widget, "options", None) or [widget.min, widget.max]
        for option in (options[0], options[-1], options[len(options) // 2]):
            explorer.set(**{name: option[1] if isinstance(option, tuple) else option})
            assert explorer.error is None, (name, option)
            assert tuple(explorer.figure.get_size_inches()) == size, (name, option)


def assert_three_trials_draw(explorer: Any) -> None:
    """The three settings that an explorer proposes."""
    assert len(explorer.try_this) == 3
    for trial in explorer.try_this:
        explorer.set(**trial.values)
        assert explorer.error is None, trial.label
