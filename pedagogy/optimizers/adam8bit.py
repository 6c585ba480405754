"""Adam with its two moments in 8 bits, block by block.

How it works
------------
Between steps m and v are stored as bytes: each is divided by the largest of its *block*, and
replaced by the nearest of 256 values between -1 and 1 (0 and 1 for v). In a step they are read
back, updated in fp32, and rounded again.

*Blocks*, because one outlier would otherwise push all others into the lowest values; here it only
spoils its own block. *Dynamic values*, because moments differ by many powers of ten: the values are
not evenly spaced. A byte's leading zeros give a power of ten, from 1 down to 10^-6, and the bits
after the first one divide that decade evenly: close together near 0, with most digits near 1.

Memory: 1 + 1 bytes, and a 4-byte maximum for each block of both: 2 + 8/B instead of 8. Small
tensors stay in fp32, as rounding them saves nothing.

Source: Dettmers et al. 2022, sections 2 and 3, and appendix on dynamic tree quantisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pedagogy.optimizers.adam import PerParameter, adam_step, check_betas, check_range


class Adam8bit(PerParameter):
    """`Adam`, its moments stored in 8 bits in blocks of `block_size`.

    Tensors of fewer than `min_numel` numbers keep fp32 moments.
    **Memory** 2 + 8 / block_size bytes for each parameter.
    **Raises** ValueError as `Adam`, and for a block size below 1.
    Source: Dettmers et al. 2022, section 2.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        block_size: int = 2048,
        min_numel: int = 4096,
    ) -> None:
        check_range(lr=lr, eps=eps, min_numel=min_numel)
        check_betas(betas)
        if block_size < 1:
            raise ValueError(f"blocks of {block_size}: must be 1 or more")
        choices = {"lr": lr, "betas": betas, "eps": eps}
        super().__init__(params, choices | {"block_size": block_size, "min_numel": min_numel})

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Read the moments, update them in fp32, step, round them."""
        mean, square = (
            read(state, name, parameter, group["block_size"]) for name in ("mean", "square")
        )
        mean.lerp_(gradient.float(), 1 - group["betas"][0])
        square.lerp_(gradient.float().square(), 1 - group["betas"][1])
        adam_step(parameter, mean, square, state["step"], group)
        if parameter.numel() >= group["min_numel"]:
            for name, values in (("mean", mean), ("square", square)):
                blocks = quantise(values, group["block_size"], signed=name == "mean")
                state[name], state[f"{name}_largest"] = blocks
        else:
            state["mean"], state["square"] = mean, square


class Blocks(NamedTuple):
    """`codes` (n,) uint8, and the `largest` magnitude of each block, fp32."""

    codes: Tensor
    largest: Tensor


def read(state: dict[str, Any], name: str, parameter: Tensor, block_size: int) -> Tensor:
    """A moment in fp32, of the parameter's shape; zeros before the first step."""
    stored = state.get(name)
    if stored is None:
        return torch.zeros_like(parameter, dtype=torch.float32)
    if stored.dtype != torch.uint8:
        return stored
    blocks = Blocks(stored, state[f"{name}_largest"])
    return dequantise(blocks, block_size, signed=name == "mean").view_as(parameter)


def quantise(values: Tensor, block_size: int, signed: bool) -> Blocks:
    """Each value as the code of the nearest one of 256, relative to the largest of its block."""
    flat = values.detach().float().flatten()
    padded = functional.pad(flat, (0, -len(flat) % block_size)).view(-1, block_size)
    largest = padded.abs().amax(1)
    relative = (padded / torch.where(largest > 0, largest, 1.0)[:, None]).flatten()
    table = code_values(signed).to(values.device)
    between = (table[1:] + table[:-1]) / 2
    codes = torch.bucketize(relative[: len(flat)], between)
    return Blocks(codes.to(torch.uint8), largest)


def dequantise(blocks: Blocks, block_size: int, signed: bool) -> Tensor:
    """The values of the codes, (n,), fp32."""
    table = code_values(signed).to(blocks.codes.device)
    scale = blocks.largest.repeat_interleave(block_size)[: len(blocks.codes)]
    return table[blocks.codes.long()] * scale


@lru_cache(maxsize=2)
def code_values(signed: bool) -> Tensor:
    """What a byte can mean, ascending: (256,), -1 or 0 to 1; signed, 0 stands twice."""
    bits = 7 if signed else 8  # without the sign
    positive = []
    for zeros in range(bits):  # leading zeros, then a one, then the fraction's bits
        steps = 2 ** (bits - 1 - zeros)
        ends = torch.linspace(0.1, 1.0, steps + 1, dtype=torch.float64)
        positive.append(10.0**-zeros * (ends[1:] + ends[:-1]) / 2)
    positive = torch.cat(positive)  # 2^bits - 1 values
    positive[positive.argmax()] = 1.0  # the largest of a block is kept exactly
    both = torch.cat([-positive, positive]) if signed else positive
    zeros = both.new_zeros(256 - len(both))
    return torch.cat([both, zeros]).sort().values.float()
