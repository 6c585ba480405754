"""Which weights a minibatch meets: stashing, vertical sync, 2BW, and what goes wrong without.

The problem
-----------
PipeDream updates a stage after every backward, while later minibatches are between their forward
and their backward. If the weights are simply overwritten, the backward multiplies the activations
of the old weights by the new ones: the result is the gradient of no function at all. PyTorch
notices when a layer's weight changed in place and refuses; code that writes through `.data` is not
protected.

How it works
------------
A *version* of a stage is a dict of tensors. A forward runs with one version (`functional_call`),
and autograd keeps that version's tensors for the backward. An update steps on a
copy of the newest version, unless nobody needs that version any more. A version that no minibatch
holds, and none will ask for, is dropped. Stages differ in one line: which version minibatch k
gets (p stages, this is stage s, both counted from 0):

    UnstashedStage     the newest, and updates overwrite it: F and B disagree      (wrong)
    StashingStage      the newest at its forward, max(k - (p - 1 - s), 0): other stages, other ones
    VerticalSyncStage  max(k - (p - 1), 0), the same in all stages
    TwoVersionStage    max(k // m - 1, 0): 2BW, one update per m micro-batches

As recursions, with w(t) the weights after t updates, w_s those of stage s = 1 .. n, nu the step:

    stashing        w(t+1) = w(t) - nu * grad f(w_1(t-n+1), w_2(t-n+2), ..., w_n(t))
    vertical sync   w(t+1) = w(t) - nu * grad f(w_1(t-n+1), ..., w_n(t-n+1))
    2BW             w(t+1) = w(t) - nu * grad f(w(t-1))

What it costs: up to p - s versions at stage s, p with vertical sync, 2 with 2BW.

Sources: Harlap et al. 2018 (PipeDream, arXiv:1806.03377); Narayanan et al. 2021
(PipeDream-2BW), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pedagogy.parameters import average, unique_parameters
from pedagogy.pipeline.schedule import Action, Layout
from pedagogy.pipeline.stage import Finish, Held, Stage, one_tensor
from pedagogy.ranks import Group

Version = dict[str, Tensor]


class Stash(NamedTuple):
    """The weights that a minibatch in flight has met, and the number of their version."""

    number: int
    weights: Version


class StashingStage(Stage):
    """A stage with its own optimizer; forward and backward of a minibatch use the same version.

    `make_optimizer(parameters)` returns a torch optimizer. `replicas` is the group of the ranks
    that hold this stage (see `replica_group`); they average their gradients before each update.
    `used[k]` is (version in F, version in B); `versions` holds what is kept, by number.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
        replicas: Group | None = None,
    ) -> None:
        super().__init__(module)
        self._parameters = [p for p in unique_parameters(module.parameters()) if p.requires_grad]
        self._optimizer = make_optimizer(self._parameters) if self._parameters else None
        self._replicas = replicas
        self._next = 0  # the micro-batch that comes forward next
        self._first = 0  # the version with which the schedule began
        self.newest = 0
        self.versions: dict[int, Version] = {0: self._version()}
        self.peak_versions = 1
        self.used: dict[int, tuple[int, int]] = {}

    def begin(self, actions: list[Action], layout: Layout) -> None:
        """A schedule starts: its micro-batches count from 0, versions go on from the newest.

        **Raises** ValueError where the stage is replicated and has no group for it.
        """
        replicas = layout.replicas[actions[0].stage]
        given = 1 if self._replicas is None else self._replicas.size
        if replicas != given and any(action.kind == "U" for action in actions):
            raise ValueError(
                f"stage {actions[0].stage} has {replicas} replicas, but averages over {given}: "
                "give it `replicas=replica_group(group, layout, stage)`, or they drift apart"
            )
        self._next, self._first = 0, self.newest
        self.versions, self.used = {self.newest: self.versions[self.newest]}, {}

    def version_for(self, k: int) -> int:
        """The number of the version that minibatch `k` meets, in F and in B."""
        return self.newest

    def forward(self, k: int, x: Tensor, finish: Finish) -> Tensor:
        """As `Stage.forward`, with the version that `k` meets."""
        number = self.version_for(k)
        weights = self.versions[number]
        output = one_tensor(lambda x: functional_call(self.module, weights, (x,)), x)
        output = finish(output)
        self.held[k] = Held(x, output, Stash(number, weights))
        self._next = k + 1
        return output.detach()

    def backward(self, k: int, gradient: Tensor | None) -> Tensor | None:
        """As `Stage.backward`; the gradient is added to that of the newest weights."""
        number, weights = self.held[k].more
        self.used[k] = (number, self._version_in_backward(number))
        x_gradient = super().backward(k, gradient)
        for name, parameter in self.module.named_parameters():
            gradient, weights[name].grad = weights[name].grad, None
            if gradient is not None:
                had = parameter.grad
                parameter.grad = gradient if had is None else had + gradient
        return x_gradient

    def update(self, k: int) -> None:
        """The newest weights have taken one optimizer step; versions that nobody needs are gone."""
        if self._replicas is not None:
            for parameter in self._parameters:
                if parameter.grad is None:  # it may have one on another replica
                    parameter.grad = torch.zeros_like(parameter)
            average(self._replicas, [parameter.grad for parameter in self._parameters])
        self.newest += 1
        held = {held.more.number for held in self.held.values()}
        oldest = min(held | {self.version_for(self._next)})  # that anyone still needs
        self.versions = {n: version for n, version in self.versions.items() if n >= oldest}
        if self.versions:
            self._step_on_a_copy()
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        self.versions[self.newest] = self._version()
        self.peak_versions = max(self.peak_versions, len(self.versions))

    def _version_in_backward(self, number: int) -> int:
        return number

    def _step_on_a_copy(self) -> None:
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()

    def _version(self) -> Version:
        """The newest weights, as tensors whose later writes autograd does not watch."""
        return {
            name: parameter.data.requires_grad_(parameter.requires_grad)
            for name, parameter in self.module.named_parameters()
        }


class UnstashedStage(StashingStage):
    """No stashing: an update overwrites the weights that minibatches in flight were computed with.

    This is the mistake. It runs, and its gradients are wrong.
    """

    def _version_in_backward(self, number: int) -> int:
        return self.newest

    def _step_on_a_copy(self) -> None:
        self.versions.clear()  # the minibatches in flight hold the tensors that are overwritten


class VerticalSyncStage(StashingStage):
    """Every stage uses, for a minibatch, the version with which it entered the first stage."""

    def __init__(self, module: nn.Module, make_optimizer: Callable, num_stages: int) -> None:
        self._num_stages = num_stages
        super().__init__(module, make_optimizer)

    def begin(self, actions: list[Action], layout: Layout) -> None:
        """As before. **Raises** ValueError for another number of stages, or of updates."""
        super().begin(actions, layout)
        _check_updates(actions, layout, every=1)
        if layout.num_stages != self._num_stages:
            raise ValueError(f"a stage of {self._num_stages} in a schedule of {layout.num_stages}")

    def version_for(self, k: int) -> int:
        """The version of `k` in the first stage."""
        return self._first + max(k - (self._num_stages - 1), 0)


class TwoVersionStage(StashingStage):
    """2BW: all micro-batches of a batch use the version before the newest that is finished."""

    def __init__(self, module: nn.Module, make_optimizer: Callable, per_batch: int) -> None:
        self._per_batch = per_batch
        super().__init__(module, make_optimizer)

    def begin(self, actions: list[Action], layout: Layout) -> None:
        """As before. **Raises** ValueError unless an update follows every `per_batch`-th B."""
        super().begin(actions, layout)
        _check_updates(actions, layout, self._per_batch)

    def version_for(self, k: int) -> int:
        """max(floor(k / m) - 1, 0), with m micro-batches a batch and k counted from 0."""
        return self._first + max(k // self._per_batch - 1, 0)


def _check_updates(actions: list[Action], layout: Layout, every: int) -> None:
    updates = [action.microbatch for action in actions if action.kind == "U"]
    wanted = list(range(every - 1, layout.num_microbatches, every))
    if updates != wanted:
        raise ValueError(
            f"the schedule updates stage {actions[0].stage} after the micro-batches {updates}, "
            f"but this kind of stage needs {wanted}"
        )


def replica_group(group: Group, layout: Layout, stage: int) -> Group | None:
    """The group of the ranks that hold `stage`; None where there is one. They call it together."""
    ranks = sorted({layout.rank_of(stage, k) for k in range(layout.num_microbatches)})
    if len(ranks) == 1:
        return None
    return group.subset(ranks, f"replicas of stage {stage}")
