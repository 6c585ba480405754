"""Weights in 16 bits for the computation, a copy in fp32 for the update.

Why it exists
-------------
An update is much smaller than the weight that it changes. In fp16 neighbours between 1 and 2 are
2^-10 apart: whatever is below half of that is rounded away, for good, however often it comes. An
update is lost in two ways:

    the product underflows     lr x gradient is 2^-25 or less, and is 0 already
    the sum swallows it        it is no more than half the distance to the next number: possible
                               from |w| = 2048 |lr x gradient| on, certain from 4096 on

The second needs no small gradient, only a large weight. A copy of the weights in fp32, the *master
weights*, takes the updates; the 16-bit weights are rounded from it anew after each step, and move
when enough has come together.

How it works
------------
    forward, backward     with the 16-bit weights; gradients have their dtype
    take_gradients        each gradient, cast to fp32, becomes that of the master weight
    the optimizer's step  on the master weights, with its state in fp32
    write_back            the 16-bit weights are the master weights, rounded

Memory for Adam: 2 bytes of weight and 2 of gradient, 4 of master weight, 4 + 4 of state: 16 for
each parameter, as many as in fp32. What is saved are activations, and time.

Source: Micikevicius et al. 2018, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class MasterWeights:
    """Wraps an optimizer: its parameters become `dtype`, and it updates fp32 copies of them.

    Made after the model and its optimizer, before the first step. The model's parameters are cast
    in place; cast its inputs and buffers yourself (`model.to(dtype)` before is fine: the master
    weights then start from rounded ones). `param_groups` holds the master weights, so that
    clipping or a loss scaler work on these; give a scheduler the optimizer that was wrapped.
    **Memory** 4 bytes for each parameter, and 4 for its gradient while `step` runs.
    **Raises** ValueError for a dtype that is not floating point, or an optimizer that has stepped.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise ValueError(f"weights of {dtype}: must be a floating-point dtype")
        if optimizer.state:
            raise ValueError(
                f"the optimizer has a state for {len(optimizer.state)} parameters: wrap it before "
                "its first step"
            )
        self.optimizer = optimizer
        self.pairs: list[tuple[Tensor, Tensor]] = []  # (weight of the model, master weight)
        for group in optimizer.param_groups:
            for place, weight in enumerate(group["params"]):
                master = weight.detach().float().clone().requires_grad_(weight.requires_grad)
                weight.data = weight.data.to(dtype)
                weight.grad = None
                self.pairs.append((weight, master))
                group["params"][place] = master

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups; their parameters are the master weights."""
        return self.optimizer.param_groups

    @property
    def state(self) -> dict:
        """The optimizer's state, by master weight."""
        return self.optimizer.state

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Gradients of the weights move to the master weights, in fp32; added where one waits."""
        for weight, master in self.pairs:
            if weight.grad is not None:
                gradient = weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
                weight.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        """The model's weights are the master weights, rounded."""
        for weight, master in self.pairs:
            weight.copy_(master)

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the master weights, then the model's; the gradients of both are spent.

        **Raises** ValueError for a closure, which would need the gradients more than once.
        """
        if closure is not None:
            raise ValueError("MasterWeights takes no closure: run backward, then step")
        self.take_gradients()
        self.optimizer.step()
        self.write_back()
        for _, master in self.pairs:  # `model.zero_grad()` would not reach them
            master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """No gradient is left, of weights or master weights."""
        for pair in self.pairs:
            for tensor in pair:
                if set_to_none or tensor.grad is None:
                    tensor.grad = None
                else:
                    tensor.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The master weights and the optimizer's state: what training needs to go on exactly."""
        masters = [master.detach().clone() for _, master in self.pairs]
        return {"masters": masters, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. **Raises** ValueError for other weights: number or shapes."""
        masters = state["masters"]
        if len(masters) != len(self.pairs):
            raise ValueError(f"{len(masters)} master weights saved, {len(self.pairs)} are here")
        for saved, (_, master) in zip(masters, self.pairs, strict=True):
            if saved.shape != master.shape:  # it might be broadcast
                raise ValueError(f"shape {tuple(saved.shape)} saved, {tuple(master.shape)} is here")
        with torch.no_grad():
            for (_, master), saved in zip(self.pairs, masters, strict=True):
                master.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.write_back()
