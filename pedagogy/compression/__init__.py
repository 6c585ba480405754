"""Compression: smaller networks, and the accuracy that they cost.

Read in this order: `pruning`, `channels`, `sharing`, `huffman`, `files`, `low_rank`,
`quantization`, `distillation`; then all of them beside each other: `course`, `methods`, `frontier`,
`students`.
"""

from pedagogy.compression.channels import Shrunk, prune_channels
from pedagogy.compression.distillation import distillation_loss
from pedagogy.compression.low_rank import break_even_rank, low_rank
from pedagogy.compression.pruning import Masks, magnitude_mask, prune_kernels, rising_sparsity
from pedagogy.compression.quantization import (
    Binary,
    Quantized,
    binarize,
    clamp_latent,
    quantize,
    sign,
    to_integers,
)
from pedagogy.compression.sharing import SharedWeight, index_bits, share_weights, sharing_ratio

__all__ = [
    "Binary",
    "Masks",
    "Quantized",
    "SharedWeight",
    "Shrunk",
    "binarize",
    "break_even_rank",
    "clamp_latent",
    "distillation_loss",
    "index_bits",
    "low_rank",
    "magnitude_mask",
    "prune_channels",
    "prune_kernels",
    "quantize",
    "rising_sparsity",
    "share_weights",
    "sharing_ratio",
    "sign",
    "to_integers",
]
