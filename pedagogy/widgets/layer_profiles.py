"""Models as lists of layer costs, for the partitioner's explorer: computed, not measured.

A layer takes three times its forward's FLOPs (forward, and backward twice) at `FLOPS` a second;
bytes are those of fp32. The chapter itself uses a real profile of its own small model.
"""

from __future__ import annotations

from pedagogy.pipeline.partition import LayerCost
from pedagogy.pipeline.vgg16 import BLOCKS, DENSE, vgg16_layers

FLOPS, BYTES = 8e12, 4


def even() -> list[LayerCost]:
    """Twelve equal layers: 10 ms, 10 MB of output, 10 MB of weights."""
    return [LayerCost(10e-3, 10e6, 10e6)] * 12


def gpt_with_head(hidden: int = 768, vocabulary: int = 50257) -> list[LayerCost]:
    """An embedding, twelve transformer blocks, and a head over the vocabulary: 8 x 1024 tokens."""
    batch, sequence = 8, 1024
    tokens = batch * sequence
    output = BYTES * tokens * hidden
    block = tokens * (24 * hidden**2 + 4 * sequence * hidden)
    head = 2 * tokens * hidden * vocabulary
    table = BYTES * hidden * vocabulary
    return [
        LayerCost(0.5e-3, output, table),
        *[LayerCost(3 * block / FLOPS, output, BYTES * 12 * hidden**2)] * 12,
        LayerCost(3 * head / FLOPS, BYTES * tokens * vocabulary, table),
    ]


PROFILES = {"VGG-16": vgg16_layers, "GPT with a head": gpt_with_head, "even": even}
KINDS = {
    "VGG-16": [kind for *_, depth in BLOCKS for kind in (*["conv"] * depth, "pool")]
    + ["dense"] * len(DENSE),
    "GPT with a head": ["embed", *["block"] * 12, "head"],
    "even": ["layer"] * 12,
}
