"""What each saved tensor holds, and what it would cost to make it again.

One row for each kind of operation, those that give most bytes for a second of recomputation first.
Left: the bytes that all its tensors hold together. Right: bytes for each second that making them
again takes, one mark a tensor, on a logarithmic axis. What stands at the top should be dropped
first; what stands at the bottom kept, or sent away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from pedagogy.plots import style
from pedagogy.plots.labels import width_points
from pedagogy.plots.memory import byte_axis

ROW, GAP, RIGHT, BOTTOM, TOP = 0.34, 0.35, 0.25, 0.6, 0.5  # inches
SMALL = 1 / 200  # of all bytes: kinds that hold less share a row
OTHERS = "all others"


class Kind(NamedTuple):
    """The saved tensors that one kind of operation made: bytes, and bytes for each second."""

    name: str
    nbytes: int
    rates: tuple[float, ...]  # none where they cannot be made again
    count: int


def kinds_of_tensors(profile: Any, seconds: Mapping[Any, float]) -> list[Kind]:
    """The saved tensors by operation, the most bytes for a second first, then what cannot be made.

    profile: of `recompute.profile`. seconds: {key: seconds to make it again}.
    """
    whole = sum(saved.nbytes for saved in profile.saved.values())
    groups: dict[str, list[Any]] = {}
    for key in profile.saved:
        groups.setdefault(_kind(profile, key), []).append(key)
    for name in [name for name, keys in groups.items() if _held(profile, keys) < SMALL * whole]:
        groups.setdefault(OTHERS, []).extend(groups.pop(name))
    kinds = []
    for name, keys in groups.items():
        again = [key for key in keys if profile.repeats(key)]
        rates = tuple(profile.saved[key].nbytes / max(seconds[key], 1e-12) for key in again)
        kinds.append(Kind(name, _held(profile, keys), rates, len(keys)))
    return sorted(kinds, key=lambda kind: (kind.name == OTHERS, -median(kind.rates or [0.0])))


def _kind(profile: Any, key: Any) -> str:
    name = profile.operations[key[0]].name.replace("_", " ").removeprefix("native ")
    return name if key[1] == 0 else f"{name}, output {key[1]}"


def _held(profile: Any, keys: Sequence[Any]) -> int:
    return sum(profile.saved[key].nbytes for key in keys)


def ranking_figure(
    profile: Any,
    seconds: Mapping[Any, float],
    *,
    title: str = "Saved tensors, by the bytes that a second of recomputation buys",
) -> Figure:
    """Draw the saved tensors of a profile by operation; arguments as for `kinds_of_tensors`.

    **Raises** ValueError if nothing was saved.
    """
    if not profile.saved:
        raise ValueError("a profile with 0 saved tensors has nothing to rank")
    kinds = kinds_of_tensors(profile, seconds)
    names = [f"{kind.name} ({kind.count})" for kind in kinds]
    left = 0.25 + max(width_points(name, 8.1) for name in names) / 72
    width = (style.WIDTH - left - GAP - RIGHT) / 2
    room = ROW * len(kinds)
    figure = style.new_figure(style.WIDTH, BOTTOM + room + TOP)
    with style.styled():
        held = style.add_axes(figure, left, BOTTOM, width, room)
        rates = style.add_axes(figure, left + width + GAP, BOTTOM, width, room)
        _draw_bytes(held, kinds, names)
        _draw_rates(rates, kinds)
        for ax in (held, rates):
            ax.set_ylim(len(kinds) - 0.4, -0.6)
            ax.tick_params(axis="y", length=0)
            ax.spines["left"].set_visible(False)
        height = figure.get_size_inches()[1]
        figure.text(0.012, 1 - 0.28 / height, title, fontsize=12, fontweight="bold", gid="title")
    return style.finding(figure, _finding(kinds, profile.seconds))


def _draw_bytes(ax: Axes, kinds: Sequence[Kind], names: Sequence[str]) -> None:
    colour, hatch = style.memory_look("activations")
    held = [kind.nbytes for kind in kinds]
    ax.barh(
        range(len(kinds)), held, height=0.62, color=colour, hatch=hatch, edgecolor=style.PAPER,
        linewidth=0, gid="bytes",
    )  # fmt: skip
    for row, kind in enumerate(kinds):
        text = f"{style.bytes_text(kind.nbytes)}, {kind.nbytes / sum(held):.0%}"
        look = {"va": "center", "textcoords": "offset points", "fontsize": 9}
        ax.annotate(text, (kind.nbytes, row), xytext=(4, 0), **look)
    ax.set_yticks(range(len(kinds)), names)
    ax.set_xlim(0, 1.35 * max(held))
    byte_axis(ax.xaxis)
    ax.grid(axis="x")
    ax.set_xlabel("bytes saved")


def _draw_rates(ax: Axes, kinds: Sequence[Kind]) -> None:
    ax.set_xscale("log")
    for row, kind in enumerate(kinds):
        if not kind.rates:
            at = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 9}
            ax.annotate("cannot be made again", (0.01, row), color=style.MUTED, **at)
            continue
        span = [min(kind.rates), max(kind.rates)]
        ax.plot(span, [row, row], color=style.MUTED, linewidth=1.2, zorder=2, gid="span")
        ticks = {"linestyle": "none", "marker": "|", "markersize": 11, "mew": 1.4}
        ax.plot(kind.rates, [row] * len(kind.rates), color=style.INK, gid="rates", **ticks)
        middle = {"markersize": 7, "markeredgecolor": style.INK, "zorder": 4}
        ax.plot([median(kind.rates)], [row], "D", color=style.SERIES[0], gid="median", **middle)
    ax.set_yticks([])
    ax.margins(x=0.06)
    ax.xaxis.set_major_locator(LogLocator(10.0, numticks=8))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{style.bytes_text(value)}/s"))
    ax.grid(axis="x")
    ax.set_xlabel("bytes for a second of recomputation (diamond: median)")


def _finding(kinds: Sequence[Kind], step_seconds: float) -> str:
    """How many bytes the cheapest kinds hold, and what making all of them again would cost."""
    whole = sum(kind.nbytes for kind in kinds)
    made = [kind for kind in kinds if kind.rates and kind.name != OTHERS]
    told = ""
    held = seconds = 0.0
    for number, kind in enumerate(made, start=1):
        held += kind.nbytes
        seconds += sum(kind.nbytes / kind.count / rate for rate in kind.rates)
        if held >= whole / 2:
            names = ", ".join(one.name for one in made[:number])
            told = (
                f"{names} hold {held / whole:.0%} of the {style.bytes_text(whole)} saved and take "
                f"{seconds / step_seconds:.0%} of an iteration to make again; "
            )
            break
    most, least = (
        f"{one.name} {style.bytes_text(median(one.rates))}" for one in (made[0], made[-1])
    )
    return f"{told}bytes for each second of recomputation: from {most} to {least}."
