"""Explorer of chapter 09: bits for each weight against error and accuracy, two ways of using them.

*Quantised*: values at equal distances, computed from one scale; one bit is +scale or -scale, a
scale for each output. *Shared*: as many values, placed by k-means (ten rounds of it here) and kept
in a codebook. The file holds the bits, in fp32 the codebook or the scales, and all else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial, update_wrapper

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from pedagogy.compression import binarize, quantize, share_weights
from pedagogy.plots import style
from pedagogy.plots.compression import bins_of, draw_weights
from pedagogy.plots.precision import percent
from pedagogy.widgets.chapter09_network import (
    ALL,
    SCOPES,
    Network,
    accuracy_axis,
    draw_track,
    new_panels,
)
from pedagogy.widgets.controls import menu
from pedagogy.widgets.explorer import Explorer, Try

QUANTISED, SHARED = WAYS = ["quantised", "shared"]
BITS = range(1, 9)
ROUNDS = 10
Changed = Mapping[tuple[str, int], dict[str, Tensor]]  # by way and bits: the weights of all layers


def in_bits(weight: Tensor, way: str, bits: int) -> Tensor:
    """The weight in so few bits."""
    if way == SHARED:
        codebook, indices = share_weights(weight, min(2**bits, weight.numel()), max_rounds=ROUNDS)
        return codebook[indices]
    return quantize(weight, bits) if bits > 1 else binarize(weight, by_output=True)


def weight_bytes(weight: Tensor, way: str, bits: int) -> int:
    """Bytes of one weight in a file: its bits, and its codebook or its scales."""
    quantised_values = len(weight) if bits == 1 else 1  # binary: a scale for each output
    values = 2**bits if way == SHARED else quantised_values
    return math.ceil(weight.numel() * bits / 8) + 4 * values


def relative_error(weight: Tensor, changed: Tensor) -> float:
    """The norm of the difference over the norm of the weight."""
    return ((changed - weight).norm() / weight.norm()).item()


Lines = Mapping[str, dict[str, tuple[range, list[float]]]]  # by scope or layer, then by way


def render_bits(
    layer: str,
    scope: str,
    way: str,
    bits: int,
    network: Network,
    changed: Changed,
    lines: tuple[Lines, Lines],
) -> Figure:
    """Draw a layer's values and what they cost: its error, and the network's accuracy."""
    names = network.chosen(layer, scope)
    now = {name: changed[way, bits][name] for name in names}
    accuracy, error = network.accuracy(now), relative_error(network.weights[layer], now[layer])
    size = network.bytes_besides(names) + sum(weight_bytes(w, way, bits) for w in now.values())
    values = now[layer].unique()
    where = "all weights" if scope == ALL else f"{layer}'s weights"
    in_so_many = f"{way} in {bits} {'bits' if bits > 1 else 'bit'}"
    panels = new_panels(f"{in_so_many.capitalize()}: {where}, not trained on")
    draw_weights(panels.left, now[layer], bins_of([network.weights[layer]]), values=values)
    errors, accuracies = lines
    draw_track(panels.upper, errors[layer], (bits, error), "relative error")
    track = accuracies[scope if scope == ALL else layer]
    draw_track(panels.lower, track, (bits, accuracy), "accuracy", network.full)
    accuracy_axis(panels.lower)
    with style.styled():
        panels.left.set_title(f"{layer}: the values that are left", fontsize=10)
        panels.left.set(xlabel="weight", ylabel="weights, zeros left out")
        panels.left.set_ylim(0, 1.1 * panels.left.dataLim.y1)
        panels.upper.set_ylim(0, 1.05 * max(max(y) for _, y in errors[layer].values()))
        panels.upper.set_title(layer, fontsize=10)
        panels.upper.legend(handles=panels.upper.get_lines()[: len(WAYS)], handlelength=2.4)
        panels.lower.set(xlabel="bits for each weight (dashed: fp32)", xlim=(0.9, 8.1))
        panels.lower.set_xticks([1, 2, 4, 8])
    return style.finding(
        panels.figure,
        f"With {where} {in_so_many}, {layer} has {len(values)} values and an error of "
        f"{percent(error)}, accuracy is {percent(accuracy)} (full net: {percent(network.full)}), "
        f"and a file has {style.bytes_text(size)} instead of {style.bytes_text(network.bytes)}.",
    )


def lines_of(network: Network, changed: Changed) -> tuple[Lines, Lines]:
    """Errors by layer and accuracies by scope, of both ways, over all bits."""
    errors, accuracies = {}, {}
    scopes = {ALL: list(network.weights), **{name: [name] for name in network.weights}}
    for scope, names in scopes.items():
        accuracies[scope] = {
            way: (BITS, [network.accuracy({n: changed[way, b][n] for n in names}) for b in BITS])
            for way in WAYS
        }
    for name, weight in network.weights.items():
        errors[name] = {
            way: (BITS, [relative_error(weight, changed[way, b][name]) for b in BITS])
            for way in WAYS
        }
    return errors, accuracies


def bits_explorer(model: nn.Module, images: Tensor, labels: Tensor) -> Explorer:
    """Return the explorer of few bits without training on, for a trained network.

    `images` and `labels` judge it; the network is left as it is. Try this: eight bits cost nothing;
    at two bits it matters where the values lie; and one bit is less than two only in name.
    **Raises** ValueError for a network without linear layers.
    """
    network = Network(model, images, labels)
    with torch.no_grad():
        changed = {
            (way, bits): {name: in_bits(w, way, bits) for name, w in network.weights.items()}
            for way in WAYS
            for bits in BITS
        }
    lines = lines_of(network, changed)
    render = partial(render_bits, network=network, changed=changed, lines=lines)
    return Explorer(
        update_wrapper(render, render_bits),
        layer=menu(network.options, network.largest),
        scope=SCOPES,
        way=WAYS,
        bits=(1, 8, 3),
        try_this=_tries(network, lines[1][ALL]),
    )


def _tries(network: Network, accuracies: Mapping[str, tuple[range, list[float]]]) -> tuple:
    """Three settings; what they show is computed here."""
    plain = {"layer": network.largest, "scope": ALL, "way": QUANTISED}
    quantised, shared = (dict(zip(*accuracies[way], strict=True)) for way in WAYS)
    return (
        Try(
            "eight bits",
            f"a quarter of the bytes, and accuracy {percent(quantised[8])} (full net: "
            f"{percent(network.full)})",
            {**plain, "bits": 8},
        ),
        Try(
            "two bits, shared",
            f"four values placed by k-means: {percent(shared[2])}; three evenly spaced ones: "
            f"{percent(quantised[2])}",
            {**plain, "way": SHARED, "bits": 2},
        ),
        Try(
            "one bit",
            f"two values for each output, placed at the mean magnitude: {percent(quantised[1])}, "
            f"where two bits with the largest weight as scale gave {percent(quantised[2])}",
            {**plain, "bits": 1},
        ),
    )
