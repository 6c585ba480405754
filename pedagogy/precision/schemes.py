"""The three techniques of mixed precision, and what is left when one of them is removed.

The rows
--------
    fp32                      everything in fp32
    fp16                      weights, activations and gradients in fp16, with all three techniques
    no master weights         updates are computed in fp32 and rounded into the fp16 weights
    no loss scaling           gradients are what they are
    no fp32 accumulation      linear layers add their products in fp16, one after the other

All rows have the same model, data, learning rate and seed; nothing is scaled to provoke a failure.

What "in fp16" means on a CPU
-----------------------------
Its kernels take fp16 and return fp16, but add in fp32 inside, as tensor cores do. So the last row
needs sums of our own (`dot.matmul`): in forward, for the gradient of the input, and for that of the
weight, whose sum runs over all tokens of the batch. Biases, norms, softmax and attention's products
are left as they are.

The loss is in fp32 in every row: its own gradient is the loss scale, beyond fp16.

Source: Micikevicius et al. 2018, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pedagogy.precision.dot import matmul
from pedagogy.precision.loss_scale import DynamicLossScaler, StaticLossScaler
from pedagogy.precision.master_weights import MasterWeights

SCHEMES = ("fp32", "fp16", "no master weights", "no loss scaling", "no fp32 accumulation")
Batch = Callable[[int], tuple[Tensor, Tensor]]  # step -> inputs, targets


class RoundedWeights(MasterWeights):
    """No master weights: each step starts from the rounded weights. Counts what is lost.

    `lost` of `updates` changed nothing, though the update was not 0.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> None:
        super().__init__(optimizer, dtype)
        self.lost = self.updates = 0
        self._forget()

    def write_back(self) -> None:
        """The weights are rounded, and what was rounded off is forgotten."""
        before = [weight.detach().clone() for weight, _ in self.pairs]
        super().write_back()
        for old, (weight, master) in zip(before, self.pairs, strict=True):
            wanted = master.detach() != old.float()
            self.updates += int(wanted.sum())
            self.lost += int((wanted & (weight.detach() == old)).sum())
        self._forget()

    @torch.no_grad()
    def _forget(self) -> None:
        for weight, master in self.pairs:
            master.copy_(weight)


class _Fp16Linear(torch.autograd.Function):
    """x W^T, its two gradients, every sum rounded to fp16 after each term."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matmul(x, weight.T, torch.float16, torch.float16)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        half = (torch.float16, torch.float16)
        return matmul(gradient, weight, *half), matmul(gradient.T, x, *half)


class Fp16AccumulatedLinear(nn.Linear):
    """A linear layer without fp32 inside: `(..., in_features)` -> `(..., out_features)`."""

    def forward(self, x: Tensor) -> Tensor:
        """The product, summed in fp16, and the bias."""
        y = _Fp16Linear.apply(x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def accumulate_in_fp16(model: nn.Module) -> nn.Module:
    """Every linear layer of the model becomes an `Fp16AccumulatedLinear`, in place."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Fp16AccumulatedLinear
    return model


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all positions, in nats."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


class SchemeRun(NamedTuple):
    """What a scheme's training saw.

    `losses` in nats by step, `scales` by step, `num_skipped` steps, `zero_share`: of the last
    step's weight gradients, before they were unscaled; `lost_share` of all updates (nan where
    master weights keep them).
    """

    losses: Tensor
    scales: Tensor
    num_skipped: int
    zero_share: float
    lost_share: float


def train_scheme(
    scheme: str,
    model: nn.Module,
    batch: Batch,
    steps: int,
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    dtype: torch.dtype = torch.float16,
    loss: Callable[[Tensor, Tensor], Tensor] = token_loss,
) -> SchemeRun:
    """Train `model`, in place, for `steps`, in one of `SCHEMES`; `dtype` may be bfloat16 too.

    `loss(outputs, targets)` gets the outputs in fp32.
    **Raises** ValueError for another scheme, without steps, or for sums in fp16 of another dtype.
    """
    if scheme not in SCHEMES or steps < 1:
        raise ValueError(
            f"scheme {scheme!r}, {steps} steps: choose one of {SCHEMES}, 1 step or more"
        )
    optimizer, scaler = _prepare(scheme, model, make_optimizer, dtype)
    losses, scales, num_skipped, zero_share = [], [], 0, 0.0
    for step in range(steps):
        inputs, targets = batch(step)
        if inputs.is_floating_point() and scheme != "fp32":
            inputs = inputs.to(dtype)
        error = loss(model(inputs).float(), targets)
        scales.append(scaler.get_scale())
        scaler.scale(error).backward()
        zero_share = _zero_share(model)
        num_skipped += not scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(error.detach())
    lost = (
        optimizer.lost / max(optimizer.updates, 1) if hasattr(optimizer, "lost") else float("nan")
    )
    return SchemeRun(torch.stack(losses), torch.tensor(scales), num_skipped, zero_share, lost)


def _prepare(scheme: str, model: nn.Module, make_optimizer: Callable, dtype: torch.dtype) -> Any:
    """The optimizer and the scaler of a scheme; the model in its dtype."""
    optimizer = make_optimizer(model.parameters())
    if scheme == "fp32":
        return optimizer, StaticLossScaler(1.0)
    if scheme == "no fp32 accumulation":
        if dtype != torch.float16:
            raise ValueError(f"{scheme!r} in {dtype}: its sums are in torch.float16, and so is it")
        accumulate_in_fp16(model)
    wrap = RoundedWeights if scheme == "no master weights" else MasterWeights
    wrapped = wrap(optimizer, dtype)
    model.to(dtype)  # buffers too
    unscaled = scheme == "no loss scaling" or dtype != torch.float16
    return wrapped, StaticLossScaler(1.0) if unscaled else DynamicLossScaler(growth_interval=100)


def _zero_share(model: nn.Module) -> float:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return sum(int((g == 0).sum()) for g in gradients) / sum(g.numel() for g in gradients)
