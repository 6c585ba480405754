"""What offloading leaves as evidence: the same training in fewer bytes, and when the device waits.

Training
--------
`train_gpt` trains one small GPT with any of the three techniques, under a limit that is enforced,
and keeps what can be compared: weights, losses, live bytes over time, bytes over the link. The
limit sees what the training thread makes, the device's memory; what the link's threads make is the
host's.

Time
----
`paced_step` runs one step of equal layers whose compute and copies last as long as they are told
to, so that a measured timeline can be laid over `predicted_step`, the simulated one. `free_step`
is a step of a GPT without any pacing.

Activations
-----------
`saved_while_running` chooses by the module that saves; `kept_after_forward` counts what is left on
the device at the moment when most is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.measure import DeviceBudget, MemoryMeter, memory_meter
from pedagogy.offload.activations import offload_activations
from pedagogy.offload.optimizer import OffloadedOptimizer
from pedagogy.offload.parameters import OffloadedModule
from pedagogy.offload.simulate import Offload, simulate_offload, transfers
from pedagogy.parameters import flatten
from pedagogy.ranks import Event, Link, Trace, open_link
from pedagogy.workloads import GPT, text_batch

TECHNIQUES = ("parameters", "optimizer", "activations")


class Trained(NamedTuple):
    """What `train_gpt` returns; `weights`: all parameters in one, (elements,)."""

    weights: Tensor
    losses: list[float]
    meter: MemoryMeter | None
    to_device_bytes: int
    to_host_bytes: int


def train_gpt(
    shape: Mapping[str, int],
    offloaded: Collection[str] = (),
    limit: int | None = None,
    steps: int = 5,
    batch: int = 2,
    prefetch: int = 1,
    folder: Path | None = None,
) -> Trained:
    """A GPT of that shape, trained with Adam on a device of `limit` bytes (None: not counted).

    **Raises** BudgetExceeded; ValueError for a technique that is none of `TECHNIQUES`.
    """
    if isinstance(offloaded, str):
        raise ValueError(f"{offloaded!r} is a string: give a tuple of names, ({offloaded!r},)")
    if unknown := set(offloaded) - set(TECHNIQUES):
        raise ValueError(f"{sorted(unknown)}: choose among {', '.join(TECHNIQUES)}")
    torch.manual_seed(0)
    link, losses = open_link(), []
    run = model = GPT(**shape)
    if "parameters" in offloaded:
        run = OffloadedModule(model, link, prefetch, folder=folder)
    optimizer, on_device = _optimizer(run, "optimizer" in offloaded, link)
    counted = nullcontext() if limit is None else DeviceBudget(limit, model, on_device)
    with counted as meter:
        for step in range(steps):
            moved = offload_activations(link, prefetch)
            with moved if "activations" in offloaded else nullcontext():
                loss = model.loss(*text_batch(batch, shape["sequence"], step=step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    moved_bytes = link.to_device_bytes, link.to_host_bytes
    if run is not model:
        run.restore()
    link.close()
    return Trained(flatten(list(model.parameters())).detach(), losses, meter, *moved_bytes)


class _Both:
    """Adam on the device for what stays there, and on the host for a module's layers."""

    def __init__(self, on_device: torch.optim.Optimizer, run: OffloadedModule) -> None:
        self.on_device, self.link = on_device, run.link
        self.on_host = torch.optim.Adam(run.host_parameters())

    def step(self) -> None:
        self.on_device.step()
        self.link.on_host(self.on_host.step)

    def zero_grad(self) -> None:
        self.on_device.zero_grad()
        self.on_host.zero_grad()


def _optimizer(run: nn.Module, offloaded: bool, link: Link) -> tuple[Any, Any]:
    """What is stepped, and the part of it whose states are on the device (or None)."""
    if offloaded:
        return OffloadedOptimizer(run, torch.optim.Adam, link), None
    if not isinstance(run, OffloadedModule):
        adam = torch.optim.Adam(run.parameters())
        return adam, adam
    adam = torch.optim.Adam([p for p in run.parameters() if p not in run.copies])
    return _Both(adam, run), adam


def paced_step(
    prefetch: int,
    layers: int = 4,
    forward: float = 0.03,
    backward: float = 0.06,
    copy: float = 0.05,
) -> Trace:
    """One step of equal layers that last as long as they are told to; its first event is at 0."""
    width = 64
    link = open_link(bytes_per_second=4 * width**2 / copy)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    seconds = [forward] * layers + [backward] * layers
    run = OffloadedModule(model, link, prefetch, compute_seconds=seconds)
    run(torch.ones(1, width)).sum().backward()
    link.close()
    return from_zero(run.trace)


def predicted_step(
    prefetch: int,
    layers: int = 4,
    forward: float = 0.03,
    backward: float = 0.06,
    copy: float = 0.05,
) -> Offload:
    """The same step, simulated: its 2 x `layers` uses, of which some need no copy."""
    compute = [forward] * layers + [backward] * layers
    copies = [copy * needed for needed in transfers(layers, prefetch)]
    return simulate_offload(compute, copies, prefetch)


def free_step(shape: Mapping[str, int], prefetch: int = 1, batch: int = 2) -> Trace:
    """The second step of a GPT whose layers and copies take what they take; from 0."""
    torch.manual_seed(0)
    model, link = GPT(**shape), open_link()
    run = OffloadedModule(model, link, prefetch)
    for step in range(2):
        done = len(run.trace)
        model.loss(*text_batch(batch, shape["sequence"], step=step)).backward()
    link.close()
    return from_zero(run.trace[done:])


def from_zero(events: Iterable[Event]) -> Trace:
    """The same events, the first of them at 0 seconds."""
    events = list(events)
    first = min(event.start for event in events)
    return Trace(e._replace(start=e.start - first, end=e.end - first) for e in events)


def copied_layers(events: Iterable[Event]) -> list[int]:
    """The layers in the order in which they were copied to the device."""
    return [int(e.name.split()[-1]) for e in events if e.kind == "to_device"]


def timed_steps(
    device: str, shape: Mapping[str, int], offloaded: bool, steps: int = 4, batch: int = 8
) -> tuple[Tensor, float]:
    """All parameters, (elements,), after some steps of SGD, and the seconds of the fastest step.

    Nothing is offloaded, or everything is: on a GPU over its real link.
    """
    torch.manual_seed(0)
    run = model = GPT(**shape).to(device)
    link, fastest = open_link(device), float("inf")
    if offloaded:
        run = OffloadedModule(model, link)
        optimizer: Any = OffloadedOptimizer(run, torch.optim.SGD, link, lr=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        texts = [part.to(device) for part in text_batch(batch, shape["sequence"], step=step)]
        start = time.perf_counter()
        with offload_activations(link) if offloaded else nullcontext():
            loss = model.loss(*texts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        fastest = min(fastest, time.perf_counter() - start)
    if run is not model:
        run.restore()
    return flatten(list(model.parameters())).detach(), fastest


def saved_while_running(model: nn.Module, *kinds: type[nn.Module]) -> Callable[[Tensor], bool]:
    """A `wanted` for `offload_activations`: what is saved while a module of these kinds runs."""
    running: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, kinds):
            module.register_forward_pre_hook(lambda module, _: running.append(module))
            module.register_forward_hook(lambda *_: running.clear())
    return lambda tensor: bool(running)


def kept_after_forward(
    loss_of: Callable[[], Tensor], wanted: Callable[[Tensor], bool]
) -> tuple[int, int]:
    """Bytes made by forward that stay on the device until backward, and bytes that go to the host.

    They are counted when all that leaves has left.
    """
    link, last = open_link(), torch.zeros(1)
    with memory_meter() as meter:
        with offload_activations(link, wanted=wanted):
            loss = loss_of()
        gone = link.to_host_bytes
        link.to_host(last).finish()  # copies end in the order in which they began
        kept = meter.now
        loss.backward()
    link.close()
    return kept, gone
