"""What the explorers of chapter 09 share: a trained network with other weights, and their picture.

The weights are replaced for one evaluation and the network is left as it is, so that a move of a
control costs one pass over the test images. Nothing is trained on here: the chapter's own runs
show how much of the accuracy comes back when it is.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn
from torch.func import functional_call

from pedagogy.plots import style
from pedagogy.plots.curves import draw_curves

ALL, ONE = SCOPES = ["all layers", "this layer"]
Track = Mapping[str, tuple[Sequence[float], Sequence[float]]]


class Network:
    """A copy of a trained network, its linear layers by name, and the images to judge it by.

    **Raises** ValueError for a network without linear layers, or labels of another number than
    images.
    """

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        modules = self.model.named_modules()
        self.weights = {name: m.weight for name, m in modules if isinstance(m, nn.Linear)}
        if not self.weights or len(images) != len(labels):
            raise ValueError(
                f"{len(self.weights)} linear layers, {len(images)} images, {len(labels)} labels: "
                "at least one layer, and as many labels as images"
            )
        self.images, self.labels = images, labels
        self.full = self.accuracy({})
        self.bytes = 4 * sum(parameter.numel() for parameter in self.model.parameters())

    @torch.no_grad()
    def accuracy(self, changed: Mapping[str, Tensor]) -> float:
        """The share of images that are recognised with these weights instead, by layer."""
        instead = {f"{name}.weight": weight for name, weight in changed.items()}
        found = functional_call(self.model, instead, (self.images,)).argmax(1)
        return (found == self.labels).float().mean().item()

    def chosen(self, layer: str, scope: str) -> list[str]:
        """The layers that are changed: all of them, or the one."""
        return list(self.weights) if scope == ALL else [layer]

    def bytes_besides(self, names: Collection[str]) -> int:
        """Bytes in fp32 of all parameters but the weights of these layers."""
        return self.bytes - 4 * sum(self.weights[name].numel() for name in names)

    @property
    def options(self) -> list[tuple[str, str]]:
        """The layers for a menu."""
        return [(f"{name}, {w.shape[0]} x {w.shape[1]}", name) for name, w in self.weights.items()]

    @property
    def largest(self) -> str:
        """The layer with the most weights."""
        return max(self.weights, key=lambda name: self.weights[name].numel())


class Panels(NamedTuple):
    """A figure with a tall panel at the left and two at the right."""

    figure: Figure
    left: Axes
    upper: Axes
    lower: Axes


def new_panels(title: str) -> Panels:
    """An empty picture, the same size for all explorers of the chapter."""
    figure = style.new_figure(style.WIDTH, 4.4)
    with style.styled():
        figure.text(0.012, 0.94, title, fontsize=12, fontweight="bold", gid="title")
    left = style.add_axes(figure, 0.75, 0.6, 4.1, 3.0)
    lower = style.add_axes(figure, 5.85, 0.6, 3.9, 1.4)
    upper = style.add_axes(figure, 5.85, 2.35, 3.9, 1.4, sharex=lower)
    upper.tick_params(labelbottom=False)
    for axis in (left.xaxis, left.yaxis, lower.xaxis, lower.yaxis, upper.yaxis):
        axis.set_major_locator(MaxNLocator(3))  # ticks are most of the time of drawing
    return Panels(figure, left, upper, lower)


def draw_track(
    ax: Axes, curves: Track, chosen: tuple[float, float], y_label: str, level: float | None = None
) -> None:
    """Draw what all settings give as lines, and the chosen one as a mark; `level` is dashed."""
    with style.styled():
        draw_curves(ax, curves)
        mark = {"marker": "o", "markersize": 9, "color": style.ACCENT, "zorder": 6}
        ax.plot(*[[one] for one in chosen], gid="chosen", clip_on=False, **mark)
        if level is not None:
            look = {"color": style.MUTED, "linewidth": 1.1, "linestyle": (0, (4, 2)), "zorder": 1}
            ax.axhline(level, gid="level", **look)
        ax.set_ylabel(y_label)


def accuracy_axis(ax: Axes) -> None:
    """From 0 to 100 %."""
    ax.set_ylim(0, 1.04)
    ax.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
