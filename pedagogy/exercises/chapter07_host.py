"""Chapter 07: the optimizer and its states in host memory; 16 bits for each parameter each way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.chapter07_wrong_host import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def train_on_host(
    weights: Tensor,
    masters: Tensor,
    num_steps: int,
    gradient_of: Callable[[int, Tensor], Tensor],
    make_optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
    to_host: Callable[[Tensor], Tensor],
    to_device: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, int]:
    """`num_steps` updates on the host: (weights in fp16, masters in fp32, bytes over the link)."""
    host = nn.Parameter(masters.clone())
    optimizer = make_optimizer([host])  # one for all steps: its states stay
    crossed = 0
    for step in range(num_steps):
        arrived = to_host(gradient_of(step, weights))
        host.grad = arrived.float()
        optimizer.step()
        rounded = host.detach().half()  # on the host, before it crosses
        weights = to_device(rounded)
        crossed += arrived.nbytes + rounded.nbytes
    return weights, host.detach(), crossed


# --- the cases --------------------------------------------------------------------------------


def _towards(scale: float) -> Callable[[int, Tensor], Tensor]:
    """The gradient of a loss with a minimum that moves a little from step to step."""

    def gradient_of(step: int, weights: Tensor) -> Tensor:
        target = torch.linspace(-1.0, 1.0, len(weights)) + 0.1 * step
        return (scale * (weights.float() - target)).half()

    return gradient_of


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
CASES = {  # masters, steps, scale of the gradient, optimizer
    "SGD, 3 steps": ([0.5, -0.25, 2.0], 3, 1.0, partial(SGD, lr=0.1)),
    "SGD with momentum, 5 steps": (
        [0.1, 0.2, -0.3, 1.7],
        5,
        0.5,
        partial(SGD, lr=0.1, momentum=0.9),
    ),
    "Adam, 6 steps": ([1.001, -0.7, 0.33, 0.0, 3.0], 6, 1.0, partial(ADAM, lr=0.01)),
    "AdamW, 4 steps": ([0.9, 1.1], 4, 2.0, partial(ADAMW, lr=0.02, weight_decay=0.1)),
    "updates that fp16 loses, 12 steps": ([1.0, -1.5, 2.5], 12, 0.01, partial(SGD, lr=0.01)),
    "no step": ([0.3, 0.6], 0, 1.0, partial(ADAM, lr=0.01)),
}


class Counted:
    """A link that copies at once; `crossed`: the bytes of each direction."""

    def __init__(self) -> None:
        self.crossed = {"up": 0, "down": 0}

    def to_host(self, tensor: Tensor) -> Tensor:
        """The tensor, in host memory."""
        return self._copy(tensor, "up")

    def to_device(self, tensor: Tensor) -> Tensor:
        """The tensor, on the device."""
        return self._copy(tensor, "down")

    def _copy(self, tensor: Tensor, way: str) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise Refused(f"the link takes a tensor, not {type(tensor).__name__}")
        self.crossed[way] += tensor.nbytes
        return tensor.detach().clone()


def _trained(
    function: Callable, values: list[float], num_steps: int, scale: float, make: Callable
) -> dict | None:
    masters, link = torch.tensor(values), Counted()
    weights = masters.half()
    answer = function(
        weights, masters, num_steps, _towards(scale), make, link.to_host, link.to_device
    )
    if answer is None:
        return None
    if not torch.equal(masters, torch.tensor(values)):
        raise Refused(
            "it changes its argument `masters` in place: the parameter on the host is a copy, "
            "nn.Parameter(masters.clone())"
        )
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise Refused("three things were asked for: weights, masters, bytes over the link")
    return {
        "the weights": answer[0],
        "the masters": answer[1],
        "bytes to the host, counted": link.crossed["up"],
        "bytes to the device, counted": link.crossed["down"],
        "bytes over the link, returned": answer[2],
    }


HOST = Exercise(
    name="train_on_host",
    title="The other fourteen bytes",
    chapter="07",
    reference=train_on_host,
    cases=[tuple(case) for case in CASES.values()],
    labels=list(CASES),
    observe=_trained,
    mistakes=MISTAKES,
    tolerance=0.0,
    hints=[
        "Once, before the steps: host = nn.Parameter(masters.clone()), and an optimizer made of "
        "[host]. It keeps its states from step to step.",
        "A step: the gradient of the weights on the device, over the link in 16 bits, "
        "host.grad = arrived.float(), optimizer.step(), host.detach().half() over the link: these "
        "are the next step's weights.",
        "tensor.nbytes is what a tensor costs on the link. Cast up after the gradient has arrived, "
        "cast down before the values leave.",
    ],
)

register(HOST)
