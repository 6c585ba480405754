"""Adafactor: the squares of a matrix's gradient from the means of its rows and columns.

How it works
------------
Adam keeps v, a number for each parameter. For a matrix of n rows and m columns Adafactor keeps n
row means R and m column means C of the squared gradient, and estimates

    v_ij = R_i C_j / mean(R)

which is exact where v has rank 1, and has v's row and column sums always. n + m numbers instead of
n m. A vector is not factored, and a tensor of more dimensions is in its last two.

Three more ideas, each stands alone:

* no first moment: what remains is n + m;
* the update u = g / sqrt(v) is *clipped*: divided by max(1, RMS(u) / d), since without a first
  moment, and with a slow v, single updates may be huge;
* the step is *relative*: max(eps2, RMS(w)) min(1e-2, 1 / sqrt(t)), no learning rate to choose.

v's rate is not constant: 1 - t^-0.8, which is 0 in the first step, so that nothing needs to be
corrected for a start at zero.

An all-zero row of the gradient: eps1 is added to the squares, so that R, C and their quotient stay
above 0, and 0 / sqrt(small) is 0. (With the same eps, PyTorch's gives NaN there.)

Source: Shazeer and Stern 2018, algorithms 4 to 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pedagogy.optimizers.adam import PerParameter, check_range


class Adafactor(PerParameter):
    """Adafactor. With `relative_step`, `lr` must be None; without, it must be given.

    `warmup_init` lets the relative step rise: min(1e-6 t, 1 / sqrt(t)).
    **Memory** for a matrix of (n, m): 4 (n + m) bytes; for a vector or a scalar 4 a number.
    **Raises** ValueError for a learning rate where none is used, or none where one is needed.
    Source: Shazeer and Stern 2018, algorithm 6.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay: float = 0.8,
        relative_step: bool = True,
        scale_parameter: bool = True,
        warmup_init: bool = False,
    ) -> None:
        if relative_step and lr is not None:
            raise ValueError(f"lr is {lr}, but a relative step ignores it: relative_step=False")
        if not relative_step and lr is None:
            raise ValueError("without a relative step, lr must be given")
        if warmup_init and not relative_step:
            raise ValueError("warmup_init is for a relative step; yours is a learning rate")
        check_range(lr=lr or 0.0, eps1=eps[0], eps2=eps[1], decay=decay)
        if not clip_threshold > 0:
            raise ValueError(f"clip_threshold is {clip_threshold}: must be above 0")
        choices = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay": decay,
            "scale_parameter": scale_parameter,
            "warmup_init": warmup_init,
        }
        super().__init__(params, choices)

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Estimate v, divide by its root, clip, step."""
        kept = 1 - state["step"] ** -group["decay"]  # 0 in the first step
        estimate = second_moment(gradient.float().square().add_(group["eps"][0]), state, kept)
        update = gradient * estimate.rsqrt_()
        update /= max(1.0, rms(update) / group["clip_threshold"])
        parameter.sub_(update.mul_(step_size(parameter, state["step"], group)))


def second_moment(square: Tensor, state: dict[str, Any], kept: float) -> Tensor:
    """v's estimate from `state`, after `square` was taken in: what was there weighs `kept`.

    **Shapes** (..., n, m) keeps (..., n) and (..., m); a vector or a scalar keeps its own shape.
    """
    if square.dim() < 2:
        state["square"] = state.get("square", square).lerp(square, 1 - kept)
        return state["square"].clone()
    for name, dim in (("rows", -1), ("columns", -2)):
        mean = square.mean(dim)
        state[name] = state.get(name, mean).lerp(mean, 1 - kept)
    rows, columns = state["rows"], state["columns"]
    scaled = rows / rows.mean(-1, keepdim=True)  # (..., n)
    return scaled[..., :, None] * columns[..., None, :]


def step_size(parameter: Tensor, step: int, group: dict[str, Any]) -> float:
    """The relative step or the learning rate, times the parameter's size if it is scaled.

    The group is read, never written: one parameter's step must not become the next one's.
    """
    rate = group["lr"]
    if rate is None:
        limit = 1e-6 * step if group["warmup_init"] else 1e-2
        rate = min(limit, step**-0.5)
    return rate * max(group["eps"][1], rms(parameter)) if group["scale_parameter"] else rate


def rms(x: Tensor) -> float:
    """The root of the mean square; 0 for a tensor without elements."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.linalg.vector_norm(x, dtype=wide).item() / max(x.numel(), 1) ** 0.5
