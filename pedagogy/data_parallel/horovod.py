"""Data parallelism as an optimizer: Horovod's way.

The idea
    Leave the model alone and wrap the optimizer: `step()` first averages the gradients over the
    ranks and then steps. Four ideas make it work, and PyTorch's DDP took over all of them but one:

    initial state   broadcast parameters *and* the optimizer's state from rank 0, so that a run may
                    start from a checkpoint that only rank 0 has read
    fusion buffer   tensors that are ready are copied behind each other, up to 64 MiB, and travel as
                    one message (DDP: buckets)
    compression     gradients travel as fp16, half the bytes of fp32, and are added to the weights
                    in full precision (DDP: `fp16_compress_hook`)
    negotiation     the ranks agree which tensors are ready, and in which order (`negotiation.py`;
                    DDP fixes the order beforehand)

The trap of fp16 on the wire
    A sum over N ranks may exceed 65,504, the largest fp16 number, where the mean does not. So each
    rank divides by N *before* it sends.

What it costs
    2(N-1)/N of the gradients at 4 or 2 bytes a number, sent after backward, and one fusion buffer.
    In Horovod itself a thread of its own sends while backward still runs.

Source: Sergeev and Del Balso 2018 (Horovod).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from pedagogy.data_parallel.negotiation import agree_on_order
from pedagogy.data_parallel.synchronous import check_same_tensors
from pedagogy.parameters import broadcast, check_dense, flatten, unflatten, unique_parameters
from pedagogy.ranks import Group

FUSION_BYTES = 64 * 2**20
COMPRESSIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}


class DistributedOptimizer:
    """`optimizer`, whose `step()` first averages the gradients over the ranks.

    All ranks start from rank 0's parameters and optimizer state. `compression` is None (gradients
    travel as they are), "fp16" or "bf16", or torch's dtype of that name. Everything else, `state`,
    `param_groups`, `zero_grad()` and so on, is the wrapped optimizer's. A learning rate scheduler
    takes the wrapped one itself: `StepLR(wrapped.optimizer, ...)`.

    **Bytes** 2(N-1)/N of the gradients in the dtype on the wire, and the negotiation's.
    **Raises** ValueError where the ranks' parameters differ, for another `compression`, or to
    compress complex numbers.
    """

    def __init__(
        self,
        group: Group,
        optimizer: torch.optim.Optimizer,
        compression: str | torch.dtype | None = None,
        fusion_bytes: int = FUSION_BYTES,
    ) -> None:
        self.wire_dtype = COMPRESSIONS.get(compression, compression)  # type: ignore[arg-type]
        if self.wire_dtype not in (None, *COMPRESSIONS.values()):
            allowed = ", ".join(map(repr, COMPRESSIONS))
            raise ValueError(f"compression is {compression!r}; it can be None, {allowed}")
        if fusion_bytes < 1:
            raise ValueError(f"fusion_bytes is {fusion_bytes}; it must be 1 or more")
        self.group, self.optimizer, self.fusion_bytes = group, optimizer, fusion_bytes
        everything = _parameters(optimizer)
        num_complex = sum(p.is_complex() for p in everything)
        if num_complex and self.wire_dtype is not None:
            raise ValueError(
                f"{num_complex} parameters are complex, and {self.wire_dtype} holds real numbers; "
                "compression must be None"
            )
        check_same_tensors(group, [(str(i), p) for i, p in enumerate(everything)])
        broadcast(group, everything)
        broadcast_optimizer_state(group, optimizer)
        self.parameters = [p for p in everything if p.requires_grad]
        self._ready: dict[int, None] = {}  # in the order in which the gradients came
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._note_ready, index))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The gradients are averaged over the ranks and one step is made with them.

        So is the loss that `closure` returns: a line search must decide alike on all ranks.
        """
        if closure is None:
            self.synchronize()
            return self.optimizer.step()

        def averaged() -> Any:
            value = closure()
            self.synchronize()
            return None if value is None else self._mean(value)

        return self.optimizer.step(averaged)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Every `.grad` is the mean over the ranks; `step()` does this, call it only to clip.

        A second call averages what is equal already.
        **Raises** RuntimeError where parameters were added or unfrozen after wrapping.
        """
        self._check_known()
        check_dense(self.parameters)
        ready = [i for i in self._ready if self.parameters[i].grad is not None]
        ready += [
            i for i, p in enumerate(self.parameters) if p.grad is not None and i not in self._ready
        ]
        self._ready.clear()
        order = agree_on_order(self.group, ready, len(self.parameters))
        for fused in fuse([self.parameters[i] for i in order], self.fusion_bytes):
            self._average(fused)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's."""
        self._ready.clear()
        self.optimizer.zero_grad(set_to_none)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not set yet: this object is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def _check_known(self) -> None:
        known = {id(p) for p in self.parameters}
        late = [p for p in _parameters(self.optimizer) if p.requires_grad and id(p) not in known]
        if late:
            raise RuntimeError(
                f"{len(late)} parameters were added or unfrozen after wrapping and would not be "
                f"averaged; {len(known)} are: wrap the optimizer afterwards"
            )

    def _mean(self, loss: Tensor | float) -> Tensor:
        mine = torch.as_tensor(loss, device=self.group.device).detach().clone()
        return self.group.all_reduce_(mine, "mean")

    def _note_ready(self, index: int, _: Tensor) -> None:
        self._ready[index] = None

    def _average(self, parameters: Sequence[Tensor]) -> None:
        """One message: the gradients of `parameters`, averaged in place."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters]
        buffer = flatten(gradients).div_(self.group.size)
        if self.wire_dtype is not None:
            buffer = buffer.to(self.wire_dtype)
        self.group.all_reduce_(buffer)
        for gradient, averaged in zip(gradients, unflatten(buffer, gradients), strict=True):
            gradient.copy_(averaged)


def fuse(tensors: Iterable[Tensor], fusion_bytes: int = FUSION_BYTES) -> Iterator[list[Tensor]]:
    """The tensors in order, cut into runs of one dtype that fit the fusion buffer.

    A tensor that is larger than the buffer is a run of its own.
    """
    run: list[Tensor] = []
    for tensor in tensors:
        num_bytes = sum(member.nbytes for member in run) + tensor.nbytes
        if run and (num_bytes > fusion_bytes or tensor.dtype != run[0].dtype):
            yield run
            run = []
        run.append(tensor)
    if run:
        yield run


def broadcast_optimizer_state(
    group: Group, optimizer: torch.optim.Optimizer, source: int = 0
) -> None:
    """The optimizer's state and hyper-parameters (learning rate, ...) are those of rank `source`.

    Ranks without any state yet, which an optimizer creates in its first step, get it too.
    **Bytes** the state, from `source` to every other rank; its layout as pickled objects.
    **Raises** ValueError where there is no rank `source`.
    """
    if not 0 <= source < group.size:
        raise ValueError(f"source is {source}; the ranks of this group are 0 to {group.size - 1}")
    state = optimizer.state_dict()
    layout = _broadcast_object(group, _without_values(state), source)
    if group.rank != source:
        state = _with_empty_tensors(layout, group.device)
    broadcast(group, _tensors(state), source)
    if group.rank != source:
        optimizer.load_state_dict(state)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return unique_parameters(p for one in optimizer.param_groups for p in one["params"])


def _broadcast_object(group: Group, value: Any, source: int) -> Any:
    """`value` of rank `source`, as bytes: first how many, then they."""
    sent = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(group.device)
    length = group.broadcast_(torch.tensor([sent.numel()], device=group.device), source)
    if group.rank != source:
        sent = torch.empty(int(length), dtype=torch.uint8, device=group.device)
    return pickle.loads(bytes(group.broadcast_(sent, source).cpu().numpy()))


def _without_values(state: Any) -> Any:
    """Each tensor becomes one of the device "meta", shape and dtype alone; scalars stay."""
    return tree_map_only(Tensor, lambda t: t.to("meta") if t.dim() else t, state)


def _with_empty_tensors(state: Any, device: torch.device) -> Any:
    return tree_map_only(
        Tensor, lambda t: torch.empty_like(t, device=device) if t.dim() else t, state
    )


def _tensors(state: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor) and leaf.dim()]
