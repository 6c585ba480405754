"""Explorer of chapter 09: the rank of a layer against error, parameters and accuracy.

A layer of m by n becomes a product of (m, r) and (r, n), the best one there is of rank r. Its error
is known before it is made: the root of the squares of the singular values that are dropped. Biases
stay and are counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, update_wrapper
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from pedagogy.compression import break_even_rank
from pedagogy.plots import style
from pedagogy.plots.compression import KEPT, REMOVED
from pedagogy.plots.lanes import add_boxes
from pedagogy.plots.precision import percent
from pedagogy.widgets.chapter09_network import (
    ALL,
    ONE,
    SCOPES,
    Network,
    accuracy_axis,
    draw_track,
    new_panels,
)
from pedagogy.widgets.controls import menu
from pedagogy.widgets.explorer import Explorer, Try


class Factors(NamedTuple):
    """A weight as u diag(s) v: (m, k), (k,), (k, n), with k = min(m, n)."""

    u: Tensor
    s: Tensor
    v: Tensor

    def of_rank(self, rank: int) -> Tensor:
        """The best approximation of this rank; beyond k the weight itself."""
        return (self.u[:, :rank] * self.s[:rank]) @ self.v[:rank]

    def error(self, rank: int) -> float:
        """Its relative error."""
        return (self.s[rank:].norm() / self.s.norm()).item()

    def parameters(self, rank: int) -> tuple[int, int]:
        """Numbers of the two thin matrices, and of the weight."""
        m, n = len(self.u), self.v.shape[1]
        return min(rank, len(self.s)) * (m + n), m * n


Accuracies = Mapping[str, list[float]]  # by scope or layer, of ranks from 1 on


def render_rank(
    layer: str,
    scope: str,
    rank: int,
    network: Network,
    factors: Mapping[str, Factors],
    accuracies: Accuracies,
) -> Figure:
    """Draw what a layer's rank leaves out, and what the network is worth without it."""
    mine = factors[layer]
    rank = min(rank, len(mine.s))
    names = network.chosen(layer, scope)
    accuracy = network.accuracy({name: factors[name].of_rank(rank) for name in names})
    thin, whole = mine.parameters(rank)
    even = break_even_rank(len(mine.u), mine.v.shape[1])
    ranks = range(1, len(mine.s) + 1)
    of = scope if scope == ALL else layer
    panels = new_panels(f"Rank {rank}: {of}, not trained on")
    errors = [mine.error(one) for one in ranks]
    draw_track(panels.upper, {"": (ranks, errors)}, (rank, errors[rank - 1]), "relative error")
    found = {"": (ranks, accuracies[of][: len(ranks)])}
    draw_track(panels.lower, found, (rank, accuracy), "accuracy", network.full)
    accuracy_axis(panels.lower)
    with style.styled():
        _draw_values(panels.left, (mine.s / mine.s[0]).tolist(), rank)
        panels.left.set_title(f"{layer}: hatched ones are dropped", fontsize=10)
        look = {"color": style.ACCENT, "linewidth": 1.3, "linestyle": (0, (4, 2))}
        for ax in (panels.left, panels.upper, panels.lower):
            ax.axvline(even, gid="break-even", **look)
        panels.upper.set_ylim(0, 1.04)
        panels.upper.set_title(layer, fontsize=10)
        panels.lower.set_xlabel(f"rank (dashed: {layer} breaks even at {even})")
        panels.lower.set_xlim(0, len(ranks) + 1)
    smaller = "smaller" if thin < whole else "not smaller"
    return style.finding(
        panels.figure,
        f"With rank {rank} {layer} has {thin:,} numbers, {thin / whole:.2f} times its {whole:,}: "
        f"{smaller}, as it breaks even at {even}; its error is {percent(errors[rank - 1])}, and "
        f"with {of} cut so accuracy is {percent(accuracy)} (full net: {percent(network.full)}).",
    )


def _draw_values(ax: Axes, sizes: list[float], rank: int) -> None:
    """Draw the singular values, kept ones full and dropped ones hatched."""
    bars = [
        [(i + 0.6, 0), (i + 0.6, size), (i + 1.4, size), (i + 1.4, 0)]
        for i, size in enumerate(sizes)
    ]
    add_boxes(ax, "kept", bars[:rank], *KEPT, linewidths=0)
    add_boxes(ax, "dropped", bars[rank:], *REMOVED, linewidths=0)
    ax.set(xlim=(0, len(sizes) + 1), ylim=(0, 1.05), xlabel="number")
    ax.set_ylabel("singular value, of the largest")


def rank_explorer(model: nn.Module, images: Tensor, labels: Tensor) -> Explorer:
    """Return the explorer of low rank without training on, for a trained network.

    `images` and `labels` judge it; the network is left as it is. Ranks beyond a layer's own are its
    own. Try this: what breaks even, what 80 % of the ranks cost, and how few will do.
    **Raises** ValueError for a network without linear layers.
    """
    network = Network(model, images, labels)
    factors = {
        name: Factors(*torch.linalg.svd(weight, full_matrices=False))
        for name, weight in network.weights.items()
    }
    most = max(len(one.s) for one in factors.values())
    scopes = {ALL: list(factors), **{name: [name] for name in factors}}
    accuracies = {
        scope: [
            network.accuracy({name: factors[name].of_rank(rank) for name in names})
            for rank in range(1, most + 1)
        ]
        for scope, names in scopes.items()
    }
    render = partial(render_rank, network=network, factors=factors, accuracies=accuracies)
    return Explorer(
        update_wrapper(render, render_rank),
        layer=menu(network.options, network.largest),
        scope=SCOPES,
        rank=(1, most, min(16, most)),
        try_this=_tries(network, factors, accuracies),
    )


def _tries(
    network: Network, factors: Mapping[str, Factors], accuracies: Accuracies
) -> tuple[Try, ...]:
    """Three settings; what they show is computed here."""
    layer = network.largest
    mine, found = factors[layer], accuracies[layer]
    plain = {"layer": layer, "scope": ONE}
    even = break_even_rank(len(mine.u), mine.v.shape[1])
    most = round(0.8 * len(mine.s))
    thin, whole = mine.parameters(most)
    few = next(i for i, one in enumerate(found, start=1) if one >= network.full - 0.01)
    return (
        Try(
            "break-even",
            f"rank {even} of {layer} has {mine.parameters(even)[0] / whole:.0%} of its numbers and "
            f"an error of {percent(mine.error(even))}: nothing is saved",
            {**plain, "rank": even},
        ),
        Try(
            "80% of the ranks",
            f"rank {most} of {len(mine.s)} is {thin / whole:.2f} times the layer",
            {**plain, "rank": most},
        ),
        Try(
            "few will do",
            f"rank {few} is the first within a point of the full net: an error of "
            f"{percent(mine.error(few))} in {layer}, and {mine.parameters(few)[0] / whole:.0%} of "
            "its numbers",
            {**plain, "rank": few},
        ),
    )
