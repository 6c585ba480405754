"""`DataParallel`: averaging in buckets, while backward is still running.

The idea
    Backward produces the gradients of the last layers first. As soon as a bucket's gradients exist
    its all_reduce starts, on a thread (gloo) or stream (NCCL) of its own, and backward goes on with
    the layers before it. Only the last bucket has nothing to hide behind.

How it works
    1. A hook on each parameter runs right after its gradient was accumulated: it puts the gradient
       into its bucket.
    2. A bucket that is complete starts its all_reduce; buckets start in one fixed order on all
       ranks, so a complete bucket may have to wait for the one before it. Ranks whose gradients
       appear in different orders therefore never reduce different buckets together.
    3. The first hook of a backward asks the autograd engine to call back when backward has ended.
       There the buckets that are not complete (unused parameters) start, and all are waited for:
       when `backward()` returns, the gradients are averaged.
    4. The order of 2. holds within one wrapper. A second one, or a SyncBatchNorm inside, may send
       before a bucket on one rank and after it on another. So each wrapper's buckets travel in a
       process group of their own.

Between the naive version and this one
    With `bucket_bytes=1` every parameter is a bucket of its own: hooks and overlap, one message for
    each parameter. With a `bucket_bytes` above the model's size nothing overlaps.

What it costs
    The bytes of the naive version, plus one number for each parameter (see `buckets.py`); the
    bucket buffers are the gradients. Speed depends on how much of the sending backward hides:
    see the spans "backward" and "wait" in the trace.

What it does not do
    Buffers (BatchNorm's statistics) are broadcast once, at the start, and then stay the rank's own;
    `batch_norm.py` makes them common. A rank whose loss depends on no parameter at all runs no
    hook, and the others wait for it. Parameters must be frozen or unfrozen before wrapping. After
    an exception in backward the next forward starts afresh, if it came on all ranks alike and
    zero_grad() dropped the gradients, as it does by default: into a gradient that is only zeroed,
    an all_reduce that was under way may still write.

What real systems do differently
    PyTorch's DDP is the same design in C++. It walks the graph after forward to find the unused
    parameters early (`find_unused_parameters`); here they are found at the end of backward.

Source: Li et al. 2020, "PyTorch Distributed", sections 3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pedagogy.data_parallel.buckets import BUCKET_BYTES, Bucket, make_buckets
from pedagogy.data_parallel.synchronous import broadcast_parameters
from pedagogy.parameters import check_dense
from pedagogy.ranks import Event, Group


class DataParallel(nn.Module):
    """A replica of `module`: called like it, and `backward()` leaves gradients averaged over ranks.

    All ranks start from rank 0's parameters and buffers. The state dict is that of `module`.
    `group` is a new group of the same ranks, made here, at the same time on all of them.
    **Memory** the gradients, once. **Bytes** 2(N-1)/N of the gradients, sent by each rank a step.
    **Raises** ValueError where the ranks' modules differ, nothing is trainable, or `bucket_bytes`
    is below 1.
    """

    def __init__(self, group: Group, module: nn.Module, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__()
        self.buckets = make_buckets(module.parameters(), bucket_bytes)
        self.module = module
        broadcast_parameters(group, module)
        self.group = _own_group(group)
        self.register_load_state_dict_pre_hook(_add_own_name)
        self._synchronise = True
        self._start_afresh()
        for members in self.buckets:
            for index, parameter in enumerate(members.parameters):
                hook = partial(self._on_gradient, members, index)
                parameter.register_post_accumulate_grad_hook(hook)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """What `module` returns."""
        self._check_trainable()
        if torch._C._current_graph_task_id() == -1:  # no backward runs: this recomputes nothing
            self._start_afresh()
        with self.group.span("forward"):
            output = self.module(*inputs, **keywords)
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                leaf.register_hook(self._note_start)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward inside the block only adds up this rank's gradients; nothing is sent.

        The first backward after the block averages the sum (gradient accumulation).
        """
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    def state_dict(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """The state dict of the wrapped module: a replica is saved as if it were alone."""
        return self.module.state_dict(*arguments, **keywords)

    def load_state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        """Load the wrapped module's state dict; every rank must load the same."""
        return self.module.load_state_dict(*arguments, **keywords)

    def _start_afresh(self) -> None:
        """No backward is under way, also where the last one ended with an exception."""
        for members in self.buckets:
            members.settle()
        self._in_backward = False
        self._next = 0  # the bucket that starts next
        self._backward_start: float | None = None

    def _note_start(self, _: Tensor | None = None) -> None:
        if self._backward_start is None:
            self._backward_start = self.group.now()

    def _on_gradient(self, members: Bucket, index: int, parameter: Tensor) -> None:
        if not self._synchronise:
            return
        if not self._in_backward:
            self._in_backward = True
            self._note_start()  # where the loss was not computed from this module's output
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        check_dense([parameter])
        if index in members.arrived:
            raise RuntimeError(
                f"a gradient of shape {tuple(parameter.shape)} came twice in one backward; "
                "reentrant checkpoints do this: use use_reentrant=False"
            )
        members.put(index)
        members.arrived.add(index)
        while self._next < len(self.buckets) and self.buckets[self._next].complete:
            self._start_next()

    def _start_next(self) -> None:
        self.buckets[self._next].start(self.group)
        self._next += 1

    @torch.no_grad()
    def _end_of_backward(self) -> None:
        for members in self.buckets[self._next :]:  # incomplete, or behind an incomplete one
            for index in range(len(members.parameters)):
                members.put(index)
            self._start_next()
        self._log_backward()
        with self.group.span("wait"):
            for members in self.buckets:
                members.finish()
        self._start_afresh()

    def _log_backward(self) -> None:
        group = self.group
        if group.device.type == "cuda":
            torch.cuda.synchronize(group.device)
        me = group.ranks[group.rank]
        group.events.append(Event(me, "backward", "", self._backward_start, group.now()))

    def _check_trainable(self) -> None:
        known = {id(p) for members in self.buckets for p in members.parameters}
        late = [
            name
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad and id(parameter) not in known
        ]
        if late:
            raise RuntimeError(
                f"{len(late)} parameters were unfrozen or replaced after wrapping ({late[0]}, ...) "
                f"and would not be averaged; {len(known)} are: wrap the module afterwards"
            )


def _own_group(group: Group) -> Group:
    """A group of the same ranks whose messages never meet those of `group`."""
    if group.size == 1:
        return group
    return group.subset(range(group.size), "data parallel")


def _add_own_name(_: nn.Module, state: dict[str, Any], prefix: str, *_rest: Any) -> None:
    """Inside another module, a saved "prefix.weight" is loaded as "prefix.module.weight"."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}module.{name.removeprefix(prefix)}"] = state.pop(name)
