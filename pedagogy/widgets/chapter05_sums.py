"""Explorer of chapter 05: what a long sum loses, by accumulator, terms, and how it is cut.

Sums are computed here by `pedagogy.precision.dot`, term after term, each result rounded to the
accumulator. Cut into chunks, each is summed on its own and the partial sums are then added, in the
same accumulator: no sum is long any more. So do real kernels, and the error grows with the length
of a chunk and the number of chunks instead of their product.

All terms are fp16 numbers; the exact sum is that of float64.
Source: Higham 1993, "The accuracy of floating point summation", for cutting a sum.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pedagogy.plots import style
from pedagogy.plots.curves import draw_curves, plain_log
from pedagogy.plots.precision import percent
from pedagogy.precision import FORMATS, dot
from pedagogy.widgets.controls import choice
from pedagogy.widgets.explorer import Explorer, Try

LENGTHS = [2**i for i in range(4, 13)]  # 16 to 4096
ACCUMULATORS = ("fp16", "bf16", "fp32")
TERMS = {
    "ones": lambda n, generator: torch.ones(n),
    "positive": lambda n, generator: torch.rand(n, generator=generator),
    "mixed": lambda n, generator: torch.randn(n, generator=generator),
}
CHUNKS = [8, 16, 32, 64, 128]
LOWEST = 1e-8  # where an error of 0 is drawn


def terms(distribution: str) -> Tensor:
    """The longest sum's terms, (4096,), fp16 numbers in fp32; shorter sums take the first ones."""
    made = TERMS[distribution](LENGTHS[-1], torch.Generator().manual_seed(0))
    return made.half().float()


@lru_cache(maxsize=64)
def sums(distribution: str, accumulator: str, chunk: int | None) -> tuple[float, ...]:
    """The sum of the first n terms, for each of `LENGTHS`; in chunks, or one after the other.

    A shorter sum is the longest with zeros at its end, which change nothing.
    """
    values, to = terms(distribution), FORMATS[accumulator].dtype
    places = torch.arange(len(values))
    rows = torch.stack([values * (places < length) for length in LENGTHS])  # (lengths, terms)
    parts = rows.unflatten(-1, (-1, chunk or len(values)))  # (lengths, chunks, terms of a chunk)
    partial = dot(parts, torch.ones_like(parts), torch.float16, to)
    total = dot(partial, torch.ones_like(partial), to, to) if chunk else partial[:, 0]
    return tuple(total.double().tolist())


def exact(distribution: str) -> list[float]:
    """The sums of the first n terms in float64, for each of `LENGTHS`."""
    total = terms(distribution).double().cumsum(0)
    return [total[length - 1].item() for length in LENGTHS]


def errors(distribution: str, accumulator: str, chunk: int | None) -> list[float]:
    """|sum - exact| / sum of the terms' sizes, for each of `LENGTHS`: 0 for an exact sum.

    Sizes, because a sum of mixed signs may itself be near 0.
    """
    sizes = terms(distribution).double().abs().cumsum(0)
    found, right = sums(distribution, accumulator, chunk), exact(distribution)
    return [
        abs(one - true) / sizes[length - 1].item()
        for one, true, length in zip(found, right, LENGTHS, strict=True)
    ]


def render_accumulation_error(length: int, accumulator: str, terms: str, chunk: int) -> Figure:
    """Draw the error of a sum against its length, and the numbers at one length."""
    figure = style.new_figure(style.WIDTH, 3.9)
    ax = style.add_axes(figure, 0.95, 0.6, 5.6, 2.75)
    at = LENGTHS.index(length)
    lines = {
        "one after the other": errors(terms, accumulator, None),
        f"in chunks of {chunk}": errors(terms, accumulator, chunk),
    }
    _draw_errors(ax, lines, length)
    rows = {"exact": exact(terms)[at]}
    rows["one after the other"] = sums(terms, accumulator, None)[at]
    rows[f"in chunks of {chunk}"] = sums(terms, accumulator, chunk)[at]
    with style.styled():
        look = {"fontsize": 12, "fontweight": "bold", "gid": "title"}
        title = f"{length:,} terms ({terms}) added in {accumulator}"
        figure.text(0.012, 1 - 0.28 / 3.9, title, **look)
        for row, (name, value) in enumerate(rows.items()):
            y = 0.78 - 0.16 * row
            figure.text(0.69, y, name, color=style.MUTED)
            figure.text(0.69, y - 0.065, f"{value:,.7g}", fontsize=13, gid=name)
    straight, cut = (percent(line[at]) for line in lines.values())
    right, *found = (f"{value:,.7g}" for value in rows.values())
    return style.finding(
        figure,
        f"{length:,} terms ({terms}) added in {accumulator} give {found[0]} one after the other, "
        f"{found[1]} in chunks of {chunk}; exact is {right}. The errors are {straight} and {cut} "
        "of the terms' sizes.",
    )


def _draw_errors(ax: Axes, lines: dict[str, list[float]], length: int) -> None:
    shown = {name: (LENGTHS, [max(one, LOWEST) for one in line]) for name, line in lines.items()}
    with style.styled():
        plain_log(ax.xaxis, 2.0)
        plain_log(ax.yaxis)
        draw_curves(ax, shown, markers=True)
        ax.axvline(length, color=style.INK, linestyle="--", linewidth=1.2, gid="now")
        ax.set_ylim(LOWEST / 2, 2)
        ax.set_xlim(LENGTHS[0] / 1.3, LENGTHS[-1] * 1.3)
        ax.set_xticks(LENGTHS, [str(one) for one in LENGTHS])
        ax.set_yticks([10.0**-i for i in range(0, 9, 2)], ["1", "0.01", "1e-4", "1e-6", "0"])
        ax.set_xlabel("terms")
        ax.set_ylabel("error, of the terms' sizes")
        ax.legend(loc="upper left")


def accumulation_error_explorer() -> Explorer:
    """Return the explorer of long sums.

    Try this: add 4,096 ones in fp16: the sum stops at 2,048. In bf16 it stops at 256. Add mixed
    terms: their sum stays small, so that little is swallowed.
    """
    plain = {"length": LENGTHS[-1], "terms": "ones", "chunk": 32}
    return Explorer(
        render_accumulation_error,
        length=choice(LENGTHS, LENGTHS[-1]),
        accumulator=list(ACCUMULATORS),
        terms=list(TERMS),
        chunk=choice(CHUNKS, 32),
        try_this=(
            Try(
                "ones in fp16",
                "4,096 ones give 2,048: there 1 is half the distance to the next number; in "
                "chunks of 32 nothing is lost",
                {**plain, "accumulator": "fp16"},
            ),
            Try(
                "ones in bf16",
                "the sum stops at 256, with 7 bits of mantissa: the range of fp32 does not help",
                {**plain, "accumulator": "bf16"},
            ),
            Try(
                "mixed signs",
                "terms around zero: the sum stays small, and the error below 0.1 %",
                {**plain, "accumulator": "fp16", "terms": "mixed"},
            ),
        ),
    )
