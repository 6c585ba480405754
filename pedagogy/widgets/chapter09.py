"""Explorer of chapter 09: a threshold against accuracy, file size and the histogram of the weights.

Each layer that is pruned loses the same share of its weights, those of least magnitude, so that
every layer has a threshold of its own. The file holds gaps of five bits and fp32 values, without a
header; where little is pruned, the gaps make it larger than the dense one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial, update_wrapper

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from pedagogy.compression import magnitude_mask
from pedagogy.costs.compression import sparse_bits
from pedagogy.plots import style
from pedagogy.plots.compression import bins_of, draw_weights
from pedagogy.plots.memory import byte_axis
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

GAP_BITS = 5
SPARSITIES = [*range(0, 95, 5), 95, 97, 99]  # per cent, of the lines in the picture
Lines = Mapping[str, tuple[list[float], list[float]]]  # by scope or layer: accuracies, bytes


def pruned(network: Network, names: list[str], sparsity: float) -> dict[str, Tensor]:
    """The weights of these layers with the share `sparsity` of each at zero."""
    weights = {name: network.weights[name] for name in names}
    return {name: w * magnitude_mask(w, sparsity) for name, w in weights.items()}


def sparse_bytes(weight: Tensor) -> int:
    """Bytes of what is not zero: fp32 values, gaps of `GAP_BITS`, and the fillers of long gaps."""
    places = weight.flatten().nonzero().flatten()
    before = torch.cat([places.new_tensor([-1]), places[:-1]])
    fillers = int(((places - before - 1) // (2**GAP_BITS - 1)).sum())
    return math.ceil(sparse_bits(len(places), 32, GAP_BITS, fillers) / 8)


def file_bytes(network: Network, changed: Mapping[str, Tensor]) -> int:
    """Bytes of the whole network, the changed weights sparse and all else in fp32."""
    return network.bytes_besides(changed) + sum(map(sparse_bytes, changed.values()))


def line_of(network: Network, names: list[str]) -> tuple[list[float], list[float]]:
    """Accuracies and bytes at all `SPARSITIES`."""
    all_changed = [pruned(network, names, sparsity / 100) for sparsity in SPARSITIES]
    accuracies = [network.accuracy(changed) for changed in all_changed]
    return accuracies, [file_bytes(network, changed) for changed in all_changed]


def render_threshold(
    layer: str, scope: str, sparsity: int, network: Network, lines: Lines
) -> Figure:
    """Draw a layer's weights with their threshold, and what the network is worth without them."""
    changed = pruned(network, network.chosen(layer, scope), sparsity / 100)
    accuracy, size = network.accuracy(changed), file_bytes(network, changed)
    weight = network.weights[layer]
    kept = changed[layer][changed[layer] != 0].abs()
    threshold = kept.min().item() if sparsity and len(kept) else None
    where = scope if scope == ALL else layer
    weights = "all weights" if scope == ALL else f"{layer}'s weights"
    panels = new_panels(f"{sparsity}% of {weights} pruned, not trained on")
    draw_weights(panels.left, weight, bins_of([weight]), threshold)
    accuracies, sizes = lines[where]
    draw_track(
        panels.upper, {"": (SPARSITIES, accuracies)}, (sparsity, accuracy), "accuracy", network.full
    )
    draw_track(panels.lower, {"": (SPARSITIES, sizes)}, (sparsity, size), "file", network.bytes)
    accuracy_axis(panels.upper)
    with style.styled():
        panels.left.set_title(f"{layer}: what the threshold removes is hatched", fontsize=10)
        panels.left.set(xlabel="weight", ylabel="weights")
        panels.left.set_ylim(0, 1.1 * panels.left.dataLim.y1)
        panels.lower.set_xlabel("% of the weights pruned (dashed: the full net)")
        panels.lower.set_ylim(0, 1.08 * max(sizes))
        byte_axis(panels.lower.yaxis)
        panels.lower.yaxis.get_major_locator().set_params(nbins=3)
        panels.lower.set_xlim(-1, 100)
    at = f" ({layer}: all below {threshold:.2g})" if threshold else ""
    held, masks = 4 * network.bytes, 4 * sum(w.numel() for w in changed.values())
    return style.finding(
        panels.figure,
        f"With {sparsity}% of {weights} pruned{at}, accuracy is {percent(accuracy)} (full net: "
        f"{percent(network.full)}) and a file has {style.bytes_text(size)} instead of "
        f"{style.bytes_text(network.bytes)}, while training still holds "
        f"{style.bytes_text(held)} and masks of {style.bytes_text(masks)} on top.",
    )


def threshold_explorer(model: nn.Module, images: Tensor, labels: Tensor) -> Explorer:
    """Return the explorer of pruning without training on, for a trained network.

    `images` and `labels` judge it; the network is left as it is. Try this: half of the weights,
    nine in ten, and nine in ten of one layer alone.
    **Raises** ValueError for a network without linear layers.
    """
    network = Network(model, images, labels)
    lines = {name: line_of(network, [name]) for name in network.weights}
    lines[ALL] = line_of(network, list(network.weights))
    render = partial(render_threshold, network=network, lines=lines)
    return Explorer(
        update_wrapper(render, render_threshold),
        layer=menu(network.options, network.largest),
        scope=SCOPES,
        sparsity=(0, 99, 80),
        try_this=_tries(network, lines),
    )


def _tries(network: Network, lines: Lines) -> tuple[Try, ...]:
    """Three settings; what they show is computed here."""
    plain = {"layer": network.largest, "scope": ALL, "sparsity": 50}
    half, most = (SPARSITIES.index(percentage) for percentage in (50, 90))
    accuracies, sizes = lines[ALL]
    alone = lines[network.largest][0][most]
    return (
        Try(
            "half of them",
            f"half of all weights, and accuracy is {percent(accuracies[half])} instead of "
            f"{percent(network.full)}; the file has {sizes[half] / network.bytes:.0%} of the bytes",
            plain,
        ),
        Try(
            "nine in ten",
            f"accuracy {percent(accuracies[most])}, file {sizes[most] / network.bytes:.0%}: this "
            "is what the zeros cost without training on",
            {**plain, "sparsity": 90},
        ),
        Try(
            "one layer only",
            f"nine in ten of {network.largest}, the largest layer, alone: {percent(alone)}",
            {**plain, "scope": ONE, "sparsity": 90},
        ),
    )
