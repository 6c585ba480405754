"""How often to cut, and how many slots to keep: curves of closed forms with what was run on them.

A line is a closed form, a point what was measured or executed. Where the two are equal the points
lie on the line; the finding says whether they all do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pedagogy.plots import style
from pedagogy.plots.curves import name_curves, plain_log
from pedagogy.plots.memory import byte_axis

LEFT, BOTTOM, WIDTH, HEIGHT, TOP = 0.95, 0.6, 7.55, 3.0, 0.5  # inches
DOT = {"linestyle": "none", "markersize": 7, "zorder": 5, "markeredgecolor": style.INK}


def segments_figure(
    predicted: Mapping[int, float],
    measured: Mapping[int, float] | None = None,
    *,
    title: str = "Activations that are kept, by the number of segments",
    number: Callable[[float], str] = style.bytes_text,
) -> Figure:
    """Draw bytes against the number of segments: {segments: bytes}; the least is marked.

    **Raises** ValueError for nothing predicted.
    """
    if not predicted:
        raise ValueError("0 numbers of segments were given: need 1 or more")
    figure, ax = _new(title, "segments", "bytes kept")
    best = min(predicted, key=predicted.get)
    with style.styled():
        ax.plot(*_sorted(predicted), color=style.SERIES[0], linewidth=1.8, gid="predicted")
        if measured:
            ax.plot(*_sorted(measured), "o", color=style.SERIES[5], gid="measured", **DOT)
        ax.set_ylim(0, 1.12 * max([*predicted.values(), *(measured or {}).values()]))
        ring = {"markersize": 14, "markerfacecolor": "none", "markeredgecolor": style.ACCENT}
        ax.plot([best], [predicted[best]], "o", mew=1.8, zorder=6, gid="least", **ring)
        least = f"least: {_count(best, 'segment')}, {number(predicted[best])}"
        is_high = predicted[best] > 0.3 * ax.get_ylim()[1]
        ax.annotate(
            *(least, (best, predicted[best])),
            xytext=(0, -16 if is_high else 16),
            textcoords="offset points",
            ha="left" if best < 0.7 * max(predicted) else "right",
            va="top" if is_high else "bottom",
            color=style.ACCENT,
            fontweight="bold",
        )
        byte_axis(ax.yaxis, number)
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        ax.grid(True)
        _key(ax, "predicted", "measured" if measured else "")
    whole = predicted[min(predicted)]
    text = f"L{least[1:]}, {predicted[best] / whole:.0%} of what {min(predicted)} keeps."
    return style.finding(figure, text + _agreement(predicted, measured or {}))


def slots_figure(
    closed: Mapping[int, Mapping[int, int]],
    executed: Mapping[int, Mapping[int, int]] | None = None,
    *,
    title: str = "Forwards beyond the first pass, by the number of slots",
) -> Figure:
    """Draw extra forwards against slots, both logarithmic: {layers: {slots: forwards}}.

    **Raises** ValueError for a chain that was executed but has no closed form.
    """
    executed = executed or {}
    if not closed or set(executed) - set(closed):
        raise ValueError(f"chains of {sorted(executed)} layers executed, forms for {[*closed]}")
    figure, ax = _new(title, "slots", "extra forwards of a layer")
    with style.styled():
        plain_log(ax.xaxis, 2.0)
        plain_log(ax.yaxis)
        for place, (layers, forwards) in enumerate(closed.items()):
            look = {"color": style.SERIES[place % 8], "linestyle": style.DASHES[place % 8]}
            name = f"{layers} layers"
            ax.plot(*_sorted(forwards), linewidth=1.8, label=name, gid=name, **look)
            if layers in executed:
                dots = {"marker": style.MARKERS[place % 8], "color": style.SERIES[place % 8]} | DOT
                ax.plot(*_sorted(executed[layers]), label="_dots", gid=f"{name} executed", **dots)
        ax.grid(True)
        name_curves(ax)
        _key(ax, "closed form", "executed" if executed else "")
    told = [f"{n} layers: {_ends(forwards)}" for n, forwards in closed.items()]
    flat = [
        {(n, c): f for n, by in one.items() for c, f in by.items()} for one in (closed, executed)
    ]
    return style.finding(figure, "; ".join(told) + "." + _agreement(*flat, "executed"))


def _new(title: str, x_label: str, y_label: str):
    figure = style.new_figure(style.WIDTH, BOTTOM + HEIGHT + TOP)
    ax = style.add_axes(figure, LEFT, BOTTOM, WIDTH, HEIGHT)
    with style.styled():
        ax.set_title(title)
        ax.set(xlabel=x_label, ylabel=y_label)
    return figure, ax


def _sorted(values: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return sorted(values), [values[x] for x in sorted(values)]


def _key(ax, line: str, dots: str) -> None:
    ax.plot([], [], color=style.MUTED, linewidth=1.8, label=f"_{line}")
    drawn = [(ax.lines[-1], line)]
    if dots:
        ax.plot([], [], "o", color=style.MUTED, label=f"_{dots}", **DOT)
        drawn.append((ax.lines[-1], dots))
    ax.legend(*zip(*drawn, strict=True), loc="upper right")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _ends(forwards: Mapping[int, int]) -> str:
    first, last = min(forwards), max(forwards)
    return f"{forwards[first]} with {_count(first, 'slot')}, {forwards[last]} with {last}"


def _flat(chains: Mapping[int, Mapping[int, int]]) -> dict[tuple[int, int], int]:
    return {(n, slots): value for n, one in chains.items() for slots, value in one.items()}


def _agreement(right: Mapping, found: Mapping, how: str = "measured") -> str:
    if not found:
        return ""
    equal = sum(right.get(key) == value for key, value in found.items())
    return f" {equal} of {len(found)} {how} points lie on the line exactly."
