"""What a pipeline's run leaves as evidence: is it equal to one process, how idle, how many bytes?

A pipeline has no rank that holds the model. So each rank hands back the gradients and the weights
of its own stages, by name, and together they must be those of one process: every name there, every
number equal. A weight that two ranks hold must be right on both.

The figures of a run are read from its trace: `measured_bubble` compares the spans of compute with
the time that they took together, `overlapping` counts spans of different ranks that ran at once.
`CountingStage` weighs what a stage keeps between a forward and its backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.measure import MemoryMeter, all_close
from pedagogy.pipeline.partition import partition
from pedagogy.pipeline.schedule import Action, Layout, Schedule
from pedagogy.pipeline.stage import Finish, RecomputingStage, Stage
from pedagogy.ranks import Event, Run

COMPUTE = frozenset("FBWR")


class Evidence(NamedTuple):
    """A rank after the last step: losses (last stage alone), gradients and weights by name."""

    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    peak_in_flight: int = 0


def evidence(model: nn.Module, losses: Iterable[Tensor | None], peak: int = 0) -> Evidence:
    """What this rank holds of `model`: all parameters that have a gradient; before it is cleared.

    `losses` are those of the steps; None where the last stage is elsewhere.
    """
    held = {name: p for name, p in model.named_parameters() if p.grad is not None}
    return Evidence(
        losses=[loss.item() for loss in losses if loss is not None],
        gradients={name: p.grad.detach().clone() for name, p in held.items()},
        weights={name: p.detach().clone() for name, p in held.items()},
        peak_in_flight=peak,
    )


def equals_one_process(
    ranks: Iterable[Evidence], alone: Evidence, tolerance: float = 1e-10
) -> bool:
    """Whether the ranks together hold what `alone` holds: losses, and each parameter's numbers.

    Two are equal where no element is off by more than `tolerance` of the largest of its kind.
    """
    ranks = list(ranks)
    losses = [one.losses for one in ranks if one.losses]
    found = {name for one in ranks for name in one.weights}
    if not losses or found != set(alone.weights):
        return False
    pairs = [
        (
            {"": torch.tensor(own, dtype=torch.float64)},
            {"": torch.tensor(alone.losses, dtype=torch.float64)},
        )
        for own in losses
    ]
    pairs += [(one.gradients, alone.gradients) for one in ranks]
    pairs += [(one.weights, alone.weights) for one in ranks]
    return all(all_close(mine, right, tolerance) for mine, right in pairs)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy. **Shapes** (batch, sequence, vocabulary) and (batch, sequence)."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def evenly(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Boundaries of stages with as many layers each as can be: 8 in 3 gives 3, 3, 2."""
    return partition([1] * num_layers, num_stages)


def repeated(schedule: Schedule, times: int) -> Schedule:
    """The schedule `times` times in a row; a rank begins the next step when it has ended its own.

    Step i has the micro-batches i * num_microbatches and on.
    """
    per_step = Layout(schedule).num_microbatches
    return [
        [Action(kind, s, k + step * per_step) for step in range(times) for kind, s, k in actions]
        for actions in schedule
    ]


def compute_events(events: Iterable[Event]) -> list[Event]:
    """The spans of compute (F, B, W, R), on a clock that is 0 where the first one starts."""
    spans = [event for event in events if event.kind in COMPUTE]
    zero = min(event.start for event in spans)
    return [e._replace(start=e.start - zero, end=e.end - zero) for e in spans]


def measured_bubble(events: Iterable[Event]) -> float:
    """Idle time / (ranks x makespan), from the first start of compute to the last end."""
    spans = compute_events(events)
    ranks = {event.rank for event in spans}
    busy = sum(event.end - event.start for event in spans)
    return 1 - busy / (len(ranks) * max(event.end for event in spans))


def most_punctual(run: Run, unit_seconds: float = 1.0) -> list[Event]:
    """The compute of that repeat of a run that idled least, from 0, in units of `unit_seconds`.

    The worker returned `group.now()` at the start of each repeat, after a barrier. On a machine
    that does other things as well, the best of a few repeats is the one it disturbed least.
    """
    starts = [min(times) for times in zip(*run, strict=True)]
    repeats = [
        [event for event in run.trace if start <= event.start < end and event.kind in COMPUTE]
        for start, end in pairwise([*starts, math.inf])
    ]
    best = compute_events(min(repeats, key=measured_bubble))
    return [e._replace(start=e.start / unit_seconds, end=e.end / unit_seconds) for e in best]


def overlapping(events: Iterable[Event]) -> int:
    """How many pairs of compute spans, of two different ranks, ran at the same time."""
    return sum(
        one.rank != other.rank and one.start < other.end and other.start < one.end
        for one, other in combinations(compute_events(events), 2)
    )


class _Counting:
    """Mixed into a stage: weighs what it keeps of a micro-batch, after F and after R."""

    def __init__(self, module: nn.Module, meter: MemoryMeter) -> None:
        super().__init__(module)
        self.meter, self.peak_bytes = meter, 0
        self.bytes_of: dict[int, int] = {}

    def forward(self, k: int, x: Tensor, finish: Finish) -> Tensor:
        """As the stage's own; what is received counts, what only travels on does not."""
        before = self._now()
        output = super().forward(k, x, finish)
        received = x.nbytes if x.requires_grad else 0
        travels_on = output.nbytes if self.held[k].output is None else 0
        self._weigh(k, self._now() - before + received - travels_on)
        return output

    def recompute(self, k: int) -> None:
        """As the stage's own."""
        before = self._now()
        super().recompute(k)
        self._weigh(k, self.bytes_of[k] + self._now() - before)

    def _now(self) -> int:
        return self.meter.now_by_kind["activations"]

    def _weigh(self, k: int, num_bytes: int) -> None:
        self.bytes_of[k] = num_bytes
        self.peak_bytes = max(self.peak_bytes, sum(self.bytes_of[one] for one in self.held))


class CountingStage(_Counting, Stage):
    """A stage that counts the bytes which it keeps between a forward and its backward.

    `bytes_of[k]`: what is kept of micro-batch k, its received input included; `peak_bytes`: the
    most that was kept at once. `meter` is a running `memory_meter` of the module.
    """


class CountingRecomputingStage(_Counting, RecomputingStage):
    """The same for a stage that keeps its input alone until it recomputes."""
