"""What a cut layer leaves as evidence: does it equal one process, what does it send and keep?

A cut weight lies in pieces, so the pieces are put together first, gradients likewise, under the
names of the ordinary module; then every number is compared. Every rank must hold the right ones:
copies that drift apart show on one of them.

`exchanges` lists what a layer sends forward and backward, `kept_bytes` weighs what it keeps for
backward, and `coefficients` reads from such weights how many s b h, a s^2 b and s b they are.
`between_sums` and `paced` are for timelines.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pedagogy.measure import MemoryMeter, all_close, memory_meter
from pedagogy.ranks import Event, Group, Pace
from pedagogy.tensor_parallel.blocks import ParallelBlock
from pedagogy.tensor_parallel.gpt import ParallelGPT
from pedagogy.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from pedagogy.tensor_parallel.sequence_parallel import SequenceParallelBlock
from pedagogy.tensor_parallel.vocabulary import VocabParallelEmbedding
from pedagogy.workloads import Block

Size = tuple[int, int, int, int]  # sequence, batch, hidden, heads


class Evidence(NamedTuple):
    """Outputs, and gradients and weights by the names of the ordinary module, all of them whole."""

    outputs: Tensor
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def evidence(module: nn.Module, outputs: Tensor) -> Evidence:
    """What one process leaves; after the optimizer's step, before gradients are cleared."""
    named = dict(module.named_parameters())
    return Evidence(
        outputs.detach().clone(),
        {name: parameter.grad.clone() for name, parameter in named.items()},
        {name: parameter.detach().clone() for name, parameter in named.items()},
    )


def cut_evidence(group: Group, module: nn.Module, outputs: Tensor) -> Evidence:
    """The same of a cut module, put together on every rank. **Bytes** all of it, gathered."""
    gradients, weights = {}, {}
    for path, layer in module.named_modules():
        for key, parameter in layer.named_parameters(recurse=False):
            name = f"{path}.{key}" if path else key
            name = "position.weight" if name == "position" else name
            weights[name] = _whole(group, layer, key, parameter.detach())
            gradients[name] = _whole(group, layer, key, parameter.grad)
    if isinstance(module, ParallelGPT):
        outputs = torch.cat(group.all_gather(outputs.detach()), -1)
        outputs = outputs[..., : module.token.vocabulary]
    return Evidence(outputs.detach().clone(), gradients, weights)


def _whole(group: Group, layer: nn.Module, key: str, piece: Tensor) -> Tensor:
    if isinstance(layer, ColumnParallelLinear):
        return torch.cat(group.all_gather(piece))
    if isinstance(layer, VocabParallelEmbedding):
        return torch.cat(group.all_gather(piece))[: layer.vocabulary]
    if isinstance(layer, RowParallelLinear) and key == "weight":
        return torch.cat(group.all_gather(piece), 1)
    return piece.clone()


def equals_one_process(
    ranks: Iterable[Evidence], alone: Evidence, tolerance: float = 1e-10
) -> bool:
    """Whether every rank's outputs, gradients and weights are those of `alone`, name by name.

    Two tensors are equal where no element is off by more than `tolerance` of the largest of its
    kind (of all gradients, for a gradient).
    """
    ranks = list(ranks)
    pairs = [({"": one.outputs}, {"": alone.outputs}) for one in ranks]
    pairs += [(one.gradients, alone.gradients) for one in ranks]
    pairs += [(one.weights, alone.weights) for one in ranks]
    return bool(pairs) and all(
        mine.keys() == right.keys() and all_close(mine, right, tolerance) for mine, right in pairs
    )


class Exchanges(NamedTuple):
    """What one rank sends for one layer: how many of each kind, and the bytes of all."""

    forward: dict[str, int]
    backward: dict[str, int]
    nbytes: int


def exchanges(group: Group, block: type[ParallelBlock], size: Size) -> Exchanges:
    """What this rank sends in forward and backward of one layer, in fp32, from its own log."""
    layer, x = _layer(group, block, size)
    first = len(group.events)
    y = layer(x)
    then = len(group.events)
    y.sum().backward()
    forward, backward = group.events[first:then], group.events[then:]
    return Exchanges(
        *(dict(Counter(event.kind for event in events)) for events in (forward, backward)),
        sum(event.nbytes for event in forward + backward),
    )


def kept_bytes(group: Group, block: type[ParallelBlock], size: Size, dropout: float = 0.0) -> int:
    """Bytes that one layer keeps from its forward for its backward, its output left out, in fp32.

    The input is counted: the first norm keeps it.
    """
    layer, _ = _layer(group, block, size, dropout)
    with memory_meter(layer) as meter:
        x = torch.ones(_shape(group, block, size), requires_grad=True)
        y = layer(x)
        kept = settled(group, meter) - y.nbytes
        y.sum().backward()
    return kept


def settled(group: Group, meter: MemoryMeter, readings: int = 5) -> int:
    """Live activations, the least of several readings, each after a barrier and a pause.

    A thread of gloo may hold the tensor of a finished collective until it gets a core again; what
    backward needs is live in every reading.
    """
    found = []
    for _ in range(readings):
        group.barrier()
        time.sleep(0.005)
        found.append(meter.now_by_kind["activations"])
    return min(found)


def _layer(
    group: Group, block: type[ParallelBlock], size: Size, dropout: float = 0.0
) -> tuple[ParallelBlock, Tensor]:
    sequence, _, hidden, heads = size
    layer = block(group, Block(hidden, heads, sequence, dropout))
    return layer, torch.ones(_shape(group, block, size), requires_grad=True)


def _shape(group: Group, block: type[ParallelBlock], size: Size) -> tuple[int, int, int]:
    sequence, batch, hidden, _ = size
    ranks = group.size if issubclass(block, SequenceParallelBlock) else 1
    return batch, sequence // ranks, hidden


def coefficients(measured: Mapping[Size, int], bytes_per_element: int = 4) -> list[float]:
    """How many elements of s b h, of a s^2 b and of s b, found from the bytes of three sizes.

    **Raises** ValueError unless there are three sizes that tell the terms apart.
    """
    rows = [[s * b * h, a * s * s * b, s * b] for s, b, h, a in measured]
    matrix = torch.tensor(rows, dtype=torch.float64)
    if matrix.shape != (3, 3) or torch.linalg.matrix_rank(matrix) < 3:
        raise ValueError(f"{len(rows)} sizes; three are needed that tell three terms apart")
    elements = torch.tensor(list(measured.values()), dtype=torch.float64) / bytes_per_element
    return [round(value, 6) + 0.0 for value in torch.linalg.solve(matrix, elements).tolist()]


def copies_agree(ranks: Sequence[Evidence], names: Iterable[str]) -> bool:
    """Whether all ranks hold the same bits of these weights."""
    return all(one.weights[name].equal(ranks[0].weights[name]) for one in ranks for name in names)


def twin_evidence(module: nn.Module, outputs: Tensor) -> Evidence:
    """The same of a module that torch's `parallelize_module` cut: its DTensors put together."""
    named = dict(module.named_parameters())
    return Evidence(
        outputs.detach().clone(),
        {name: _opened(parameter.grad) for name, parameter in named.items()},
        {name: _opened(parameter.detach()) for name, parameter in named.items()},
    )


def _opened(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def between_sums(events: Iterable[Event], turn: float) -> list[Event]:
    """What a rank computes: the time between its all_reduces, before `turn` forward, then backward.

    `events` are one rank's, the end of the run marked by the last of them.
    """
    found, last = [], 0.0
    for event in sorted(events, key=lambda event: event.start):
        for kind, start, end in (
            ("forward", last, min(event.start, turn)),
            ("backward", max(last, turn), event.start),
        ):
            if end > start:
                found.append(Event(event.rank, kind, "", start, end))
        last = event.end
    return found


@contextmanager
def paced(group: Group, seconds: float) -> Iterator[None]:
    """Every span of compute that is logged in the block lasts `seconds`; see `Pace`."""
    span, pace = group.span, Pace(seconds)

    @contextmanager
    def longer(kind: str, name: str = "") -> Iterator[None]:
        with span(kind, name), pace.span():
            yield

    group.span = longer
    try:
        yield
    finally:
        del group.span
