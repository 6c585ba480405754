"""Number formats as boxes, one for each bit; and a number among its neighbours.

A row is a format, to scale: as many boxes as bits, the sign dark, the exponent hatched, the
mantissa light. The exponent decides how far a format reaches, the mantissa how dense its numbers
are; both stand beside the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes

if TYPE_CHECKING:
    from pedagogy.precision import Format

PARTS = {  # colour, hatch, ink of the bits
    "sign": ("#5B3A8C", "", style.PAPER),
    "exponent": ("#F6D27A", "///", style.INK),
    "mantissa": ("#9CCBEB", "", style.INK),
}
ROW, BIT = 0.38, 0.13  # inches


def part_bits(of: Format) -> dict[str, int]:
    """Bits of the sign, the exponent and the mantissa."""
    return {"sign": 1, "exponent": of.exponent_bits, "mantissa": of.mantissa_bits}


def draw_bits(ax: Axes, row: float, of: Format, digits: Sequence[str] = ("", "", "")) -> None:
    """Draw a format's bits as boxes from x = 0 on, one unit wide; `digits` are written in them."""
    left = 0
    for (part, bits), text in zip(part_bits(of).items(), digits, strict=True):
        colour, hatch, ink = PARTS[part]
        boxes = [
            [(x, row - 0.32), (x, row + 0.32), (x + 1, row + 0.32), (x + 1, row - 0.32)]
            for x in range(left, left + bits)
        ]
        shown = "" if text else hatch  # digits are read on a plain ground
        add_boxes(ax, part, boxes, colour, shown, linewidths=1.0)
        at = [(x + 0.5, row) for x in range(left, left + bits)]
        if text:
            add_labels(ax, f"{part} digits", list(text), at, ink, 9.0, "bold")
        left += bits


def bit_legend() -> list[Patch]:
    """A handle for each part."""
    return [
        Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER, label=part)
        for part, (colour, hatch, _) in PARTS.items()
    ]


def short(value: float) -> str:
    """A number with three figures, as 65,504 or 3.4e+38 or 6e-08."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def power_text(value: float) -> str:
    """A power of two as "2^-24", any other number as `short` writes it."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 else short(value)


def bit_layout_figure(formats: Sequence[Format], title: str = "Where the bits go") -> Figure:
    """Formats as rows of boxes to scale, with range and spacing beside them.

    **Raises** ValueError without a format.
    """
    if not formats:
        raise ValueError("no format to draw: at least 1 is needed")
    height = 1.2 + ROW * len(formats)
    figure = style.new_figure(style.WIDTH, height)
    widest = max(of.bits for of in formats)
    ax = style.add_axes(figure, 0.95, 0.15, BIT * widest, ROW * len(formats))
    for row, of in enumerate(formats):
        draw_bits(ax, row, of)
    with style.styled():
        ax.set_xlim(0, widest)
        ax.set_ylim(len(formats) - 0.5, -0.5)
        ax.set_xticks([])
        ax.set_yticks(range(len(formats)), [of.name for of in formats])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        figure.text(0.012, 1 - 0.3 / height, title, **look)
        place = (0.95 / style.WIDTH, 1 - 0.45 / height)
        figure.legend(
            handles=bit_legend(), loc="upper left", bbox_to_anchor=place, ncol=3, borderaxespad=0,
            borderpad=0,
        )  # fmt: skip
    _write_ranges(ax, formats, widest)
    return style.finding(figure, _layout_finding(formats))


def _write_ranges(ax: Axes, formats: Sequence[Format], widest: int) -> None:
    """Write bits, smallest, largest and spacing of each format right of its boxes."""
    heads = ("bits", "smallest", "smallest normal", "largest", "next after 1")
    columns = (0.45, 1.35, 2.6, 3.45, 4.6)  # inches right of the widest format; right-aligned
    with style.styled():
        for head, inches in zip(heads, columns, strict=True):
            x = widest + inches / BIT
            text = {"ha": "right", "va": "center"}
            ax.text(x, -0.75, head, color=style.MUTED, fontsize=8.5, clip_on=False, **text)
            for row, of in enumerate(formats):
                values = (
                    str(of.bits),
                    power_text(of.smallest),
                    power_text(of.smallest_normal),
                    short(of.max),
                    f"1 + {power_text(of.epsilon)}",
                )
                cell = values[heads.index(head)]
                ax.text(x, row, cell, clip_on=False, gid=f"{of.name} {head}", **text)


def _layout_finding(formats: Sequence[Format]) -> str:
    told = [
        f"{of.name} reaches from {power_text(of.smallest)} to {short(of.max)} in steps of "
        f"{power_text(of.epsilon)} at 1"
        for of in formats
    ]
    return f"Exponent bits buy range, mantissa bits spacing: {'; '.join(told)}."
