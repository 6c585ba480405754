"""Adam, and what it keeps: two numbers for every parameter.

How it works
------------
    m = b1 m + (1 - b1) g          the mean of the gradients, fading
    v = b2 v + (1 - b2) g^2        the mean of their squares
    w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

Both start at zero and are too small at first; the two divisions correct that.

Memory: with m and v Adam keeps twice the model. In fp32 that is 4 + 4 bytes beside 4 of weight and
4 of gradient: a model with Adam takes four times its weights. The other optimizers of this room
keep less, each with one idea: `adafactor` factors v, `sm3` covers it, `adam8bit` rounds m and v.

Source: Kingma and Ba 2015, algorithm 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class PerParameter(Optimizer):
    """What all of this room share: closures, groups, parameters without a gradient.

    A subclass says in `update` what one parameter's step is; its state is a dict, empty at first.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient. Returns the closure's loss, if any.

        **Raises** ValueError for a sparse gradient.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or not parameter.numel():
                    continue
                if parameter.grad.layout != torch.strided:
                    raise ValueError(f"{type(self).__name__} takes no sparse gradients")
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                self.update(parameter, parameter.grad, state, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's, but a state keeps its dtype: PyTorch casts it to the parameter's."""
        super().load_state_dict(state_dict)
        for mine, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for parameter, number in zip(mine["params"], saved["params"], strict=True):
                if number in state_dict["state"]:
                    state = copy.deepcopy(state_dict["state"][number])
                    self.state[parameter] = moved(state, parameter.device)

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Change `parameter` and `state` in place; `state["step"]` counts from 1."""
        raise NotImplementedError


class Adam(PerParameter):
    """Adam without weight decay.

    **Memory** 8 bytes for each fp32 parameter.
    **Raises** ValueError for a negative rate or eps, or betas outside 0 .. 1.
    Source: Kingma and Ba 2015, algorithm 1.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        check_range(lr=lr, eps=eps)
        check_betas(betas)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """The three lines of the algorithm."""
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["mean"].lerp_(gradient, 1 - group["betas"][0])
        state["square"].lerp_(gradient.square(), 1 - group["betas"][1])
        adam_step(parameter, state["mean"], state["square"], state["step"], group)


def adam_step(
    parameter: Tensor, mean: Tensor, square: Tensor, step: int, group: dict[str, Any]
) -> None:
    """w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps), in place."""
    beta1, beta2 = group["betas"]
    size = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
    parameter.addcdiv_(mean, size, value=-group["lr"] / (1 - beta1**step))


def moved(value: Any, device: torch.device) -> Any:
    """A state with all its tensors on the device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [moved(one, device) for one in value]
    if isinstance(value, dict):
        return {name: moved(one, device) for name, one in value.items()}
    return value


def check_range(**values: float) -> None:
    """Raise ValueError that names a value below 0."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} is {value}: must be 0 or more")


def check_betas(betas: tuple[float, float]) -> None:
    """Raise ValueError for betas outside [0, 1)."""
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas {betas}: both must be at least 0 and below 1")
