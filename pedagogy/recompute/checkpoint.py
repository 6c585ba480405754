"""Drop what forward keeps, and compute it again when backward asks for it.

Why it exists
-------------
Between forward and backward a layer's activations wait, unused. Recomputation ("activation
checkpointing") keeps the inputs of a stretch of layers instead, and runs that stretch again just
before its backward. One more forward, in exchange for all that lies inside.

As an autograd Function
-----------------------
`CheckpointFunction` is the idea in its plainest form: forward runs without a graph, backward runs
forward once more with one, and backpropagates through it. It shows what happens, and three things
that are wrong with it: its backward starts a second backward inside the first; hooks and nested
graphs do not see through it; and where no *input* needs a gradient it has none for the weights
either.

By hooks on what is saved
-------------------------
`checkpoint` lets autograd build its graph as always. Whenever an operation saves a tensor for
backward, a hook hands autograd a number instead. The first time that backward asks for a number,
the function runs again, under a hook that collects what is saved now: the same tensors, in the
same order. It stops at the last. The graph is the ordinary one, so that weights, hooks, frozen
inputs and nesting all work.

What must be as in the first run
--------------------------------
[1] *Random numbers.* Dropout must draw the same mask: the state is kept, set, and put back.
[2] *Autocast.* Operations must round alike.
[3] *Buffers.* BatchNorm adds each batch to its running statistics. It must do so once, but the
    batch passes twice: what the second run changed is put back. (PyTorch's does not do that.)

Sources: Chen et al. 2016, section 4.1; Griewank and Walther 2000 for the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_pre_hook

from pedagogy.measure import restore_rng_state, rng_state


class CheckpointFunction(torch.autograd.Function):
    """`CheckpointFunction.apply(function, *inputs)`: to understand, not to use."""

    @staticmethod
    def forward(ctx, function: Callable, *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        again = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.function(*again)
        output.backward(gradient)
        return None, *(x.grad for x in again)


def checkpoint(function: Callable[..., Any], *inputs: Any) -> Any:
    """`function(*inputs)`; what it saves for backward is computed again when it is asked for.

    Outputs and gradients are those of the plain call, to the bit where the arithmetic is the same;
    the stream of random numbers is left as if nothing ran twice.
    **Memory** the tensors among the inputs; in backward, everything that the function saves.
    **Raises** RuntimeError where the second run saves other tensors than the first, or changes one
    in place after it was saved.
    Source: Chen et al. 2016, section 4.1.
    """
    if not torch.is_grad_enabled():
        return function(*inputs)
    run = _Run(function, inputs)
    with saved_tensors_hooks(run.drop, run.ask):
        return function(*inputs)


class _Run:
    """One call of `checkpoint`: how to do it again, and what the second run saved."""

    def __init__(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self.function = function
        self.again = _RunAgain(inputs)
        self.shapes: list[torch.Size] = []  # of what the first run saved
        self.saved: dict[int, Tensor] = {}  # by number; handed out once
        self.changed: set[int] = set()  # in place, after they were saved

    def drop(self, tensor: Tensor) -> int:
        """Called for each tensor that is saved: keeps its number only."""
        self.shapes.append(tensor.shape)
        return len(self.shapes) - 1

    def ask(self, number: int) -> Tensor:
        """Called when backward needs it."""
        if number not in self.saved:
            self._recompute()
        if number in self.changed:
            raise RuntimeError("a tensor was changed in place after autograd had saved it")
        return self.saved.pop(number)

    def _recompute(self) -> None:
        found: list[Tensor] = []
        versions: list[int] = []

        def collect(tensor: Tensor) -> int:
            found.append(tensor.detach())
            versions.append(tensor._version)
            if len(found) == len(self.shapes):
                raise _AllFound
            return len(found)  # not the tensor: its graph would hold it, and it its graph

        with self.again.as_before() as inputs:
            with suppress(_AllFound), saved_tensors_hooks(collect, lambda tensor: tensor):
                self.function(*inputs)
            seen = zip(found, versions, strict=True)
            self.changed = {n for n, (tensor, was) in enumerate(seen) if tensor._version != was}
        if [tensor.shape for tensor in found] != self.shapes:
            raise RuntimeError(
                f"the function saved {len(self.shapes)} tensors at first and {len(found)} when it "
                "ran again, or of other shapes: it must compute the same both times"
            )
        self.saved = dict(enumerate(found))


class _AllFound(BaseException):
    """The second run need not go on: nothing that it computes now is asked for."""


class _RunAgain:
    """How the function ran: its inputs, and [1], [2], [3]."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        self.keeper = _KeepInputs.apply(torch.empty(0, requires_grad=True), *tensors).grad_fn
        self.places = [isinstance(x, Tensor) for x in inputs]
        self.needs = [x.requires_grad for x in tensors]
        self.others = [None if isinstance(x, Tensor) else x for x in inputs]
        self.random = rng_state()
        kinds = ("cpu", "cuda") if any(x.is_cuda for x in tensors) else ("cpu",)
        self.casts = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in kinds
            if torch.is_autocast_enabled(kind)
        ]

    @contextmanager
    def as_before(self) -> Iterator[list[Any]]:
        """In here the function can run as it did, on these inputs."""
        outside = rng_state()
        with ExitStack() as stack:
            stack.callback(restore_rng_state, outside)
            for kind, dtype in self.casts:
                stack.enter_context(torch.autocast(kind, dtype))
            stack.enter_context(_buffers_put_back())
            stack.enter_context(torch.enable_grad())
            restore_rng_state(self.random)
            yield self._inputs()

    def _inputs(self) -> list[Any]:
        kept = iter(zip(self.keeper.saved_tensors, self.needs, strict=True))
        inputs = []
        for is_tensor, other in zip(self.places, self.others, strict=True):
            if is_tensor:
                tensor, needs = next(kept)
                inputs.append(tensor.detach().requires_grad_(needs))
            else:
                inputs.append(other)
        return inputs


class _KeepInputs(torch.autograd.Function):
    """Saves the inputs *as autograd saves things*, so that an outer checkpoint may drop them."""

    @staticmethod
    def forward(ctx, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> None:
        raise AssertionError("nothing depends on this")


@contextmanager
def _buffers_put_back() -> Iterator[None]:
    """[3] Buffers of every module that is called in here are afterwards what they were."""
    before: dict[int, tuple[Tensor, Tensor]] = {}

    def remember(module: nn.Module, inputs: Any) -> None:
        for buffer in module.buffers(recurse=False):
            before.setdefault(id(buffer), (buffer, buffer.clone()))

    handle = register_module_forward_pre_hook(remember)
    try:
        yield
    finally:
        handle.remove()
        with torch.no_grad():
            for buffer, value in before.values():
                buffer.copy_(value)
