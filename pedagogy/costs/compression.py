"""What compression should save: bytes of a file, FLOPs, and bytes held while training goes on.

A sparse weight in a file
-------------------------
A kept weight needs its value, `weight_bits`, and its place: the zeros since the last one, in
`gap_bits`. A longer gap needs a filler. If weights are pruned at random, with density p and
q = 1 - p, a gap has more than k zeros with probability q^k, so each kept weight has

    q^L / (1 - q^L)   fillers on average, L = 2^gap_bits - 1

Trained weights are not pruned at random: small ones lie together (the row of a dead input), other
gaps are shorter, and there are fewer fillers. Of 32 bits a weight, a layer keeps the share

    p (weight_bits + gap_bits) / 32 + 2^weight_bits / n            n weights, fp32 codebook

FLOPs and multiplications
-------------------------
A layer makes one multiplication for each weight and place. Han et al. print FLOPs, two for each;
Li et al. print multiplications and call them FLOP.

What training holds
-------------------
`training_bytes` counts what stays from step to step, with Adam in fp32, and the gradients. Masks
come on top; latent weights stay behind quantised and binary ones; shared weights leave their old
tensor (4 bytes) and an int64 index (8) for each weight, and only the codebook has gradient and
moments. During a step shared, quantised and binary layers make the full weight again, and its
gradient: at its peak a step holds about as much as that of the full network, or more.

Sources: Han et al. 2015 and 2016 (Deep Compression), Li et al. 2017, Rastegari et al. 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pedagogy.costs.published import quantity, table


class Layer(NamedTuple):
    """A convolution or (kernel 1, one place) a linear layer: weights without biases.

    `kernel`: numbers in a kernel, 9 for 3 by 3; `places`: where it is applied, height x width.
    """

    name: str
    inputs: int
    outputs: int
    kernel: int = 1
    places: int = 1
    groups: int = 1

    @property
    def weights(self) -> int:
        """Numbers in the weight."""
        return self.inputs // self.groups * self.outputs * self.kernel

    @property
    def multiplications(self) -> int:
        """Multiplications for one image; FLOPs are twice as many."""
        return self.weights * self.places


def _linear(names: str, *sizes: int) -> tuple[Layer, ...]:
    return tuple(Layer(n, *two) for n, two in zip(names.split(), pairwise(sizes), strict=True))


def _vgg(side: int, sizes: Sequence[int | None]) -> tuple[Layer, ...]:
    """3 by 3 convolutions; None halves the side of the image."""
    layers, inputs = [], 3
    for outputs in sizes:
        if outputs is None:
            side //= 2
            continue
        layers.append(Layer(f"Conv_{len(layers) + 1}", inputs, outputs, 9, side**2))
        inputs = outputs
    return tuple(layers)


_VGG = (64, 64, None, 128, 128, None, *[256] * 3, None, *[512] * 3, None, *[512] * 3)
LENET_300_100 = _linear("ip1 ip2 ip3", 784, 300, 100, 10)
LENET_5 = (
    Layer("conv1", 1, 20, 25, 24**2),
    Layer("conv2", 20, 50, 25, 8**2),
    *_linear("ip1 ip2", 800, 500, 10),
)
ALEXNET = (
    Layer("conv1", 3, 96, 121, 55**2),
    Layer("conv2", 96, 256, 25, 27**2, groups=2),
    Layer("conv3", 256, 384, 9, 13**2),
    Layer("conv4", 384, 384, 9, 13**2, groups=2),
    Layer("conv5", 384, 256, 9, 13**2, groups=2),
    *_linear("fc6 fc7 fc8", 9216, 4096, 4096, 1000),
)
VGG16 = (*_vgg(224, _VGG), *_linear("fc6 fc7 fc8", 25088, 4096, 4096, 1000))
VGG16_CIFAR = (*_vgg(32, _VGG), *_linear("Linear Linear2", 512, 512, 10))
NETWORKS = {2: LENET_300_100, 3: LENET_5, 4: ALEXNET, 5: VGG16}  # by the table's number


def sparse_bits(
    num_kept: int, weight_bits: float, gap_bits: float, num_fillers: float = 0
) -> float:
    """Bits of values and gaps; a filler has a gap only (in Deep Compression a value as well)."""
    return num_kept * (weight_bits + gap_bits) + num_fillers * gap_bits


def fillers_per_weight(density: float, gap_bits: int) -> float:
    """Fillers for each kept weight, if the weights are pruned at random.

    **Raises** ValueError for a density that is not above 0 and at most 1, or less than 1 bit.
    """
    if not 0 < density <= 1 or gap_bits < 1:
        raise ValueError(f"density {density}, {gap_bits} bits: above 0 to 1, and at least 1 bit")
    no_weight = (1 - density) ** (2**gap_bits - 1)
    return no_weight / (1 - no_weight)


def layer_rate(
    density: float,
    weight_bits: float,
    gap_bits: float,
    num_weights: int,
    codebook_bits: int | None = None,
) -> float:
    """The share of its 32-bit size that a pruned and shared layer keeps, without fillers.

    Huffman coded, the bits are means, and the codebook's size is given by `codebook_bits`.
    Source: Han et al. 2016, equation 1, with density and gaps.
    """
    codebook = 2 ** (weight_bits if codebook_bits is None else codebook_bits) / num_weights
    return density * (weight_bits + gap_bits) / 32 + codebook


def total_rate(layers: Sequence[Layer], rates: Sequence[float]) -> float:
    """The share that all layers together keep: each rate counts by the layer's weights."""
    kept = sum(layer.weights * rate for layer, rate in zip(layers, rates, strict=True))
    return kept / sum(layer.weights for layer in layers)


class Rate(NamedTuple):
    """What a layer keeps of its size: as printed, by the formula, and with random fillers."""

    layer: str
    weights: int
    printed: float
    derived: float
    with_fillers: float


def deep_compression(number: int) -> list[Rate]:
    """Table 2, 3, 4 or 5 (column P+Q) of Deep Compression again, layer by layer.

    Each filler takes a value and a gap, as in the paper. The share of kept weights is printed in
    whole percents: 4 % may be an eighth more or less. **Raises** ValueError for another table.
    """
    if number not in NETWORKS:
        raise ValueError(f"table {number}: choose one of {', '.join(map(str, NETWORKS))}")
    *rows, _ = [row for row in table("deepcompression_layers").rows if row["table"] == number]
    rates = []
    for layer, row in zip(NETWORKS[number], rows, strict=True):
        kept, gap_bits = quantity(row["pct_kept_P"]), row["ibits_PQ"]
        derived, filled = (
            layer_rate(kept * (1 + fillers), row["wbits_PQ"], gap_bits, layer.weights)
            for fillers in (0, fillers_per_weight(kept, gap_bits))
        )
        printed = quantity(row["rate_PQ"])
        rates.append(Rate(row["layer"], layer.weights, printed, derived, filled))
    return rates


def kept_flops(weights_kept: Sequence[float], activations: Sequence[float]) -> list[float]:
    """The share of each layer's FLOPs where weight and input are both other than zero.

    `activations`: share of a layer's *outputs* that are not zero; a layer reads those before it.
    Source: Han et al. 2015, tables 2 to 5.
    """
    read = [1.0, *activations[:-1]]
    return [kept * nonzero for kept, nonzero in zip(weights_kept, read, strict=True)]


def with_outputs(layers: Sequence[Layer], outputs: Sequence[int]) -> tuple[Layer, ...]:
    """A chain with fewer channels: each layer reads what the one before has left.

    **Raises** ValueError where a number is not from 1 to what the layer has.
    """
    shrunk, before, left = [], None, 0
    for layer, kept in zip(layers, outputs, strict=True):
        if not 1 <= kept <= layer.outputs:
            raise ValueError(f"{layer.name}: {kept} outputs, from 1 to {layer.outputs}")
        inputs = layer.inputs if before is None else left * layer.inputs // before.outputs
        shrunk.append(layer._replace(inputs=inputs, outputs=kept))
        before, left = layer, kept
    return tuple(shrunk)


def xnor_speedup(channels: int, kernel: int, bits_at_once: int = 64) -> float:
    """How many times fewer operations: binary ones 64 at once, and one scaling for each output.

    c N_w N_I multiply-adds become c N_w N_I / 64 and N_I: 64 c N_w / (c N_w + 64).
    Source: Rastegari et al. 2016, section 4.1.
    """
    work = channels * kernel
    return bits_at_once * work / (work + bits_at_once)


# bytes a compressed weight: parameter (or latent), gradient, moments, masks and indices
WAYS = {
    "full": (4, 4, 8, 0),
    "pruned": (4, 4, 8, 4),
    "shared": (4, 0, 0, 8),
    "pruned and shared": (4, 0, 0, 12),
    "quantised": (4, 4, 8, 0),
    "binary": (4, 4, 8, 0),
}


def training_bytes(
    way: str, num_weights: int, num_others: int, num_values: int = 0, teacher: int = 0
) -> dict[str, int]:
    """Bytes by kind held at the end of backward, with Adam in fp32.

    `num_others`: parameters that are trained as usual; `num_values`: in all codebooks; `teacher`:
    parameters of a network that only answers. Adam's counters and BatchNorm's are left out.
    Channels and low rank are "full" with fewer weights.
    **Raises** ValueError for another way.
    """
    if way not in WAYS:
        raise ValueError(f"no way {way!r}: choose one of {', '.join(WAYS)}")
    parameter, gradient, moments, masks = (size * num_weights for size in WAYS[way])
    trained = num_others + num_values
    return {
        "parameters": parameter + 4 * trained,
        "gradients": gradient + 4 * trained,
        "optimizer_state": moments + 8 * trained,
        "masks and indices": masks,
        "teacher": 4 * teacher,
    }
