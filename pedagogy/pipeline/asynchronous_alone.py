"""Asynchronous training in one process: many seeds, and nothing but the rule that differs.

The problem
-----------
What a rule does to the loss shows only over several seeds, and hundreds of launches would take
minutes. And the rules of the papers are recursions: they need no pipeline to be computed.

How it works
------------
`run_alone` works through a schedule with all its stages in one process, in the order in which the
simulation starts the actions. Stages, versions and arithmetic are those of the ranks; only the
messages are missing. So its weights are those of `run_schedule`, to the last digits.

`replicated_by_recursion` is the recursion of replicated stages, which update at their own pace;
`train_by_recursion` is that of all others.

What is trained: a small net on scanned digits, in stages (`digit_stages`), on batches that depend
on the seed and the step alone.

Source: Harlap et al. 2018 (PipeDream, arXiv:1806.03377).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pedagogy.pipeline.asynchronous import pipedream, with_updates
from pedagogy.pipeline.asynchronous_evidence import History, Recorder, copies, named, whole
from pedagogy.pipeline.evidence import repeated
from pedagogy.pipeline.executor import Loss, _as_it_is, _loss_weights, _weighted
from pedagogy.pipeline.recursion import VersionOf, train_by_recursion
from pedagogy.pipeline.schedule import Layout, Schedule
from pedagogy.pipeline.schedules import one_f_one_b
from pedagogy.pipeline.simulate import simulate
from pedagogy.pipeline.stage import Stage
from pedagogy.workloads import digits, digits_batch


def digit_stages(num_stages: int = 4, seed: int = 0, width: int = 32) -> list[nn.Sequential]:
    """A net for the digits, in stages of two linear layers with tanh; the last one is the output.

    **Shapes** (batch, 64) -> logits (batch, 10), double precision.
    """
    sizes = [64, *[width] * (2 * num_stages - 2), 10]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(a, b).double() for a, b in pairwise(sizes)]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
    stages = [
        nn.Sequential(layers[2 * s], nn.Tanh(), layers[2 * s + 1], nn.Tanh())
        for s in range(num_stages - 1)
    ]
    return [*stages, nn.Sequential(layers[-1])]


def digit_minibatches(count: int, batch: int, seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    """`count` batches of digits in a row, as lists of images (batch, 64), double, and labels."""
    drawn = [digits_batch(batch, seed, step) for step in range(count)]
    return [x.flatten(1).double() for x, _ in drawn], [y for _, y in drawn]


def flushed(num_stages: int, num_batches: int, microbatches_per_batch: int) -> Schedule:
    """1F1B with a flush and an update after every batch, several batches in a row.

    No rank starts a batch before its own update: the flush needs no barrier.
    """
    m = microbatches_per_batch
    return with_updates(repeated(one_f_one_b(num_stages, m), num_batches), every=m)


def run_alone(
    schedule: Schedule,
    stages: Mapping[int, Stage] | Sequence[Stage],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Loss,
) -> None:
    """All stages have worked through the schedule in this process, as `run_schedule` does on ranks.

    One stage a rank, without replicas. **Raises** ValueError as `simulate` does.
    """
    layout = Layout(schedule)
    last = layout.num_stages - 1
    weights = _loss_weights(schedule[last], layout, targets)
    for s in range(last + 1):
        stages[s].begin(schedule[s], layout)
    start = simulate(schedule).start
    mail: dict[tuple[str, int, int], Tensor | None] = {}
    for kind, s, k in sorted(start, key=start.get):  # of equal times, the order of the list
        if kind == "F":
            x = inputs[k] if s == 0 else mail.pop((kind, s, k)).requires_grad_()
            finish = partial(_weighted, loss, targets[k], weights[k]) if s == last else _as_it_is
            mail[kind, s + 1, k] = stages[s].forward(k, x, finish)
        elif kind == "B":
            mail[kind, s - 1, k] = stages[s].backward(k, mail.pop((kind, s, k), None))
        else:
            stages[s].update(k)


def replicated_by_recursion(
    stages: Sequence[nn.Module],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Loss,
    version_of: VersionOf,
    minibatches_per_update: Sequence[int],
) -> list[History]:
    """As `train_by_recursion`, but each stage counts its own updates; the histories by stage.

    Stage s updates after every `minibatches_per_update[s]` minibatches, with their mean gradient:
    one for each of its replicas.
    """
    optimizers = [make_optimizer(list(stage.parameters())) for stage in stages]
    histories = [[copies(stage.parameters())] for stage in stages]
    for k, (x, target) in enumerate(zip(inputs, targets, strict=True)):
        met = []
        for s, stage in enumerate(stages):
            met.append([w.clone().requires_grad_() for w in histories[s][version_of(k, s)]])
            x = functional_call(stage, named(stage, met[s]), (x,))
        loss(x, target).backward()
        for s, count in enumerate(minibatches_per_update):
            for parameter, weight in zip(stages[s].parameters(), met[s], strict=True):
                share, had = weight.grad / count, parameter.grad
                parameter.grad = share if had is None else had + share
            if k % count == count - 1:
                optimizers[s].step()
                optimizers[s].zero_grad()
                histories[s].append(copies(stages[s].parameters()))
    return histories


@torch.no_grad()
def losses_of(
    history: History, stages: Sequence[nn.Module], x: Tensor, target: Tensor, loss: Loss
) -> list[float]:
    """The loss on one batch with the weights of each version."""
    module = nn.Sequential(*stages)
    found = (named(module, weights) for weights in history)
    return [loss(functional_call(module, weights, (x,)), target).item() for weights in found]


def update_times(schedule: Schedule, **costs: float) -> list[float]:
    """When each update has been done by all stages, by `simulate(schedule, **costs)`."""
    end = simulate(schedule, **costs).end
    done: dict[int, float] = {}
    for action in end:
        if action.kind == "U":
            done[action.microbatch] = max(end[action], done.get(action.microbatch, 0.0))
    return [done[k] for k in sorted(done)]


class Trial(NamedTuple):
    """What all runs of a comparison have in common: SGD, one update for each minibatch.

    A run gives {updates: loss of the newest weights on all training digits}, after each of the
    numbers of updates in `taken`, the last of which ends it. Runs can so be compared at equal
    updates, or each after what it has done in the same time.
    """

    taken: Sequence[int] = tuple(range(0, 81, 10))
    batch: int = 16
    num_stages: int = 4

    def run(self, version_of: VersionOf, learning_rate: float, seed: int) -> dict[int, float]:
        """The losses of training by the recursion of `version_of`."""
        stages, optimizer = self._start(learning_rate, seed)
        data = digit_minibatches(max(self.taken), self.batch, seed)
        history = train_by_recursion(stages, optimizer, *data, cross_entropy, version_of)
        return self._losses(history)

    def run_stages(
        self,
        make_stage: Callable[[nn.Module, Callable], Stage],
        learning_rate: float,
        seed: int,
    ) -> dict[int, float]:
        """The losses of a PipeDream pipeline of `make_stage(module, make_optimizer)`s.

        For stages that follow no recursion, `UnstashedStage` for example, or one of your own.
        """
        modules, optimizer = self._start(learning_rate, seed)
        stages = [Recorder(make_stage(module, optimizer)) for module in modules]
        data = digit_minibatches(max(self.taken), self.batch, seed)
        run_alone(pipedream(self.num_stages, max(self.taken)), stages, *data, cross_entropy)
        return self._losses(whole([stage.record.history for stage in stages]))

    def _start(self, learning_rate: float, seed: int) -> tuple[list[nn.Sequential], Callable]:
        return digit_stages(self.num_stages, seed), partial(torch.optim.SGD, lr=learning_rate)

    def _losses(self, history: History) -> dict[int, float]:
        images, labels, _, _ = digits()
        batch = images.flatten(1).double(), labels
        chosen = [history[updates] for updates in self.taken]
        losses = losses_of(chosen, digit_stages(self.num_stages), *batch, cross_entropy)
        return dict(zip(self.taken, losses, strict=True))


def curves_of(
    runs: Sequence[Mapping[int, float]], at: Sequence[int], clock: Sequence[float] | None = None
) -> tuple[list[float], list[list[float]]]:
    """The losses of each run after the updates `at`: (x, [y of each run]).

    x are the updates or, with a clock (`update_times`), when the last of them was done.
    """
    x = list(at) if clock is None else [clock[n - 1] if n else 0.0 for n in at]
    return x, [[run[n] for n in at] for run in runs]
