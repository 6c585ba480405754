"""Attention over a sequence that no rank holds: keys and values travel around a ring.

The problem
-----------
Megatron's sequence parallelism still gathers the whole sequence inside a layer, and the scores of a
head are s x s on one rank. A sequence that is long enough does not fit.

How it works
------------
Each rank keeps the queries of its sub-sequence. Keys and values go from rank to rank; in each of N
steps a rank meets one block of them, and after N steps every query has met every key. The softmax
over all keys is put together from the blocks, with a running maximum m, sum l and output o:

    new m = max(m, m_block)
    l = l exp(m - new m) + l_block exp(m_block - new m)         o likewise, divided by l at the end

Backward needs no score of the forward: with the logarithm of the final sum kept, each block's
probabilities are computed again, while keys, values *and their gradients* travel around once more
and arrive home complete.

With causal attention, a block of later keys is skipped. Rank 0 then has one block to do and the
last rank N: the work is uneven. Real systems give each rank one early and one late piece.

What it costs
-------------
Scores of (s/N)^2 instead of s^2 per head and rank. Each rank sends its keys and values N - 1 times
forward and again backward, and their gradients N times. Keys and values are on their way while a
block is computed; gradients leave after it.

Sources: Li et al. 2021 (Sequence parallelism: long sequence training from system perspective),
section 3; Milakov and Gimelshein 2018 (online softmax); Liu et al. 2023 (Ring attention).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pedagogy.ranks import Group
from pedagogy.ranks.handle import Handle
from pedagogy.tensor_parallel.linear import share


def ring_attention(group: Group, q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Attention of this rank's queries over the keys of all ranks; softmax(q k^T / sqrt(d)) v.

    **Shapes** each `(batch, heads, sequence / N, head_dim)` -> the same. Rank i holds the i-th
    sub-sequence. **Bytes** sent by each rank: forward (N - 1) times k and v; backward (N - 1) times
    k and v, N times their gradients. **Memory** (sequence / N)^2 scores per head at a time, twice
    that in backward.
    **Raises** ValueError, on all ranks, where q, k and v differ in shape, or the ranks in shapes,
    precision or `causal`.
    """
    if not q.shape == k.shape == v.shape or q.dim() != 4:
        raise ValueError(
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; all must "
            "be (batch, heads, sequence / N, head_dim)"
        )
    if not q.numel():
        raise ValueError(f"q has shape {tuple(q.shape)}: a rank needs at least one position")
    return _RingAttention.apply(q, k, v, group, causal)


def split_sequence(group: Group, x: Tensor, dim: int = 2) -> Tensor:
    """This rank's sub-sequence. **Raises** ValueError where the ranks do not divide it."""
    share(x.size(dim), group, "sequence")
    return x.chunk(group.size, dim)[group.rank].contiguous()


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, group: Group, causal: bool) -> Tensor:
        # who sends other blocks than its neighbour awaits would be waited for for ever
        group.agree("ring_attention", [q], f"causal={causal}")
        wide = _wide(q)
        highest = wide.new_full(q.shape[:-1], -math.inf)
        total, output = torch.zeros_like(highest), torch.zeros_like(wide)
        for source, (k_block, v_block) in _around(group, k, v):
            if causal and source > group.rank:
                continue  # later keys
            with group.span("F", f"F{source}"):
                scores = _scores(wide, _wide(k_block), causal and source == group.rank)
                new = torch.maximum(highest, scores.amax(-1))
                weights = scores.sub_(new.unsqueeze(-1)).exp_()
                old = (highest - new).exp()
                total = total * old + weights.sum(-1)
                output = output * old.unsqueeze(-1) + weights @ _wide(v_block)
                highest = new
                del scores, weights  # or they would live on beside the next block's
        output = (output / total.unsqueeze(-1)).to(q.dtype)
        ctx.save_for_backward(q, k, v, output, highest + total.log())
        ctx.group, ctx.causal = group, causal
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        q, k, v, output, log_total = ctx.saved_tensors
        dtype, q, gradient, output = q.dtype, _wide(q), _wide(gradient), _wide(output)
        group, causal = ctx.group, ctx.causal
        scale = 1 / math.sqrt(q.size(-1))
        shift = (gradient * output).sum(-1, keepdim=True)  # of softmax's backward
        q_gradient = torch.zeros_like(q)
        travelling = torch.zeros_like(
            _wide(torch.stack([k, v]))
        )  # gradients of the block that is here
        for source, (k_block, v_block) in _around(group, k, v):
            if not (causal and source > group.rank):
                with group.span("B", f"B{source}"):
                    k_block, v_block = _wide(k_block), _wide(v_block)
                    scores = _scores(q, k_block, causal and source == group.rank)
                    p = scores.sub_(log_total.unsqueeze(-1)).exp_()
                    of_p = gradient @ v_block.transpose(-2, -1)
                    of_scores = of_p.sub_(shift).mul_(p).mul_(scale)
                    q_gradient += of_scores @ k_block
                    travelling[0] += of_scores.transpose(-2, -1) @ q
                    travelling[1] += p.transpose(-2, -1) @ gradient
                    del scores, p, of_p, of_scores
            if group.size > 1:
                travelling, under_way = _pass_on(group, travelling)
                _wait(under_way)
        return q_gradient.to(dtype), *travelling.to(dtype), None, None


def _wide(x: Tensor) -> Tensor:
    """16-bit numbers as float32: sums over blocks would lose digits that one softmax keeps."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _scores(q: Tensor, k: Tensor, diagonal: bool) -> Tensor:
    """Scores against a block of keys; in the block on the diagonal, later keys are masked."""
    scores = (q @ k.transpose(-2, -1)).div_(math.sqrt(q.size(-1)))
    if diagonal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores.masked_fill_(ones.triu_(1), -math.inf)
    return scores


def _around(group: Group, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each rank's keys and values as they come by, this rank's own first: (rank, block)."""
    block = torch.stack([k, v])
    for step in range(group.size):
        following, under_way = None, []
        if step < group.size - 1:  # on its way while this block is computed
            following, under_way = _pass_on(group, block)
        yield (group.rank - step) % group.size, block
        _wait(under_way)
        block = following


def _pass_on(group: Group, block: Tensor) -> tuple[Tensor, list[Handle]]:
    """`block` leaves for the right neighbour; what the left one sends, and what to wait for."""
    following = torch.empty_like(block)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.backend == "nccl":  # a pair must be grouped, and is waited for at once
        group.exchange([(block, right)], [(following, left)])
        return following, []
    return following, [group.irecv_(following, left), group.isend_(block, right)]


def _wait(handles: Iterable[Handle]) -> None:
    for handle in handles:
        handle.wait()
