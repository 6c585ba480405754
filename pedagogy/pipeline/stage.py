"""A stage: a piece of the model on one rank, and what it keeps between a forward and a backward.

How it works
------------
A stage works on many micro-batches at once: the forward of the fifth may run before the backward of
the second. So whatever a backward needs is kept by the number of its micro-batch, and dropped when
it is used. (A stage that keeps only the latest works until the order changes.)

    Stage             keeps input and output, and with the output autograd's graph: all activations
    RecomputingStage  keeps the input alone, and makes the rest again before the backward
    SplitStage        runs a backward in two halves: B for the input, W for the weights

`finish` turns the output into what backward starts from. Only the last stage has one: the loss.

What it costs
-------------
Bytes in flight: those of a micro-batch's activations in this stage, times the micro-batches between
their F and their B. `RecomputingStage` keeps only boundaries and computes each forward twice.

Recomputing right
-----------------
The second forward must draw the same dropout, so the state of the random generators is put back;
and BatchNorm must not count its micro-batch twice, so the second forward works on copies of the
buffers, which are thrown away.

Source: Huang et al. 2019 (GPipe): re-materialization.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pedagogy.measure import restore_rng_state, rng_state
from pedagogy.pipeline.schedule import Action, Layout
from pedagogy.pipeline.split_backward import PostponedWeights

Finish = Callable[[Tensor], Tensor]


class Held(NamedTuple):
    """What a stage keeps of a micro-batch between its forward and its backward."""

    x: Tensor
    output: Tensor | None
    more: Any = None


class Stage:
    """Runs micro-batches through `module`; `held` is what it keeps, by micro-batch."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.held: dict[int, Held] = {}

    @property
    def in_flight(self) -> int:
        """The number of micro-batches of which something is kept."""
        return len(self.held)

    def begin(self, actions: list[Action], layout: Layout) -> None:
        """A schedule starts, of which these are the stage's actions on this rank."""

    def forward(self, k: int, x: Tensor, finish: Finish) -> Tensor:
        """The stage's output for micro-batch `k`, detached; keeps what its backward needs."""
        output = finish(self._run(k, x))
        self.held[k] = Held(x, output)
        return output.detach()

    def backward(self, k: int, gradient: Tensor | None) -> Tensor | None:
        """Parameters have their gradient added; the gradient of `k`'s input is returned.

        `gradient` is that of the output; None for a loss. **Raises** KeyError for a micro-batch
        that is not in flight.
        """
        x, output, _ = self.held.pop(k)
        if output.requires_grad:
            torch.autograd.backward(output, gradient)
        elif gradient is None and (x.requires_grad or _is_trained(self.module)):
            raise ValueError("the loss has no gradient: was it detached, or made into a number?")
        if not (x.requires_grad and x.is_leaf):
            return None
        return torch.zeros_like(x) if x.grad is None else x.grad  # zeros: nothing depends on it

    def _run(self, k: int, x: Tensor) -> Tensor:
        return one_tensor(self.module, x)


class RecomputingStage(Stage):
    """Keeps the input alone; `recompute`, at the latest in `backward`, makes the rest again.

    **Memory** between F and B: the input of the stage. **Cost** one more forward.
    """

    def forward(self, k: int, x: Tensor, finish: Finish) -> Tensor:
        """As `Stage.forward`, but nothing inside the stage is kept."""
        state = rng_state()
        with torch.no_grad():
            output = finish(self._run(k, x))
        self.held[k] = Held(x, None, (state, finish))
        return output.detach()

    def recompute(self, k: int) -> None:
        """The activations of micro-batch `k` are there again."""
        x, _, (state, finish) = self.held[k]
        now = rng_state()
        restore_rng_state(state)
        copies = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        output = one_tensor(lambda x: functional_call(self.module, copies, (x,)), x)
        self.held[k] = Held(x, finish(output))
        restore_rng_state(now)

    def backward(self, k: int, gradient: Tensor | None) -> Tensor | None:
        """As `Stage.backward`; recomputes first, if nobody did."""
        if self.held[k].more is not None:
            self.recompute(k)
        return super().backward(k, gradient)


class SplitStage(Stage):
    """`backward` leaves out the gradients of linear layers' weights; `weight_backward` adds them.

    Everything else (norms, embeddings, convolutions) has its gradient after `backward`. A module
    that recomputes inside (torch's checkpoint) cannot be split.
    **Memory** between B and W: the inputs of the linear layers, and the gradients of their outputs.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._postponed: dict[int, PostponedWeights] = {}

    @property
    def in_flight(self) -> int:
        """The number of micro-batches of which something is kept, those that await W included."""
        return len(self._postponed)

    def weight_backward(self, k: int) -> None:
        """The weights of linear layers have their gradient of micro-batch `k` added."""
        self._postponed.pop(k).run()

    def _run(self, k: int, x: Tensor) -> Tensor:
        self._postponed[k] = PostponedWeights()
        with self._postponed[k]:
            return super()._run(k, x)


def one_tensor(run: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """What `run` makes of `x`: a stage's output.

    **Raises** ValueError where it is not one tensor of numbers that have a gradient, or `x` was
    changed in place: it is kept, and may be sent or used again.
    """
    version = x._version
    try:
        output = run(x)
    except RuntimeError as error:
        if "leaf Variable" not in str(error):
            raise
        raise ValueError(IN_PLACE) from error
    if x._version != version:
        raise ValueError(IN_PLACE)
    if not isinstance(output, Tensor):
        raise ValueError(
            f"a stage must hand one tensor to the next, this one returned "
            f"{type(output).__name__}; a connection that skips a stage must travel inside it"
        )
    if not (output.is_floating_point() or output.is_complex()):
        raise ValueError(f"a stage returned {output.dtype}; what stages hand on needs a gradient")
    return output


IN_PLACE = "a stage changed its input in place: its first layer must not be one with inplace=True"


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
