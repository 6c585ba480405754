"""Explorer of chapter 10: an estimate from rows and columns against every element's own number.

The gradients of some layers were recorded step by step. Up to a step, each optimizer's second
moment is built from them twice: once with a number for each element, once from what it keeps.

    Adafactor    the mean that it would keep, its rate 1 - t^-0.8, against row x column
    SM3-I, II    the sum of all squares, against the bound of its covers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, update_wrapper

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pedagogy.optimizers.adafactor import second_moment
from pedagogy.optimizers.sm3 import sm3_one, sm3_two
from pedagogy.plots import style
from pedagogy.plots.optimizers import (
    SHADES,
    draw_second_moment,
    powers,
    second_moment_text,
)
from pedagogy.plots.precision import percent
from pedagogy.widgets.controls import menu
from pedagogy.widgets.explorer import Explorer, Try

WAYS = ["Adafactor", "SM3-II", "SM3-I"]
SMALLEST = 1e-30  # Adafactor's eps, added to the squares
Moments = Callable[[str, int, str], tuple[Tensor, Tensor]]  # by layer, step and way


def moments(gradients: Sequence[Tensor], way: str) -> tuple[Tensor, Tensor]:
    """The true second moment after these steps, and the estimate of it: (n, m) each."""
    state, covers = {}, [gradients[0].new_zeros(size) for size in gradients[0].shape]
    true = torch.zeros_like(gradients[0])
    for step, gradient in enumerate(gradients, start=1):
        square = gradient.square()
        if way == "Adafactor":
            kept = 1 - step**-0.8
            true = true.lerp(square, 1 - kept)
            estimate = second_moment(square + SMALLEST, state, kept)
        else:
            true = true + square
            estimate = (sm3_two if way == "SM3-II" else sm3_one)(covers, square)
    return true, estimate


def left_out(true: Tensor, estimate: Tensor) -> float:
    """The norm of the difference over the norm of what is true."""
    return ((estimate - true).norm() / true.norm()).item()


def best_of_rank_one(true: Tensor) -> float:
    """What the best product of a column and a row would leave out, in the same measure."""
    values = torch.linalg.svdvals(true)
    return (values[1:].norm() / values.norm()).item()


def render_factored(layer: str, step: int, way: str, of: Moments) -> Figure:
    """Draw the true second moment, its estimate, and one against the other."""
    true, estimate = of(layer, step, way)
    n, m = true.shape
    figure = style.new_figure(style.WIDTH, 4.1)
    _draw_maps(style.add_axes(figure, 0.65, 0.6, 5.3, 2.7), true, estimate)
    right = style.add_axes(figure, 6.75, 0.6, 3.0, 2.7)
    draw_second_moment(right, true, estimate)
    with style.styled():
        right.set_ylabel("estimate, power of 10")
        title = f"{layer}, {n} x {m}, step {step}: {way} keeps {n + m:,} numbers of {n * m:,}"
        figure.text(0.012, 0.93, title, fontsize=12, fontweight="bold", gid="title")
    told = second_moment_text(way, true, estimate)
    error, best = left_out(true, estimate), best_of_rank_one(true)
    return style.finding(
        figure,
        f"After step {step} {told}; the norm of its error is {percent(error)} of the true one's, "
        f"where the best product of a column and a row leaves {percent(best)}.",
    )


def _draw_maps(ax: Axes, true: Tensor, estimate: Tensor) -> None:
    """Draw both matrices side by side, darker where larger, on one scale of powers of ten."""
    x, y = powers(true, estimate)
    low, high = np.floor(np.quantile(x, 0.01)), np.ceil(max(x.max(), y.max()))
    n, m = true.shape
    gap = true.new_full((n, max(m // 12, 1)), torch.nan)
    both = torch.cat([true, gap, estimate], 1).clamp(min=10**low).log10()
    with style.styled():
        look = {"cmap": SHADES, "vmin": low, "vmax": high, "aspect": "auto"}
        ax.imshow(both.numpy(), gid="elements", interpolation="nearest", **look)
        ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        ax.set_xticks([(m - 1) / 2, m + gap.shape[1] + (m - 1) / 2], ["true", "estimate"])
        ax.tick_params(axis="x", length=0)
        ax.set_xlabel(f"columns (pale 1e{low:.0f}, dark 1e{high:.0f})")
        ax.set_ylabel("row")


def factored_explorer(records: Mapping[str, Sequence[Tensor]]) -> Explorer:
    """Return the explorer of factored and covered second moments.

    records: {layer: its gradients of all steps in order, each (n, m), or one such matrix}. Try
    this: after one step, after all of them, and with SM3, whose bound is never below.
    **Raises** ValueError without a layer, for gradients that are no matrices, or for layers of
    different numbers of steps.
    """
    steps = {name: _matrices(name, recorded) for name, recorded in records.items()}
    lengths = {name: len(matrices) for name, matrices in steps.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"recorded steps by layer {lengths}: 1 or more, and the same for all")

    @lru_cache(maxsize=256)
    def of(layer: str, step: int, way: str) -> tuple[Tensor, Tensor]:
        return moments(steps[layer][:step], way)

    first, last = next(iter(steps)), next(iter(lengths.values()))
    render = partial(render_factored, of=of)
    return Explorer(
        update_wrapper(render, render_factored),
        layer=menu(list(steps), first),
        step=(1, last, last),
        way=WAYS,
        try_this=_tries(first, last, of),
    )


def _matrices(name: str, recorded: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The gradients of one layer as a list of matrices, detached."""
    alone = isinstance(recorded, Tensor) and recorded.dim() == 2
    matrices = [one.detach().float() for one in ([recorded] if alone else recorded)]
    shapes = {tuple(one.shape) for one in matrices}
    if len(shapes) > 1 or any(len(shape) != 2 for shape in shapes):
        raise ValueError(
            f"{name!r} has gradients of shapes {sorted(shapes)}: matrices of one shape"
        )
    return matrices


def _tries(layer: str, last: int, of: Moments) -> tuple[Try, ...]:
    """Three settings; what they show is computed here."""
    plain = {"layer": layer, "step": last, "way": "Adafactor"}
    errors = {step: percent(left_out(*of(layer, step, "Adafactor"))) for step in (1, last)}
    true, bound = of(layer, last, "SM3-II")
    below = int((bound < true * (1 - 1e-5)).sum())
    loose = (bound / true.clamp(min=SMALLEST))[true > 0].median().item()
    return (
        Try("one step", f"the error is {errors[1]} of the norm", {**plain, "step": 1}),
        Try(f"all {last} steps", f"the mean of many: {errors[last]}", plain),
        Try(
            "SM3's bound",
            f"below the true sum for {below} elements, and {loose:.2g} times it in the median",
            {**plain, "way": "SM3-II"},
        ),
    )
