"""Weight sharing: many weights, few values.

Why it exists
-------------
If all weights of a layer are one of k values, each needs only the *number* of its value,
ceil(log2 k) bits, beside a list of the k values, the codebook. 256 values are 8 bits; 16 are 4.

    n b / (n ceil(log2 k) + k b)      for n weights that had b bits

(The bits are whole: 5 values take 3 bits a weight, not log2 5 = 2.32.)

How it works
------------
*k-means in one dimension.* The values start evenly between the least and the largest weight, so
that the few large weights, which matter, have values of their own. Then in turn: each weight joins
the nearest value; each value becomes the mean of its weights. A value that nobody joins has no
mean: it moves to the weight that is worst represented.

*Training goes on with the values.* All weights of one value are the same parameter, and its
gradient is the sum of theirs. `SharedWeight` is that: the weight is `codebook[indices]`, and
autograd does the summing.

Another thing has the same name: *tied* layers, such as a GPT's embedding and output, share a whole
matrix, in the architecture and from the beginning. That saves memory in training, too. A codebook
hardly does: the replaced weight and the indices stay (12 bytes a weight, where training with Adam
holds 16), and in each step the full weight and its gradient are made on top.

Source: Han, Mao, Dally 2016 (Deep Compression), section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pedagogy.compression.checks import check_weights


def share_weights(
    weight: Tensor, num_clusters: int, start: Tensor | None = None, max_rounds: int = 100
) -> tuple[Tensor, Tensor]:
    """k values for all weights: the codebook (k,), and for each weight the number of its value.

    `start`: values to begin with, (k,). Ends when no weight changes its value.
    **Shapes** the indices, int64, have the weight's. **Raises** ValueError for no cluster, a weight
    without numbers, one that is not finite, or another number of values in `start`.
    Source: Han et al. 2016, sections 3.1 and 3.2.
    """
    check_weights(weight)
    if num_clusters < 1:
        raise ValueError(f"{num_clusters} values for {weight.numel()} weights: at least 1")
    if start is not None and len(start) != num_clusters:
        raise ValueError(f"{len(start)} values to start with, of {num_clusters}")
    flat = weight.detach().flatten().double()  # in few bits a mean may be worse than the last
    if start is None:
        ends = flat.min().item(), flat.max().item()
        start = torch.linspace(*ends, num_clusters, dtype=flat.dtype)
    check_weights(start)
    codebook = start.to(flat)
    indices = _nearest(flat, codebook)
    for _ in range(max_rounds):
        codebook = _means(flat, indices, codebook)
        again = _nearest(flat, codebook)
        if torch.equal(again, indices):
            break
        indices = again
    return codebook.to(weight.dtype), indices.view(weight.shape)


def _nearest(flat: Tensor, codebook: Tensor) -> Tensor:
    """The number of the nearest value: of the sorted values, by the midpoints between them."""
    order = codebook.argsort(stable=True)
    ordered = codebook[order]
    return order[torch.bucketize(flat, (ordered[1:] + ordered[:-1]) / 2)]


def _means(flat: Tensor, indices: Tensor, codebook: Tensor) -> Tensor:
    """Each value as the mean of its weights; an empty one where the error is largest."""
    counts = torch.bincount(indices, minlength=len(codebook))
    sums = torch.zeros_like(codebook).index_add_(0, indices, flat)
    means = torch.where(counts > 0, sums / counts.clamp(min=1), codebook)
    error = (flat - means[indices]).abs()
    for empty in (counts == 0).nonzero().flatten().tolist():
        worst = error.argmax()
        if error[worst] == 0:
            break
        means[empty] = flat[worst]
        error[worst] = 0
    return means


class SharedWeight(nn.Module):
    """A weight that is `codebook[indices]`: a parametrization of a layer's weight.

    >>> codebook, indices = share_weights(layer.weight, 16)
    >>> parametrize.register_parametrization(layer, "weight", SharedWeight(codebook, indices))

    `mask` (1 keeps) leaves pruned weights at zero. **Memory** in training: the replaced
    weight (4 bytes a weight), indices (8), a mask (4); in a step the full weight and its gradient.
    Source: Han et al. 2016, section 3.3.
    """

    def __init__(self, codebook: Tensor, indices: Tensor, mask: Tensor | None = None) -> None:
        super().__init__()
        self.codebook = nn.Parameter(codebook.clone())
        self.register_buffer("indices", indices)
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        """The shared weight; the one that it replaces is not read."""
        shared = self.codebook[self.indices]
        return shared if self.mask is None else shared * self.mask


def index_bits(num_clusters: int) -> int:
    """Bits of one index: ceil(log2 k). **Raises** ValueError for no cluster."""
    if num_clusters < 1:
        raise ValueError(f"{num_clusters} clusters: at least 1")
    return (num_clusters - 1).bit_length()


def sharing_ratio(num_weights: int, bits: int, num_clusters: int) -> float:
    """n b / (n ceil(log2 k) + k b): how many times smaller.

    **Raises** ValueError for no weight, no bit or no cluster. Source: Han et al. 2016, equation 1.
    """
    if num_weights < 1 or bits < 1:
        raise ValueError(f"{num_weights} weights of {bits} bits: at least 1 of both")
    shared = num_weights * index_bits(num_clusters) + num_clusters * bits
    return num_weights * bits / shared
