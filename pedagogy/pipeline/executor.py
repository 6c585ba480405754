"""The executor: a rank works through its list of actions. That is all a pipeline is at run time.

    for action in schedule[rank]:
        F   [1] take the micro-batch, or receive the activation  [2] forward  [3] send it on
        B   [1] receive the gradient (the last stage: start from the loss)  [2] backward  [3] send
        W   [2] the weights' half of a backward
        R   [2] the forward once more
        U   [2] update the stage's weights

Every schedule runs through this loop: what differs is the list and the kind of stage. The same list
is what `simulate` replays and what the figures draw.

The mean of means is not the mean
---------------------------------
The gradient of the batch's mean loss is wanted, and micro-batches may differ in size: each loss is
weighted by its share of the samples that are updated together. The loss that is reported is the
loss that was propagated back, with the same weights.

What real systems do differently: they send without headers, having exchanged all shapes before, and
free the output of a stage once it is sent, as backward needs only its graph.

Sources: Huang et al. 2019 (GPipe); Narayanan et al. 2021 (PTD-P), section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pedagogy.pipeline.mail import Mail, consumer_of
from pedagogy.pipeline.replay import check_schedule, durations_of
from pedagogy.pipeline.schedule import Action, Layout, Schedule
from pedagogy.pipeline.stage import RecomputingStage, SplitStage, Stage
from pedagogy.ranks import Group, Pace

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class PipelineRun:
    """What one rank saw. `losses`, by micro-batch and weighted, on the last stage's ranks alone."""

    losses: dict[int, Tensor] = field(default_factory=dict)
    peak_in_flight: int = 0

    @property
    def loss(self) -> Tensor | None:
        """The loss that was propagated back; None where the last stage is elsewhere."""
        return torch.stack(list(self.losses.values())).sum() if self.losses else None


def split_batch(batch: Tensor, num_microbatches: int) -> list[Tensor]:
    """The batch in micro-batches, as even as they can be (8 in 3: 3, 3, 2).

    **Raises** ValueError where there are fewer samples than micro-batches.
    """
    if not 1 <= num_microbatches <= len(batch):
        raise ValueError(
            f"a batch of {len(batch)} cannot be split into {num_microbatches} micro-batches: each "
            f"needs a sample, so 1 to {len(batch)} are possible"
        )
    return list(batch.tensor_split(num_microbatches))


def run_schedule(
    group: Group,
    schedule: Schedule,
    stages: Mapping[int, nn.Module | Stage],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Loss,
    pace: Pace | None = None,
    **costs: Any,
) -> PipelineRun:
    """Every micro-batch has passed forward and back; parameters hold the batch's gradient.

    Gradients are added to what is there, as `backward()` does. `stages` holds this rank's stages
    by number, modules or `Stage` objects. All ranks pass the micro-batches' `inputs` and `targets`;
    only those of the first and the last stage look at them. `loss(output, target)` is a mean over
    samples. With `pace`, each action takes the time that `simulate(schedule, **costs)` gives it, in
    units of the pace.

    **Bytes** each boundary between ranks carries, per micro-batch, an activation and its gradient.
    **Raises** ValueError, before anything is sent, where the schedule cannot run (see
    `check_schedule`) or does not fit the group, the stages or the micro-batches.
    """
    layout = check_schedule(schedule)
    _check_fit(group, layout, inputs, targets)
    mine = [Action(*action) for action in schedule[group.rank]]
    if not isinstance(stages, Mapping):
        raise ValueError(f"stages is a {type(stages).__name__}; give a dict from number to stage")
    missing = sorted({action.stage for action in mine} - set(stages))
    if missing:
        raise ValueError(f"rank {group.rank} has no stage {missing}; it got {sorted(stages)}")
    held = {s: _as_stage(s, stages[s], mine) for s in {action.stage for action in mine}}
    for s, stage in held.items():
        stage.begin([action for action in mine if action.stage == s], layout)
    weights = _loss_weights(mine, layout, targets)
    span = _spans(group, layout, pace, costs)
    mail, run = Mail(group, schedule, layout), PipelineRun()
    for action in mine:
        kind, s, k = action
        stage, last = held[s], s == layout.num_stages - 1
        result = None
        if kind == "F":
            x = inputs[k] if s == 0 else mail.receive(action).requires_grad_()  # [1]
            finish = partial(_weighted, loss, targets[k], weights[k]) if last else _as_it_is
            with span(action):
                result = stage.forward(k, x, finish)  # [2]
            if last:
                run.losses[k] = result
            run.peak_in_flight = max(run.peak_in_flight, _in_flight(held))
        elif kind == "B":
            gradient = None if last else mail.receive(action)
            with span(action):
                result = stage.backward(k, gradient)
        else:
            with span(action):
                getattr(stage, _METHODS[kind])(k)
        if consumer := consumer_of(action, layout.num_stages):
            mail.send(result, consumer)  # [3]
        x = gradient = result = None  # what is kept, its stage keeps
    mail.close()
    return run


_METHODS = {"W": "weight_backward", "R": "recompute", "U": "update"}


def _in_flight(stages: Mapping[int, Stage]) -> int:
    return sum(stage.in_flight for stage in stages.values())


def _weighted(loss: Loss, target: Tensor, weight: float, output: Tensor) -> Tensor:
    value = loss(output, target)
    if value.dim():
        raise ValueError(f"the loss has shape {tuple(value.shape)}; it must be one number, a mean")
    return value * weight


def _as_it_is(output: Tensor) -> Tensor:
    return output


def _as_stage(number: int, stage: nn.Module | Stage, mine: list[Action]) -> Stage:
    """`stage`, wrapped if it is a plain module into the kind of stage that its actions need."""
    kinds = {action.kind for action in mine if action.stage == number}
    if not isinstance(stage, Stage):
        stage = (RecomputingStage if "R" in kinds else SplitStage if "W" in kinds else Stage)(stage)
    for kind in kinds & set(_METHODS):
        if not hasattr(stage, _METHODS[kind]):
            raise ValueError(
                f"the schedule has {kind} for stage {number}, but a {type(stage).__name__} has no "
                f"{_METHODS[kind]}; see pedagogy.pipeline.stage and weight_versions"
            )
    halves = [{a.microbatch for a in mine if a[:2] == (kind, number)} for kind in "BW"]
    if hasattr(stage, "weight_backward") and halves[0] != halves[1]:
        raise ValueError(
            f"stage {number} runs its backward in two halves, but the schedule has no W of the "
            f"micro-batches {sorted(halves[0] - halves[1])}: their weights' gradient would be lost"
        )
    return stage


def _check_fit(group: Group, layout: Layout, inputs: Sequence, targets: Sequence) -> None:
    if not torch.is_grad_enabled():
        raise ValueError("gradients are switched off (torch.no_grad): a schedule has backwards")
    if group.size != layout.num_ranks:
        raise ValueError(f"a schedule for {layout.num_ranks} ranks on a group of {group.size}")
    for name, batches in (("inputs", inputs), ("targets", targets)):
        if len(batches) != layout.num_microbatches:
            raise ValueError(
                f"{len(batches)} {name} for a schedule of {layout.num_microbatches} micro-batches; "
                "split_batch makes them"
            )
        if any(not batch.dim() or not len(batch) for batch in batches):
            raise ValueError(
                f"a micro-batch of the {name} holds no sample: its first dimension is 0"
            )


def _loss_weights(mine: list[Action], layout: Layout, targets: Sequence[Tensor]) -> dict:
    """For each micro-batch its share of the samples that are updated together."""
    last = layout.num_stages - 1
    ends = [action for action in mine if action.stage == last and action.kind in "BU"]
    sizes = [len(target) for target in targets]
    if all(action.kind == "B" for action in ends):
        return {action.microbatch: sizes[action.microbatch] / sum(sizes) for action in ends}
    _check_rounds(layout.replicas[last], sizes)
    weights: dict[int, float] = {}
    together: list[int] = []
    for action in [*ends, Action("U", last, -1)]:
        if action.kind == "B":
            together.append(action.microbatch)
        else:
            samples = sum(sizes[k] for k in together)
            weights |= {k: sizes[k] / samples for k in together}
            together = []
    return weights


def _check_rounds(replicas: int, sizes: list[int]) -> None:
    for k, size in enumerate(sizes):
        if size != sizes[k - k % replicas]:
            raise ValueError(
                f"minibatches of {sizes[k - k % replicas]} and {size} samples in one round of "
                f"{replicas} replicas of the last stage: their gradients are averaged, so give "
                "each replica of a round equally many"
            )


def _spans(group: Group, layout: Layout, pace: Pace | None, costs: dict) -> Callable:
    """A context manager for an action: logs it, and pads it to its time where there is a pace."""
    duration = durations_of(layout, **costs)

    @contextmanager
    def span(action: Action) -> Iterator[None]:
        name = f"{action.kind}{action.microbatch}"
        with group.span(action.kind, name):
            if pace is None:
                yield
            else:
                with pace.span(duration(layout.code(*action))):
                    yield

    return span
