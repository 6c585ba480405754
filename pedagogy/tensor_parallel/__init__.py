"""Tensor and sequence parallelism: single operations are cut over ranks.

Read in this order: `linear`, `blocks`, `vocabulary`, `random_streams`, `gpt`; then
`sequence_parallel`, and `ring_attention` for sequences that no rank holds.
"""

from pedagogy.costs.multiples import check_divides
from pedagogy.tensor_parallel.blocks import ParallelAttention, ParallelBlock, ParallelMLP
from pedagogy.tensor_parallel.gpt import ParallelGPT, clip_grad_norm, gradient_parts
from pedagogy.tensor_parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    gather_linear,
)
from pedagogy.tensor_parallel.random_streams import RandomStreams, StreamDropout
from pedagogy.tensor_parallel.ring_attention import ring_attention, split_sequence
from pedagogy.tensor_parallel.sequence_parallel import (
    RegatheringBlock,
    SequenceParallelBlock,
    regathered,
    sum_replicated_gradients,
)
from pedagogy.tensor_parallel.vocabulary import (
    VocabParallelEmbedding,
    padded_vocabulary,
    vocab_parallel_cross_entropy,
)

__all__ = [
    "ColumnParallelLinear",
    "ParallelAttention",
    "ParallelBlock",
    "ParallelGPT",
    "ParallelMLP",
    "RandomStreams",
    "RegatheringBlock",
    "RowParallelLinear",
    "SequenceParallelBlock",
    "StreamDropout",
    "VocabParallelEmbedding",
    "check_divides",
    "clip_grad_norm",
    "gather_linear",
    "gradient_parts",
    "padded_vocabulary",
    "regathered",
    "ring_attention",
    "split_sequence",
    "sum_replicated_gradients",
    "vocab_parallel_cross_entropy",
]
