"""Explorer of chapter 05: one number in one format, its bits, its neighbours, and other formats.

All numbers of a format, in order, can be counted: the pattern of exponent and mantissa, read as a
whole number, is the place of a positive number after zero. So a neighbour is the next place, also
across a power of two and down to the subnormal numbers, and `number_at` is the way back.
"""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.precision import percent
from pedagogy.plots.precision_formats import bit_legend, draw_bits, power_text
from pedagogy.precision import FORMATS, Format, bit_fields
from pedagogy.widgets.controls import menu
from pedagogy.widgets.explorer import Explorer, Try

VALUES = {
    "1": 1.0,
    "1.5": 1.5,
    "1/3": 1 / 3,
    "0.1": 0.1,
    "pi": math.pi,
    "1 + 2^-11": 1 + 2.0**-11,
    "2049": 2049.0,
    "65504": 65504.0,
    "65520": 65520.0,
    "2^-14": 2.0**-14,
    "2^-24": 2.0**-24,
    "2^-25": 2.0**-25,
    "1e-8": 1e-8,
    "0": 0.0,
}
HEIGHT, BIT, LEFT = 4.2, 0.275, 0.95
AROUND = 4  # neighbours on each side
DENSE = 160  # ticks in a row, at most


def place_of(value: float, of: Format) -> int:
    """The place of the number, rounded to the format, among the format's numbers; 0 is zero's."""
    sign, exponent, mantissa = bit_fields(value, of)
    return int(exponent + mantissa, 2) * (-1 if sign == "1" else 1)


def number_at(place: int, of: Format) -> float:
    """The number at a place; beyond the largest one infinity, or the largest without infinity."""
    size, sign = abs(place), -1.0 if place < 0 else 1.0
    if size > place_of(of.max, of):
        return sign * (math.inf if of.has_infinity else of.max)
    exponent, mantissa = divmod(size, 2**of.mantissa_bits)
    if exponent == 0:
        return sign * mantissa * of.smallest
    return sign * math.ldexp(1 + mantissa * of.epsilon, exponent - of.bias)


def moved(value: float, of: Format, negative: bool, powers: int, places: int) -> float:
    """The value times 2^powers, rounded to the format, and so many places further from zero."""
    place = place_of(math.ldexp(value, powers), of)
    number = number_at(max(place + places, 0), of)
    return -number if negative else number


def render_number_format(
    format: str, value: str, sign: str, exponent_steps: int, mantissa_steps: int
) -> Figure:
    """Draw the bits of a number, and the numbers beside it in this and in other formats."""
    of = FORMATS[format]
    number = moved(VALUES[value], of, sign == "-", exponent_steps, mantissa_steps)
    figure = style.new_figure(style.WIDTH, HEIGHT)
    bits = style.add_axes(figure, LEFT, 2.85, BIT * 32, 0.5)
    fields = bit_fields(number, of)
    draw_bits(bits, 0, of, fields)
    with style.styled():
        bits.set_xlim(0, 32)
        bits.set_ylim(0.5, -0.5)
        bits.axis("off")
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.28 / HEIGHT, f"{_exact(number)} in {format}", **look)
        place = (LEFT / style.WIDTH, 1 - 0.5 / HEIGHT)
        figure.legend(
            handles=bit_legend(), loc="upper left", bbox_to_anchor=place, ncol=3, borderaxespad=0,
            borderpad=0,
        )  # fmt: skip
        figure.text(LEFT / style.WIDTH, 2.55 / HEIGHT, _reading(number, fields, of), gid="reading")
    _draw_neighbours(style.add_axes(figure, LEFT, 0.6, 8.8, 1.55), number, of)
    asked = math.ldexp(VALUES[value], exponent_steps) * (-1 if sign == "-" else 1)
    return style.finding(figure, _finding(number, of, number if mantissa_steps else asked))


def neighbours(number: float, of: Format) -> tuple[float, float]:
    """The next smaller and the next larger number of the format."""
    place = place_of(number, of)
    return number_at(place - 1, of), number_at(place + 1, of)


def _window(number: float, of: Format) -> tuple[float, float]:
    """From `AROUND` numbers before to as many after, all finite."""
    last = place_of(of.max, of)
    place = max(min(place_of(number, of), last), -last)
    low, high = max(place - AROUND, -last), min(place + AROUND, last)
    return number_at(low, of), number_at(high, of)


def _draw_neighbours(ax: Axes, number: float, of: Format) -> None:
    """Draw the numbers of every format within the window around this one, a row each."""
    low, high = _window(number, of)
    names = [name for name in FORMATS if name != of.name]
    rows = [of.name, *names]
    with style.styled():
        for row, name in enumerate(rows):
            ticks = ticks_within(low, high, FORMATS[name])
            colour = style.ACCENT if row == 0 else style.SERIES[0]
            if ticks is None:
                ax.plot([low, high], [row, row], color=colour, linewidth=5, alpha=0.35, gid=name)
                continue
            look = {"linestyle": "", "marker": "|", "markersize": 11, "markeredgewidth": 1.6}
            ax.plot(ticks, [row] * len(ticks), color=colour, gid=name, **look)
        if math.isfinite(number):
            ax.plot([number], [0], "o", color=style.ACCENT, markersize=7, gid="number")
        ax.set_yticks(range(len(rows)), rows)
        ax.set_ylim(len(rows) - 0.5, -0.6)
        margin = 0.04 * (high - low)
        ax.set_xlim(low - margin, high + margin)
        ax.tick_params(axis="y", length=0)
        ax.ticklabel_format(axis="x", useOffset=False)
        ax.set_xlabel("numbers of each format here (a solid line: too dense to draw)")
        ends = [low, (low + high) / 2, high]
        ax.set_xticks(ends, [f"{end:.7g}" for end in ends])


def ticks_within(low: float, high: float, of: Format) -> list[float] | None:
    """The format's numbers from low to high; None where there are more than `DENSE`."""
    first, last = place_of(low, of), place_of(high, of)
    if last - first > DENSE:
        return None
    found = (number_at(place, of) for place in range(first, last + 1))
    return [one for one in found if low <= one <= high]


def _exact(number: float) -> str:
    return f"{number:.10g}"


def _reading(number: float, fields: tuple[str, str, str], of: Format) -> str:
    """How the bits are read, as a product."""
    sign, exponent, mantissa = fields
    if not math.isfinite(number):
        return "all exponent bits 1, mantissa 0: infinity"
    power = int(exponent, 2)
    minus = "-" if sign == "1" else "+"
    part = f"{int(mantissa, 2)}/{2**of.mantissa_bits}"
    if power == 0:
        return f"{minus} 2^{1 - of.bias} x (0 + {part}): exponent bits all 0, subnormal or zero"
    return f"{minus} 2^({power} - {of.bias}) x (1 + {part})"


def _finding(number: float, of: Format, wanted: float) -> str:
    """Where the number stands among its neighbours, and what rounding made of the wanted one."""
    if not math.isfinite(number):
        return f"{_exact(wanted)} becomes infinite: the largest number of {of.name} is {of.max:,g}."
    below, above = neighbours(number, of)
    gap = _distance(min(abs(one - number) for one in (below, above) if one != number))
    where = f"In {of.name} {_exact(number)} stands between {_exact(below)} and {_exact(above)}"
    if abs(number) == of.max:
        where = f"{_exact(number)} is the largest number of {of.name}, up to its sign"
    told = f"{where}: the nearest is {gap} away."
    if number == wanted:
        return told
    error = abs(number - wanted)
    share = f", {percent(error / abs(wanted))} of it" if wanted else ""
    return f"{told} {_exact(wanted)} was rounded to it, {_distance(error)} off{share}."


def _distance(value: float) -> str:
    """A distance as a plain number, or as a power of two where it is a small one."""
    return f"{value:g}" if value >= 2**-6 else power_text(value)


def number_format_explorer() -> Explorer:
    """Return the explorer of number formats, bit by bit.

    Try this: take 2049 in fp16: it is not there, and 2048 and 2050 are neighbours. Take 65520: the
    first number that becomes infinite. Take 1/3 in bf16 and compare the rows: fp32's range, with
    few numbers in it.
    """
    plain = {"sign": "+", "exponent_steps": 0, "mantissa_steps": 0}
    return Explorer(
        render_number_format,
        format=menu(list(FORMATS), "fp16"),
        value=menu(list(VALUES), "1"),
        sign=["+", "-"],
        exponent_steps=(-12, 12, 0),
        mantissa_steps=(-8, 8, 0),
        try_this=(
            Try(
                "2049 in fp16",
                "2049 becomes 2048: from 2048 on, fp16 counts in twos",
                {**plain, "format": "fp16", "value": "2049"},
            ),
            Try(
                "too large",
                "65520 is halfway to what would be the next number, and becomes infinite",
                {**plain, "format": "fp16", "value": "65520"},
            ),
            Try(
                "1/3 in bf16",
                "0.333984375: an eighth of the numbers that fp16 has here",
                {**plain, "format": "bf16", "value": "1/3"},
            ),
        ),
    )
