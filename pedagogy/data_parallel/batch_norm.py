"""BatchNorm across replicas: the statistics of the whole batch, not of a rank's part.

The problem
    BatchNorm normalises by the mean and variance of the batch that it sees. On N ranks each sees
    1/N of it: other numbers, noisier ones, and a training run that no longer equals one process,
    whatever is done about the gradients. With 2 samples per rank, [0, 2] and [4, 6], each rank
    alone gives [-1, 1]; the whole batch gives [-1.34, -0.45, 0.45, 1.34].

How it works
    Two sums over the ranks: of the values and their number, which give the mean, and of the squared
    deviations from it, which give the variance. (One message with the sum and the sum of squares
    would do, and loses the variance to rounding where the mean is large.) A rank's mean depends on
    every rank's values, so the sum must pass gradients back to all: the backward of "everyone gets
    the sum" is "everyone gets the sum of the gradients".

What it costs
    Two small all_reduces in forward and two in backward, for each layer: latency, in the middle of
    the step, which cannot be hidden.

What real systems do differently
    `torch.nn.SyncBatchNorm` fuses this into kernels that exist for GPUs only; on CPU it raises.

Source: Ioffe and Szegedy 2015, algorithms 1 and 2; Peng et al. 2018 (MegDet), section 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pedagogy.ranks import Group


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.all_reduce_(x.clone())

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce_(gradient.clone(memory_format=torch.contiguous_format)), None


class SyncBatchNorm(_BatchNorm):
    """BatchNorm over the batches of all ranks of `group`; any number of dimensions from 2 on.

    Ranks may have different numbers of samples, none included. In eval mode it is plain BatchNorm.
    **Shapes** (batch, features, ...) on each rank, the result likewise.
    **Bytes** 2(N-1)/N of 2 * features + 1 numbers in forward, and as many in backward.
    **Raises** ValueError where the ranks together have 1 value per feature, or none.
    """

    def __init__(self, group: Group, num_features: int, **options: object) -> None:
        super().__init__(num_features, **options)  # type: ignore[arg-type]
        self.group = group

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(
                f"expected (batch, {self.num_features}, ...), got shape {tuple(x.shape)}"
            )

    def forward(self, x: Tensor) -> Tensor:
        """The normalised batch; in training the running statistics take their step."""
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        own = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x  # sums need range
        dims = [dim for dim in range(x.dim()) if dim != 1]
        shape = [1, -1, *[1] * (x.dim() - 2)]  # broadcasts over the batch and the pixels
        values = own.new_tensor([x.numel() / self.num_features])  # per feature, on this rank
        sums = _SumOverRanks.apply(torch.cat([own.sum(dims), values]), self.group)
        count = sums[-1].detach()
        if count < 2:
            raise ValueError(f"{int(count)} values per feature on all ranks; BatchNorm needs 2")
        mean = sums[:-1] / count
        deviation = own - mean.view(shape)
        variance = _SumOverRanks.apply(deviation.square().sum(dims), self.group) / count
        if self.track_running_stats:
            self._update_running(mean.detach(), (variance * count / (count - 1)).detach())
        normal = deviation * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(x.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        """The running statistics; `variance` is the unbiased one, as in nn.BatchNorm."""
        self.num_batches_tracked += 1
        share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def convert_batch_norm(group: Group, module: nn.Module) -> nn.Module:
    """`module` with every BatchNorm layer replaced by a `SyncBatchNorm` that shares its tensors.

    Returns the module itself, or the replacement where it is a BatchNorm layer.
    """
    synced = {
        layer: _synced(group, layer)
        for layer in module.modules()
        if isinstance(layer, _BatchNorm) and not isinstance(layer, SyncBatchNorm)
    }
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # a shared layer under each of its names
            if child in synced:
                setattr(parent, name, synced[child])
    return synced.get(module, module)


def _synced(group: Group, layer: _BatchNorm) -> SyncBatchNorm:
    synced = SyncBatchNorm(
        group, layer.num_features, eps=layer.eps, momentum=layer.momentum,
        affine=layer.affine, track_running_stats=layer.track_running_stats,
    )  # fmt: skip
    for tensors in ("_parameters", "_buffers"):
        getattr(synced, tensors).update(getattr(layer, tensors))
    return synced.train(layer.training)
