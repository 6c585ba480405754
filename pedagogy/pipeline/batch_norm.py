"""BatchNorm whose running statistics are those of the whole batch, not of each micro-batch.

The problem
-----------
BatchNorm normalises a sample by the statistics of the batch that it sees. Under micro-batches that
is the micro-batch: outputs and gradients depend on m, and no schedule can change that. Its
*running* statistics, used in evaluation, are a second matter: they would be updated m times per
batch, each time from a few samples.

How it works
------------
`DeferredBatchNorm` normalises by the micro-batch, like any BatchNorm, but adds up the sums and the
squares of all micro-batches and updates the running statistics once, from the whole batch.

    x = [0, 2, 4, 6] in two micro-batches, momentum 0.1
    BatchNorm    running mean 0.59, variance 1.19
    deferred     running mean 0.30, variance 1.5667    as from one batch of four

Recomputation is safe: it works on copies of the buffers, and the sums are buffers.

Source: Huang et al. 2019 (GPipe), section 2.2: statistics over the micro-batch in training, moving
averages over the mini-batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from pedagogy.pipeline.schedule import check_counts


class DeferredBatchNorm(_BatchNorm):
    """A BatchNorm of any dimension that updates its running statistics every `num_microbatches`."""

    def __init__(self, like: _BatchNorm, num_microbatches: int) -> None:
        check_counts(num_microbatches=num_microbatches)
        if isinstance(like, nn.SyncBatchNorm):
            raise ValueError("a SyncBatchNorm averages over ranks: deferring it is not implemented")
        if not like.track_running_stats:
            raise ValueError("this BatchNorm keeps no running statistics: nothing to defer")
        super().__init__(like.num_features, like.eps, like.momentum, like.affine)
        self.load_state_dict(like.state_dict())
        self.to(like.running_mean)
        self.weight, self.bias = like.weight, like.bias
        self.train(like.training)
        self.num_microbatches = num_microbatches
        for name in ("sums", "squares"):
            zeros = torch.zeros_like(self.running_mean, dtype=torch.float64)  # or they cancel
            self.register_buffer(name, zeros, persistent=False)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.long), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """**Shapes** (batch, channels, ...), unchanged."""
        if not self.training:
            return super().forward(x)
        with torch.no_grad():
            dims = [d for d in range(x.dim()) if d != 1]
            self.sums += x.sum(dims, dtype=torch.float64)
            self.squares += x.double().square().sum(dims)
            self.seen += torch.tensor([1, x.numel() // x.size(1)], device=self.seen.device)
            if self.seen[0] == self.num_microbatches:
                self._update_running_statistics()
        return functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def _update_running_statistics(self) -> None:
        count = self.seen[1]
        mean = self.sums / count
        variance = (self.squares - count * mean * mean) / (count - 1)  # unbiased, as torch's
        self.num_batches_tracked += 1
        seen = self.num_batches_tracked.item()
        share = 1 / seen if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)
        for buffer in (self.sums, self.squares, self.seen):
            buffer.zero_()

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"{x.dim()} dimensions; BatchNorm needs (batch, channels, ...)")


def defer_batch_norm(module: nn.Module, num_microbatches: int) -> nn.Module:
    """`module` with every BatchNorm deferred; parameters and statistics stay the same tensors.

    A layer that is used in two places stays one layer.
    """
    deferred: dict[int, nn.Module] = {}

    def replace(one: nn.Module) -> nn.Module:
        if isinstance(one, _BatchNorm) and not isinstance(one, DeferredBatchNorm):
            if id(one) not in deferred:
                deferred[id(one)] = DeferredBatchNorm(one, num_microbatches)
            return deferred[id(one)]
        for name, child in one._modules.items():
            if child is not None:
                one._modules[name] = replace(child)
        return one

    return replace(module)
