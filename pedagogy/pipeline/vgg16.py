"""VGG-16 as a partitioner sees it: each layer's time, output and weights, from its shape alone.

Thirteen convolutions take nearly all of the time, three dense layers hold nearly all of the
weights. So no other network shows as clearly what replicated stages are for, and PipeDream's paper
uses it for that. Seconds are FLOPs over a speed: a profile on a real device differs from layer to
layer, but not in this.

Source of the shapes: Simonyan and Zisserman 2015, configuration D.
"""

from __future__ import annotations

from pedagogy.pipeline.partition import LayerCost

BLOCKS = ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3))
DENSE = ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000))


def vgg16_layers(batch: int = 64, flops_per_second: float = 8e12) -> list[LayerCost]:
    """Thirteen convolutions, five poolings (which take no time) and three dense layers, in fp32.

    Backward counts as two forwards. Biases are left out.
    """

    def layer(outputs: int, weights: int, uses: int = 1) -> LayerCost:
        flops = 3 * 2 * weights * uses * batch  # a multiply and an add for each use of a weight
        return LayerCost(flops / flops_per_second, 4 * outputs * batch, 4 * weights)

    layers, inputs = [], 3
    for size, channels, depth in BLOCKS:
        for _ in range(depth):
            layers.append(layer(channels * size**2, 9 * inputs * channels, uses=size**2))
            inputs = channels
        layers.append(layer(channels * (size // 2) ** 2, 0))
    return layers + [layer(outputs, inputs * outputs) for inputs, outputs in DENSE]
