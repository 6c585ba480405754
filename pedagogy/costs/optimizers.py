"""Bytes of optimizer state from the shapes of the parameters alone.

Why it exists
-------------
Adam's state depends on how many numbers a model has. What the others keep depends on its *shapes*:
a matrix of n by m has n m numbers, and n + m rows and columns.

What each keeps, in numbers of 4 bytes
--------------------------------------
    Adam        2 for each parameter
    Adafactor   (..., n) and (..., m) of a tensor (..., n, m); a vector or a scalar whole
    SM3         one for each index of each dimension; with momentum 1 more for each parameter
    Adam8bit    2 bytes for each parameter, and 8 for each block of B: 2 + 8/B. Tensors of fewer
                than `min_numel` numbers as Adam

The state is what remains after parameters and gradients, and those nobody makes smaller here: of
Adam's 16 bytes a parameter in fp32 (8 of them state) Adafactor leaves 8. Against 16-bit weights of
2 bytes, Adam's 16 are eight times as much; against fp32's 4, four times.

Units: bytes. Left out: step counters, and what lives only during a step.

Sources: Kingma and Ba 2015; Shazeer and Stern 2018, section 3; Anil et al. 2019, section 4;
Dettmers et al. 2022, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pedagogy.costs.memory import model_states

Shape = tuple[int, ...]
OPTIMIZERS = ("Adam", "Adafactor", "SM3", "SM3 with momentum", "Adam8bit")


class Gpt(NamedTuple):
    """A GPT's sizes: what `gpt_shapes` takes."""

    layers: int
    hidden: int
    vocabulary: int
    sequence: int


PRESETS = {
    "GPT-2 small": Gpt(12, 768, 50257, 1024),
    "GPT-2 medium": Gpt(24, 1024, 50257, 1024),
    "GPT-2 large": Gpt(36, 1280, 50257, 1024),
    "GPT-2 XL": Gpt(48, 1600, 50257, 1024),
    "GPT 7.5B": Gpt(36, 4096, 51200, 2048),  # of Narayanan et al. 2021, table 1
}


def state_bytes(
    optimizer: str, shapes: Sequence[Shape], block_size: int = 2048, min_numel: int = 4096
) -> int:
    """Bytes of state that one of `OPTIMIZERS` keeps for parameters of these shapes.

    `block_size` and `min_numel` are Adam8bit's. **Raises** ValueError for another optimizer.
    """
    if optimizer == "Adam":
        return sum(8 * math.prod(shape) for shape in shapes)
    if optimizer == "Adafactor":
        return sum(4 * _factored(shape) for shape in shapes)
    if optimizer == "SM3":
        return sum(4 * sum(shape or (1,)) for shape in shapes)
    if optimizer == "SM3 with momentum":
        return state_bytes("SM3", shapes) + 4 * num_parameters(shapes)
    if optimizer == "Adam8bit":
        return sum(_in_blocks(math.prod(shape), block_size, min_numel) for shape in shapes)
    raise ValueError(f"optimizer {optimizer!r}: choose one of {', '.join(OPTIMIZERS)}")


def _factored(shape: Shape) -> int:
    """Numbers of a factored second moment: rows and columns of the last two dimensions."""
    if len(shape) < 2:
        return math.prod(shape)
    *outer, n, m = shape
    return math.prod(outer) * (n + m)


def _in_blocks(numbers: int, block_size: int, min_numel: int) -> int:
    """Two bytes a number, and the largest of each block of both moments; or two numbers of fp32."""
    return 2 * numbers + 8 * -(-numbers // block_size) if numbers >= min_numel else 8 * numbers


def num_parameters(shapes: Sequence[Shape]) -> int:
    """How many numbers these shapes hold together."""
    return sum(math.prod(shape) for shape in shapes)


def gpt_shapes(layers: int, hidden: int, vocabulary: int, sequence: int) -> list[Shape]:
    """The shapes of `pedagogy.workloads.GPT`, its output tied to its embedding, in its order.

    **Raises** ValueError for a size below 1.
    """
    if min(layers, hidden, vocabulary, sequence) < 1:
        raise ValueError(f"sizes {(layers, hidden, vocabulary, sequence)}: must all be 1 or more")
    norm, square = [(hidden,), (hidden,)], [(hidden, hidden), (hidden,)]
    wide = [(4 * hidden, hidden), (4 * hidden,), (hidden, 4 * hidden), (hidden,)]
    block = [*norm, *4 * square, *norm, *wide]
    return [(vocabulary, hidden), (sequence, hidden), *layers * block, *norm]


def training_bytes(
    optimizer: str, shapes: Sequence[Shape], precision: str = "fp32"
) -> dict[str, int]:
    """Bytes by kind while training: parameters, gradients, optimizer_state.

    Precision is "fp32", or "mixed": 16-bit weights and gradients, and the fp32 master copy counts
    as optimizer state. **Raises** ValueError for other names.
    """
    if precision not in ("fp32", "mixed"):
        raise ValueError(f"precision {precision!r}: choose fp32 or mixed")
    held = model_states(num_parameters(shapes), precision, "sgd")  # no moments
    held["optimizer_state"] += state_bytes(optimizer, shapes)
    return held
