"""What shows that an asynchronous pipeline does what its paper says, and what it does to the loss.

Why it exists
-------------
A pipeline without a flush computes something else than one process does, so "equal to one process"
cannot be asked of it. Three other questions can:

    which weights did each minibatch meet?   `versions_met` reads it from the schedule alone
    is each gradient the gradient there?     `Recorder` keeps what a stage met and what it got;
                                             `gradient_errors` computes the gradient again
    where does training end?                 a recursion in one process: `train_by_recursion`, and
                                             `replicated_by_recursion` in `asynchronous_alone`

Sources: Harlap et al. 2018 (PipeDream, arXiv:1806.03377).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pedagogy.parameters import flatten
from pedagogy.pipeline.evidence import compute_events
from pedagogy.pipeline.executor import Loss
from pedagogy.pipeline.schedule import Action, Layout, Schedule
from pedagogy.pipeline.simulate import Simulation
from pedagogy.pipeline.stage import Finish, Stage
from pedagogy.pipeline.versions_table import newest_versions
from pedagogy.pipeline.weight_versions import StashingStage
from pedagogy.ranks import Event

Weights = list[Tensor]
History = list[Weights]  # after 0, 1, 2, ... updates


def versions_met(schedule: Schedule) -> dict[tuple[int, int], int]:
    """By (stage, minibatch): how many updates stand before its F in the list of its rank."""
    newest = newest_versions(schedule)
    return {(stage, k): version for (kind, stage, k), version in newest.items() if kind == "F"}


class Record(NamedTuple):
    """What a `Recorder` saw of one stage.

    By minibatch: `used`, the versions in F and in B; `met`, the weights in F; `gradients`, flat.
    By update: `history`, the newest weights; `kept`, (minibatch, versions that are kept from then).
    `peak_versions` is the most of these, `peak_bytes` the most bytes of their weights.
    """

    used: dict[int, tuple[int, int]]
    met: dict[int, Weights]
    gradients: dict[int, Tensor]
    history: History
    kept: list[tuple[int, int]]
    peak_versions: int
    peak_bytes: int


class Recorder(Stage):
    """A stage with versions, which works as before and is written down; see `record`.

    Gradients are those of one minibatch where an update follows every backward.
    """

    def __init__(self, stage: StashingStage) -> None:
        self._stage = stage
        self._met, self._gradients, self._peak_bytes = {}, {}, _live_bytes(stage)
        self._history, self._kept = [copies(stage.module.parameters())], []

    @property
    def in_flight(self) -> int:
        """As the stage's."""
        return self._stage.in_flight

    def begin(self, actions: list[Action], layout: Layout) -> None:
        """As the stage's."""
        self._stage.begin(actions, layout)

    def forward(self, k: int, x: Tensor, finish: Finish) -> Tensor:
        """As the stage's; the weights that `k` meets are copied."""
        version = self._stage.versions[self._stage.version_for(k)]
        self._met[k] = copies(version.values())
        return self._stage.forward(k, x, finish)

    def backward(self, k: int, gradient: Tensor | None) -> Tensor | None:
        """As the stage's; the gradient of the weights is copied."""
        x_gradient = self._stage.backward(k, gradient)
        trained = [p.grad for p in self._stage.module.parameters() if p.grad is not None]
        self._gradients[k] = torch.cat([g.flatten() for g in trained] or [torch.zeros(0)])
        return x_gradient

    def update(self, k: int) -> None:
        """As the stage's; the newest weights are copied, and the bytes of all versions counted."""
        self._stage.update(k)
        self._history.append(copies(self._stage.module.parameters()))
        self._kept.append((k, len(self._stage.versions)))
        self._peak_bytes = max(self._peak_bytes, _live_bytes(self._stage))

    @property
    def record(self) -> Record:
        """What was written down so far."""
        stage = self._stage
        notes = (stage.used, self._met, self._gradients, self._history, self._kept)
        return Record(*notes, stage.peak_versions, self._peak_bytes)


def gradient_errors(
    records: Sequence[Record],
    stages: Sequence[nn.Module],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Loss,
) -> list[list[float]]:
    """By stage and minibatch: |g - g'| / |g'|, g' the gradient at the weights that F met."""
    errors: list[list[float]] = [[] for _ in stages]
    for k, (x, target) in enumerate(zip(inputs, targets, strict=True)):
        pairs = [
            zip(record.met[k], stage.parameters(), strict=True)
            for record, stage in zip(records, stages, strict=True)
        ]
        met = [[w.clone().requires_grad_(p.requires_grad) for w, p in pair] for pair in pairs]
        for stage, weights in zip(stages, met, strict=True):
            x = functional_call(stage, named(stage, weights), (x,))
        loss(x, target).backward()
        for mine, record, weights in zip(errors, records, met, strict=True):
            right = flatten([w.grad for w in weights if w.grad is not None])
            mine.append(((record.gradients[k] - right).norm() / right.norm()).item())
    return errors


def whole(histories: Sequence[History]) -> History:
    """The stages' histories as one of the whole model, weights stage by stage."""
    return [[w for weights in at for w in weights] for at in zip(*histories, strict=True)]


def used_by_stage(records: Sequence[Record]) -> dict[tuple[int, int], tuple[int, int]]:
    """The versions in F and in B by (stage, minibatch), of one record for each stage."""
    return {(s, k): used for s, one in enumerate(records) for k, used in one.used.items()}


def kept_curves(records: Sequence[Record], simulation: Simulation) -> dict[int, list]:
    """By stage: how many versions it keeps, as (time, count from then on), in simulated time.

    The simulation may be of fewer minibatches than the records.
    """
    curves = {}
    for s, record in enumerate(records):
        at = [(Action("U", s, k), count) for k, count in record.kept]
        curves[s] = [(0.0, 1), *((simulation.end[u], n) for u, n in at if u in simulation.end)]
    return curves


def in_units(events: Iterable[Event], unit_seconds: float) -> list[Event]:
    """The spans of compute of a run from 0 on, in units: comparable with a simulation."""
    return [
        event._replace(start=event.start / unit_seconds, end=event.end / unit_seconds)
        for event in compute_events(events)
    ]


def most_in_flight(events: Iterable[Event]) -> list[int]:
    """By rank: the most minibatches between their F and their B, as a run logged them."""
    now, most = Counter(), Counter()
    for event in sorted(compute_events(events), key=lambda event: event.start):
        most[event.rank] = max(most[event.rank], now[event.rank] + (event.kind == "F"))
        now[event.rank] += {"F": 1, "B": -1}.get(event.kind, 0)
    return [most[rank] for rank in sorted(most)]


def same_history(mine: History, right: History, tolerance: float = 1e-10) -> bool:
    """Whether all weights are equal after every update, each to `tolerance` of its largest."""
    return len(mine) == len(right) and all(
        bool((a - b).abs().max() <= tolerance * b.abs().max())
        for one, other in zip(mine, right, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def named(module: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """A module's weights by name, from a list in the order of its parameters."""
    return dict(zip((name for name, _ in module.named_parameters()), weights, strict=True))


def copies(weights: Iterable[Tensor]) -> Weights:
    """The tensors as they are now, for ever."""
    return [w.detach().clone() for w in weights]


def _live_bytes(stage: StashingStage) -> int:
    """Bytes of the storages of all versions that are kept or held, each counted once."""
    versions = [*stage.versions.values(), *(held.more.weights for held in stage.held.values())]
    storages = [w.untyped_storage() for version in versions for w in version.values()]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())
