"""What recomputation leaves as evidence: one iteration's bytes, forwards, seconds and gradients.

Run
---
`run` runs one iteration as a decision says (or plainly, or under a context such as a checkpoint's
own), under a memory meter, and keeps what can be compared: gradients, peak, operations that ran
again, what the link carried. `fastest_seconds` runs several ways of one iteration in turn, so
that whatever else the machine does meets all of them.

Slow motion
-----------
`Paced` is a dispatch mode under which operations last as long as they are told to, forward,
backward or again; it sleeps after the real one. Then copies that are paced and compute that is
paced have the proportions of a chosen device, on any machine, and two cores that are shared by
others do not decide which policy wins. Whatever it times, the picture says "paced".

Baselines
---------
`swapped` sends everything large to the host, as a pure offloader would; `recomputed` keeps a budget
without a link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from pedagogy.measure import memory_meter
from pedagogy.parameters import flatten
from pedagogy.ranks import Link, Trace, open_link
from pedagogy.recompute.checkpoint import checkpoint
from pedagogy.recompute.decide import Decision, by_policy, swap_or_recompute
from pedagogy.recompute.predict import predict
from pedagogy.recompute.profile import Profile, profile
from pedagogy.recompute.segments import Layer, checkpoint_binomial
from pedagogy.recompute.tape import SWAP, by_rule
from pedagogy.workloads import GPT, text_batch

Batch = tuple[Tensor, ...]
Through = Callable[[Layer, Tensor], Tensor]

# Seconds of a device in slow motion: convolutions are ten times as slow as what lies between them.
SLOW_MOTION = {
    "convolution": 0.010,
    "convolution_backward": 0.020,
    "native_batch_norm": 0.001,
    "native_batch_norm_backward": 0.002,
    "relu": 0.0005,
    "threshold_backward": 0.0005,
}


class DeepConvNet(nn.Module):
    """Convolution, BatchNorm and ReLU, `layers` times; then a mean over pixels, a linear layer.

    **Shapes** `(batch, 1, 8, 8)` -> a loss. Between layers `(batch, channels, 8, 8)`.
    """

    def __init__(self, layers: int = 10, channels: int = 8) -> None:
        super().__init__()
        stack: list[nn.Module] = []
        for index in range(layers):
            inside = channels if index else 1
            convolution = nn.Conv2d(inside, channels, kernel_size=3, padding=1, bias=False)
            stack += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
        self.features = nn.Sequential(*stack)
        self.classifier = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch."""
        return self.classifier(self.features(images).mean(dim=(2, 3)))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over the batch."""
        return functional.cross_entropy(self(images), labels)


class Paced(TorchDispatchMode):
    """In here operations last as long as they are told to: {"convolution": seconds, ...}.

    >>> with Paced(SLOW_MOTION):
    ...     watched = profile(model, batch)
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        super().__init__()
        self.seconds = seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one operation, and sleep for the rest of its time."""
        name = func.name().removeprefix("aten::").split(".")[0]
        end = time.perf_counter() + self.seconds.get(name, 0.0)
        result = func(*args, **(kwargs or {}))
        if (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        return result


class Run(NamedTuple):
    """What `run` returns; `curve`: the meter's; `gradient`: of all parameters, (elements,)."""

    gradient: Tensor
    peak: int
    curve: list[tuple[float, dict[str, int]]]
    extra_forwards: int
    seconds: float
    link: Trace
    marks: tuple[float, float, float]  # perf_counter: start, end of forward, end


def run(
    model: nn.Module,
    batch: Batch,
    decision: Decision | None = None,
    link_bandwidth: float | None = None,
    pace: Mapping[str, float] | None = None,
    loss: Callable[[], Tensor] | None = None,
    metered: bool = True,
) -> Run:
    """One iteration of `model.loss(*batch)`, or of `loss()`, as decided.

    `link_bandwidth`: bytes per second; `pace`: as for `Paced`; `metered` False: only timed.
    """
    model.zero_grad()
    device = next(model.parameters()).device
    link = open_link(device, link_bandwidth)
    decided = nullcontext() if decision is None else by_rule(decision.rule, link, decision.calls)
    paced = Paced(pace) if pace else nullcontext()
    with memory_meter(model) if metered else nullcontext() as meter, paced:
        marks = [time.perf_counter()]
        with decided as tape:
            result = loss() if loss else model.loss(*batch)
        marks.append(time.perf_counter())
        result.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        marks.append(time.perf_counter())
    link.close()
    peak, curve = (meter.peak, meter.curve) if metered else (0, [])
    again = 0 if tape is None else tape.extra_forwards
    return Run(gradient(model), peak, curve, again, marks[2] - marks[0], link.trace, tuple(marks))


def gradient(model: nn.Module) -> Tensor:
    """All gradients in one, (elements,)."""
    return flatten([p.grad for p in model.parameters() if p.grad is not None])


def after_forward(
    function: Callable[[], Any], model: nn.Module | None = None, link: Link | None = None
) -> int:
    """Bytes of activations that are there while what `function` returned is held.

    `link` is closed before they are counted: what it was to carry away has left.
    """
    with memory_meter(model) as meter:
        result = function()
        if link is not None:
            link.close()
        kept = meter.now_by_kind["activations"]
    del result
    return kept


def checkpoint_each(layers: Iterable[Layer], x: Tensor, through: Through = checkpoint) -> Tensor:
    """All layers, each in a checkpoint of its own; `through(layer, x)` makes it."""
    for layer in layers:
        x = through(layer, x)
    return x


def gpt_loss(model: GPT, batch: Batch, blocks: Callable[[nn.ModuleList, Tensor], Tensor]) -> Tensor:
    """`model.loss`, its blocks run by `blocks(model.blocks, x)`."""
    inputs, targets = batch
    logits = model.unembed(blocks(model.blocks, model.embed(inputs)))
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def executed_forwards(num_layers: int, slots: int) -> int:
    """Forwards of single layers beyond the first pass that `checkpoint_binomial` really makes."""
    runs: list[int] = []

    def layer(x: Tensor) -> Tensor:
        runs.append(1)
        return x * x

    x = torch.ones(1, requires_grad=True)
    checkpoint_binomial([layer] * num_layers, slots, x).backward()
    return len(runs) - num_layers


def executed_units(num_layers: int, slots: int) -> int:
    """How many activations of one layer live at most while `checkpoint_binomial` runs.

    The slots, and a fixed number for the layer at work: its output, gradients, what they need.
    """

    def square(x: Tensor) -> Tensor:
        return x * x

    x = torch.ones(1000, requires_grad=True)
    with memory_meter() as meter:
        checkpoint_binomial([square] * num_layers, slots, x.clone()).sum().backward()
    return meter.peak // x.nbytes  # a few numbers besides are less than one


def swapped(watched: Profile, link_bandwidth: float) -> Decision:
    """All that is large goes to the host, each called one ask ahead, as a pure offloader does."""
    large = max(saved.nbytes for saved in watched.saved.values()) / 64
    actions = {key: SWAP for key, saved in watched.saved.items() if saved.nbytes >= large}
    return Decision(actions, None, predict(watched, actions, link_bandwidth))


def recomputed(watched: Profile, budget: int) -> Decision:
    """The budget without a link: one of a byte a second carries nothing in time."""
    return swap_or_recompute(watched, budget, link_bandwidth=1.0)


def fastest_seconds(ways: Mapping[str, Callable[[], float]], repeats: int = 5) -> dict[str, float]:
    """The fewest of each way's own seconds, all of them in turn: another load can only add."""
    turns = [{name: way() for name, way in ways.items()} for _ in range(repeats)]
    return {name: min(turn[name] for turn in turns) for name in ways}


def gpu_ways(device: str, shape: Mapping[str, int], batch: int = 16) -> dict[str, tuple]:
    """By way of running a GPT: seconds of the fastest of 3, allocator's peak, gradients equal.

    On a CPU the allocator's peak is 0.
    """
    torch.manual_seed(0)
    model = GPT(**shape).to(device)
    texts = tuple(part.to(device) for part in text_batch(batch, shape["sequence"]))
    watched = profile(model, texts)
    saved = sum(one.nbytes for one in watched.saved.values())
    both = swap_or_recompute(watched, watched.peak - saved // 4, 10e9)  # PCIe 4.0 gives more
    ways: dict[str, dict[str, Any]] = {
        "all kept": {},
        "each block": {"loss": lambda: gpt_loss(model, texts, checkpoint_each)},
        "cheap": {"decision": by_policy(watched, "speed")},
        "both": {"decision": both},
    }
    right = run(model, texts, metered=False).gradient
    cuda = torch.device(device).type == "cuda"
    found: dict[str, tuple] = {}
    for name, way in ways.items():
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        runs = [run(model, texts, **way, metered=False) for _ in range(3)]
        peak = torch.cuda.max_memory_allocated() if cuda else 0
        equal = torch.allclose(runs[0].gradient, right, rtol=1e-4, atol=1e-6)
        found[name] = min(one.seconds for one in runs), peak, equal
    return found
