"""A backward in two halves: the input's gradient now, the linear layers' weight gradients later.

How it works
------------
For y = x w^T + b, backward computes two products that do not need each other:

    grad_x = grad_y w         the stage before waits for it
    grad_w = grad_y^T x       nobody waits for it

`PostponedWeights` is switched on during a forward. It replaces every `functional.linear` by one
whose backward computes only the first product and writes the second down. `run` does the rest.
The module is not changed, so this works for any model whose linear layers call torch's `linear`.

What it costs: x and grad_y stay in memory until `run`.

What real systems do differently: they fuse the second product with the addition to the gradient.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class PostponedWeights(TorchFunctionMode):
    """While it is entered, linear layers leave their weights' gradients to `run`."""

    def __init__(self) -> None:
        super().__init__()
        self._products: list[tuple[Tensor, Tensor | None, Tensor, Tensor]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        """Replace `linear` where its weight is a parameter that is trained."""
        kwargs = kwargs or {}
        if func is functional.linear and torch.is_grad_enabled():
            x, weight, bias = _arguments(*args, **kwargs)
            if weight.requires_grad and weight.is_leaf:
                rows = x.reshape(-1, x.size(-1))  # (samples, in_features)
                y = _SplitLinear.apply(rows, weight, bias, self._products)
                return y.view(*x.shape[:-1], -1)
        return func(*args, **kwargs)

    @torch.no_grad()  # x has a graph of its own, and a gradient must not keep it
    def run(self) -> None:
        """Every weight and bias has its gradient added. To be called once, after the backward."""
        while self._products:
            weight, bias, x, gradient = self._products.pop()
            _add_gradient(weight, gradient.T @ x)
            if bias is not None and bias.requires_grad:
                _add_gradient(bias, gradient.sum(0))


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: list):
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.products = bias, products
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):
        x, weight = ctx.saved_tensors
        ctx.products.append((weight, ctx.bias, x, gradient))
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None, None


def _arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple:
    """The arguments of `linear`, whether they were given by place or by name."""
    return input, weight, bias


def _add_gradient(parameter: Tensor, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)  # under autocast it comes in 16 bit
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
