"""Chapter 07: an optimizer on the host in which one thing is in the wrong place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn


def _sum_of(gradient: Tensor, host: nn.Parameter) -> Tensor:
    return gradient if host.grad is None else host.grad + gradient


def _up_in_16_bits(gradient: Tensor, to_host: Callable) -> Tensor:
    return to_host(gradient).float()


def _up_in_32_bits(gradient: Tensor, to_host: Callable) -> Tensor:
    return to_host(gradient.float())


def _down_in_16_bits(values: Tensor, to_device: Callable) -> Tensor:
    return to_device(values.half())


def _down_in_32_bits(values: Tensor, to_device: Callable) -> Tensor:
    return to_device(values).half()


def trained(
    weights: Tensor,
    masters: Tensor,
    num_steps: int,
    gradient_of: Callable,
    make_optimizer: Callable,
    to_host: Callable,
    to_device: Callable,
    begun: Callable[[Tensor, Tensor, Callable], Tensor] = lambda weights, masters, to_host: masters,
    up: Callable[[Tensor, Callable], Tensor] = _up_in_16_bits,
    down: Callable[[Tensor, Callable], Tensor] = _down_in_16_bits,
    grad: Callable[[Tensor, nn.Parameter], Tensor] = lambda gradient, host: gradient,
    before_step: Callable[[nn.Parameter, Tensor], Any] = lambda host, weights: None,
    is_new: Callable[[int], bool] = lambda step: step == 0,
    seen: Callable[[Tensor, Tensor], Tensor] = lambda weights, host: weights,
    late: Callable[[Tensor, Tensor], Tensor] = lambda before, after: after,
    returned: Callable[[Tensor, nn.Parameter], Tensor] = lambda weights, host: weights,
    counted: Callable[[int, int], float] = lambda numbers, steps: 4 * numbers * steps,
) -> tuple[Tensor, Tensor, float]:
    """The reference's results, with the parts that are given in the place of its own."""
    host = nn.Parameter(begun(weights, masters, to_host).clone())
    for step in range(num_steps):
        if is_new(step):
            optimizer = make_optimizer([host])
        before_step(host, weights)
        host.grad = grad(up(gradient_of(step, seen(weights, host)), to_host), host)
        before = host.detach().clone()
        optimizer.step()
        weights = down(late(before, host.detach()), to_device)
    return returned(weights, host), host.detach(), counted(len(masters), num_steps)


def _rounded_in_place(values: Tensor, to_device: Callable) -> Tensor:
    values.copy_(values.half())
    return to_device(values.half())


def _from_the_weights(host: nn.Parameter, weights: Tensor) -> None:
    host.data.copy_(weights)


def _sent_once(weights, masters, num_steps, gradient_of, make_optimizer, to_host, to_device):
    """The weights on the device stay as they are until training is over."""
    _, host, _ = trained(
        *(weights, masters, num_steps, gradient_of, make_optimizer, to_host),
        lambda values: values,
        seen=lambda new, host: weights,
    )
    if num_steps == 0:
        return weights, host, 0
    return to_device(host.half()), host, 2 * len(masters) * (num_steps + 1)


def _on_the_device(weights, masters, num_steps, gradient_of, make_optimizer, *link):
    stays = [lambda tensor: tensor] * 2
    return trained(
        *(weights, masters, num_steps, gradient_of, make_optimizer, *stays),
        counted=lambda numbers, steps: 0,
    )


def _bytes(each: int) -> Callable[[int, int], int]:
    return lambda numbers, steps: each * numbers * steps


_WIDE_GRADIENT = (
    "The gradient is cast to fp32 on the device, and 4 bytes for each parameter cross the link. "
    "Send it as it is, and cast on the host."
)
_WIDE_VALUES = (
    "The fp32 values cross the link, and are rounded on the device: 4 bytes for each parameter. "
    "Round on the host, and send 2."
)
_BOTH_WIDE = (
    "Both ways cross the link in fp32: 8 bytes for each parameter. Cast up after the gradient has "
    "arrived, and down before the values leave."
)
_COUNT = "The training is right; what is returned as bytes is not: "

MISTAKES = [
    (
        partial(trained, before_step=_from_the_weights),
        "Each step begins from the weights in 16 bits, and the masters lose what rounding takes: "
        "small updates never add up. The host's fp32 values go on from step to step.",
    ),
    (
        partial(trained, down=_rounded_in_place),
        "After each step the masters are rounded to 16 bits, and small updates never add up. Round "
        "what is sent; the host's fp32 values go on as they are.",
    ),
    (
        partial(trained, begun=lambda weights, masters, to_host: weights.float()),
        "The masters begin as the rounded weights; begin with `masters`, which are exact.",
    ),
    (
        partial(trained, is_new=lambda step: True),
        "The optimizer is made anew in each step, and forgets its states: momentum and Adam's "
        "moments begin at 0 each time. Make it once, before the steps.",
    ),
    (
        partial(trained, grad=_sum_of),
        "The gradients add up from step to step: host.grad is set, not added to, or is cleared.",
    ),
    (partial(trained, up=_up_in_32_bits, counted=_bytes(6)), _WIDE_GRADIENT),
    (partial(trained, up=_up_in_32_bits), _WIDE_GRADIENT),
    (
        partial(trained, up=lambda gradient, to_host: to_host(gradient)),
        "The gradient arrives in 16 bits, and the host's parameter is fp32: a parameter takes a "
        ".grad of its own dtype alone. Cast it there: .float().",
    ),
    (partial(trained, down=_down_in_32_bits, counted=_bytes(6)), _WIDE_VALUES),
    (partial(trained, down=_down_in_32_bits), _WIDE_VALUES),
    (
        partial(trained, up=_up_in_32_bits, down=_down_in_32_bits, counted=_bytes(8)),
        _BOTH_WIDE,
    ),
    (partial(trained, up=_up_in_32_bits, down=_down_in_32_bits), _BOTH_WIDE),
    (
        partial(trained, seen=lambda weights, host: host.detach()),
        "The gradient is asked of the fp32 values, which are on the host; the device has the "
        "weights in 16 bits, and computes with these.",
    ),
    (
        partial(trained, late=lambda before, after: before),
        "The values that go back are those from before the update: the device is a step behind. "
        "First optimizer.step(), then send.",
    ),
    (
        partial(trained, returned=lambda weights, host: host.detach()),
        "The masters are returned as weights; the device's weights are in fp16.",
    ),
    (
        _sent_once,
        "The weights go back once, after the last step, and all gradients are those of the first "
        "weights. They go back in each step.",
    ),
    (
        _on_the_device,
        "Nothing crosses the link: the update is made where the gradient is, on the device, and "
        "so the states lie there.",
    ),
    (
        partial(trained, begun=lambda weights, masters, to_host: to_host(masters)),
        "The masters are on the host already, before the first step: sending them is not needed.",
    ),
    (
        partial(trained, counted=_bytes(2)),
        f"{_COUNT}that is one direction, or one for each number. Gradients go up, values down, 2 "
        "bytes each.",
    ),
    (
        partial(trained, counted=_bytes(8)),
        f"{_COUNT}the numbers cross in 16 bits, 2 bytes each, not 4.",
    ),
    (
        partial(trained, counted=lambda numbers, steps: 4 * numbers),
        f"{_COUNT}that is one step; those of all steps were asked for.",
    ),
    (
        partial(trained, counted=lambda numbers, steps: 4 * steps),
        f"{_COUNT}that is for one parameter; those of all were asked for.",
    ),
]
