"""What recomputation keeps, and what it runs again: bounds, a published net, and our GPT.

A chain cut into segments
-------------------------
Of n layers that save one unit each, k segments keep their k inputs, and, while one is worked on,
the n/k units inside it:

    k + n / k           least at k = sqrt(n): 2 sqrt(n), for one more forward
    k log_{k+1}(n)      if segments are cut again by the same rule: k = 1 gives log2(n),
                        for log2(n) more forwards

`checkpoint_sequential` keeps a unit less: its last segment is not dropped, since its backward comes
at once, and the first input of that one is part of it: (k - 1) + ceil(n / k).

Our GPT's layer saves 16 + a s / h times its input, so each further segment is nearly free, and the
best number of segments is much larger than sqrt(n).

FLOPs
-----
Backward costs two forwards. One more forward makes a step of 3 one of 4: a third more, at most. A
stretch that is run again stops at the last tensor that is asked for, so that our GPT saves the last
matrix product of each segment, 8 b s h^2; and neither the output layer nor the last segment runs
again.

Units: bytes in fp32, FLOPs; MiB is 2^20 bytes. Sources: Chen et al. 2016, section 4; Wang et al.
2018 (SuperNeurons), section 3.4; Korthikanti et al. 2022, table 4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pedagogy.costs.activations import gpt_layer_activation_terms
from pedagogy.costs.memory import gpt_activation_terms
from pedagogy.costs.published import table

MIB = 2**20
FORWARD_AGAIN = 4 / 3  # a step with every layer's forward twice, over a step


class Chain(NamedTuple):
    """A net as `plan` wants it: by layer its name and the bytes of its output; which are kept."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    input_size: int


_ALEXNET = {  # channels, height and width of what each layer returns
    "conv1 relu1 lrn1": (96, 55),
    "pool1": (96, 27),
    "conv2 relu2 lrn2": (256, 27),
    "pool2": (256, 13),
    "conv3 relu3 conv4 relu4": (384, 13),
    "conv5 relu5": (256, 13),
    "pool5": (256, 6),
    "fc6 relu6 drop6 fc7 relu7 drop7": (4096, 1),
    "fc8": (1000, 1),
}


def alexnet(batch: int = 200) -> Chain:
    """AlexNet's layers for images of 3 x 227 x 227 in fp32; convolutions and fc layers are kept.

    **Raises** ValueError for an empty batch. **Source** Wang et al. 2018, whose table is for 200.
    """
    if batch < 1:
        raise ValueError(f"a batch of {batch}: must be 1 or more")
    layers = [
        (name, 4 * batch * channels * side**2)
        for names, (channels, side) in _ALEXNET.items()
        for name in names.split()
    ]
    names, sizes = zip(*layers, strict=True)
    kept = tuple(i for i, name in enumerate(names) if name.startswith(("conv", "fc")))
    return Chain(names, sizes, kept, 4 * batch * 3 * 227**2)


def segment_units(layers: int, segments: int) -> float:
    """Chen's k + n/k, in the activations of one layer.

    **Raises** ValueError unless 1 <= segments <= layers. **Source** Chen et al. 2016, section 4.3.
    """
    _check(layers, segments)
    return segments + layers / segments


def least_units(layers: int) -> float:
    """The least of `segment_units`: 2 sqrt(n), where sqrt(n) is a number of segments.

    **Raises** ValueError below 1 layer. **Source** Chen et al. 2016, section 4.3.
    """
    _check(layers, 1)
    return 2 * math.sqrt(layers)


def recursive_units(layers: int, segments: int = 1) -> float:
    """g(n) = k + g(n / (k + 1)) = k log_{k+1}(n): segments that are cut again.

    **Raises** ValueError unless 1 <= segments <= layers. **Source** Chen et al. 2016, section 4.4.
    """
    _check(layers, segments)
    return segments * math.log(layers) / math.log(segments + 1)


def segment_lengths(layers: int, segments: int) -> list[int]:
    """The stretches of `checkpoint_sequential`, the last of which is not run again.

    **Raises** ValueError unless 1 <= segments <= layers.
    """
    _check(layers, segments)
    ends = [layers * (i + 1) // segments for i in range(segments)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def units_as_run(layers: int, segments: int) -> int:
    """What `checkpoint_sequential` holds after forward, in activations of one layer, all equal.

    (k - 1) + ceil(n / k). **Raises** ValueError unless 1 <= segments <= layers.
    """
    return segments - 1 + segment_lengths(layers, segments)[-1]


def gpt_segment_bytes(
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    segments: int,
    vocabulary: int = 256,
) -> dict[str, int]:
    """Activation bytes of our GPT with its blocks in `checkpoint_sequential`.

    "after forward": (k - 1) inputs of s b h, the layers of the last segment, the output. "peak":
    two tensors of s b V more, the gradients of log-probabilities and logits; exact where those are
    larger than any scratch, as in `gpt_peak_bytes`.
    **Raises** ValueError unless 1 <= segments <= layers.
    """
    length = segment_lengths(layers, segments)[-1]
    layer = gpt_layer_activation_terms(sequence, batch, hidden, heads)
    output = gpt_activation_terms(layers, hidden, heads, sequence, batch, vocabulary)["output"]
    inputs = (segments - 1) * 4 * sequence * batch * hidden
    after = inputs + length * sum(layer.values()) + output
    return {"after forward": after, "peak": after + 2 * 4 * sequence * batch * vocabulary}


def gpt_recompute_flops(
    layers: int, hidden: int, sequence: int, batch: int, segments: int | None = None
) -> int:
    """FLOPs that run again where blocks of our GPT go through `checkpoint_sequential`.

    Each segment but the last: its layers' forward, without the last product, 8 b s h^2. Without
    `segments`: each block is checkpointed on its own, the last one too.
    **Raises** ValueError unless 1 <= segments <= layers.
    """
    lengths = segment_lengths(layers, segments or layers)
    again = lengths[:-1] if segments else lengths
    tokens = batch * sequence
    layer = 24 * tokens * hidden**2 + 4 * tokens * sequence * hidden
    return sum(length * layer - 8 * tokens * hidden**2 for length in again)


def gpt_selective_flops(layers: int, hidden: int, sequence: int, batch: int) -> int:
    """FLOPs that the rule `attention_scores` runs again: the scores, L x 2 b s^2 h.

    Half of the paper's 4 b s^2 h: what the heads read is kept, being the projection's input.
    **Raises** ValueError for a size below 1.
    """
    sizes = {"layers": layers, "hidden": hidden, "sequence": sequence, "batch": batch}
    if min(sizes.values()) < 1:
        raise ValueError(f"{sizes}: must be 1 or more")
    return layers * 2 * batch * sequence**2 * hidden


def layer_overheads() -> dict[str, tuple[float, float]]:
    """Table 4 of Korthikanti et al.: by experiment, the overhead computed, and as printed.

    In per cent of the baseline's forward and backward; the baseline itself is not among them.
    """
    baseline, *others = table("korthikanti_table4_layertime").rows
    return {
        row["experiment"]: (
            100 * (row["combined_ms"] / baseline["combined_ms"] - 1),
            float(row["overhead_pct"]),
        )
        for row in others
    }


def _check(layers: int, segments: int) -> None:
    if not 1 <= segments <= layers:
        raise ValueError(f"{segments} segments of {layers} layers: must be 1 to the layers")
