"""Chapter 02a: the two halves of a linear layer's backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from pedagogy.exercises.attempt import Outcome, Refused
from pedagogy.exercises.compare import brief
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def split_linear_backward(
    x: Tensor, weight: Tensor, grad_output: Tensor
) -> tuple[Tensor, Callable[[], Tensor]]:
    """For y = x weight^T: the gradient of x, and a function that computes that of weight.

    **Shapes** x (..., in), weight (out, in), grad_output (..., out).
    """

    def weight_half() -> Tensor:
        return grad_output.flatten(0, -2).T @ x.flatten(0, -2)  # (out, in)

    return grad_output @ weight, weight_half  # (..., in)


def _both_at_once(x, weight, grad_output):
    grad_weight = grad_output.flatten(0, -2).T @ x.flatten(0, -2)
    return grad_output @ weight, lambda: grad_weight


def _transposed(x, weight, grad_output):
    return grad_output @ weight, lambda: x.flatten(0, -2).T @ grad_output.flatten(0, -2)


def _without_flatten(x, weight, grad_output):
    return grad_output @ weight, lambda: grad_output.T @ x


def _through_autograd(x, weight, grad_output):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    functional.linear(x, weight).backward(grad_output)
    return x.grad, lambda: weight.grad


def _for_each_sequence(x, weight, grad_output):
    return grad_output @ weight, lambda: grad_output.transpose(-1, -2) @ x


def _last_sample(x, weight, grad_output):
    rows, gradients = x.flatten(0, -2), grad_output.flatten(0, -2)
    return grad_output @ weight, lambda: torch.outer(gradients[-1], rows[-1])


def _averaged(x, weight, grad_output):
    rows = x.flatten(0, -2)
    return grad_output @ weight, lambda: grad_output.flatten(0, -2).T @ rows / len(rows)


def _averaged_over_sequences(x, weight, grad_output):
    rows, gradients = x.flatten(0, -2), grad_output.flatten(0, -2)
    sequences = x[..., 0, 0].numel()  # 1 without a batch
    return grad_output @ weight, lambda: gradients.T @ rows / sequences


def _averaged_over_the_first(x, weight, grad_output):
    rows, gradients = x.flatten(0, -2), grad_output.flatten(0, -2)
    return grad_output @ weight, lambda: gradients.T @ rows / len(x)


def _exchanged(x, weight, grad_output):
    grad_x, weight_half = split_linear_backward(x, weight, grad_output)
    return weight_half(), lambda: grad_x


def _called(x, weight, grad_output):
    grad_x, weight_half = split_linear_backward(x, weight, grad_output)
    return grad_x, weight_half()


def _halves(function: Callable, x: Tensor, weight: Tensor, grad_output: Tensor) -> dict | None:
    with warnings.catch_warnings():  # torch warns of .T of three dimensions, once
        warnings.simplefilter("ignore", UserWarning)
        return _both_halves(function(x, weight, grad_output))


def _both_halves(answer: Any) -> dict | None:
    if answer is None:
        return None
    if not isinstance(answer, (list, tuple)) or len(answer) != 2:
        raise Refused(f"two things are wanted, a tensor and a function, not {brief(answer)}")
    grad_x, weight_half = answer
    if not callable(weight_half):
        raise Refused(
            f"the second result is {brief(weight_half)}, not a function: it is called later, when "
            "the rank has nothing better to do"
        )
    return {"the gradient of x": grad_x, "the gradient of weight": weight_half()}


def _postponed(function: Callable, outcome: Outcome) -> str | None:
    """A target: one matrix product before the input's gradient is there, the other one later."""
    x, weight, grad_output = _case((5, 3), 2)
    one_product = 2 * x.numel() * len(weight)
    with FlopCounterMode(display=False) as before:
        _, weight_half = function(x, weight, grad_output)
    with FlopCounterMode(display=False) as after:
        weight_half()
    if before.get_total_flops() + after.get_total_flops() > 2 * one_product:
        return "more than two matrix products run in all"
    if before.get_total_flops() > one_product:
        return "more than one matrix product runs before the stage in front gets its gradient"
    if after.get_total_flops() < one_product:
        return "no matrix product runs when the function is called"
    return None


def _case(shape: tuple[int, ...], out_features: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(len(shape))
    x = torch.randn(shape, generator=draw)
    weight = torch.randn(out_features, shape[-1], generator=draw)
    return x, weight, torch.randn(*shape[:-1], out_features, generator=draw)


_NO_MEAN = "Where the loss is a mean, grad_output holds its 1/n already: this product is a sum."
SPLIT = Exercise(
    name="split_linear_backward",
    title="The half that nobody waits for",
    chapter="02a",
    reference=split_linear_backward,
    cases=[_case((5, 3), 2), _case((2, 4, 3), 3)],
    labels=["x of (5, 3)", "x of (2, 4, 3): batch, sequence, features"],
    observe=_halves,
    targets=[_postponed],
    mistakes=[
        (
            _both_at_once,
            "Both products are computed at once, so the stage before waits for both. The second "
            "one belongs inside the function that you return.",
        ),
        (
            _through_autograd,
            "Autograd needs the forward again, a third product, and `backward` computes both "
            "halves at once. Write the two products yourself: x, weight and grad_output are there.",
        ),
        (
            _without_flatten,
            "With a batch of sequences .T turns all three dimensions round: flatten the leading "
            "ones of both, flatten(0, -2), so that one product sums over all rows.",
        ),
        (
            _transposed,
            "This is the gradient of the transposed weight: y = x weight^T gives grad_output^T x.",
        ),
        (
            _for_each_sequence,
            "With a batch of sequences this gives a gradient for each of them. There is one "
            "weight: flatten all leading dimensions, so that the product sums over them.",
        ),
        (_last_sample, "Every row of x used the weight: their gradients add up."),
        *((wrong, _NO_MEAN) for wrong in (_averaged, _averaged_over_the_first)),
        (
            _averaged_over_sequences,
            "This is the mean over the sequences. All of them used one weight, so their gradients "
            "add up; where the loss is a mean, grad_output holds its 1/n already.",
        ),
        (
            _exchanged,
            "The halves are exchanged: the input's gradient comes first, as the stage before waits "
            "for it.",
        ),
        (_called, "Return the function itself, without calling it."),
    ],
    hints=[
        "For y = x weight^T backward computes two products: grad_output weight, and "
        "grad_output^T x.",
        "Define a function inside yours that computes the second one, and return it uncalled.",
        "x.flatten(0, -2) makes (samples, in) of any number of leading dimensions.",
    ],
)

register(SPLIT)
