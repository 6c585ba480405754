"""Do experts on ranks equal one process, and what did their messages cost?

Why it exists
-------------
Each rank holds a share of the experts, so what the ranks leave is put together under the names of
the whole layer, and every number is compared: outputs, the gradients of all parameters and of each
rank's input, and the weights afterwards. The router is on all ranks and must be right on each.

The kinds are told apart, since they fail apart: a gradient of a wrong scale leaves the outputs of
that step as they are, and an optimizer like Adam, which divides a gradient by its own size, leaves
the weights nearly right as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from pedagogy.measure import all_close
from pedagogy.moe.routing import Routing
from pedagogy.ranks import Event, Group


class Evidence(NamedTuple):
    """One process: its outputs, one a rank's batch. A rank: its own output. Both by name besides.

    `gradients` and `weights` have the names of the whole layer; a rank has a part of them. Among
    the gradients is that of each rank's input.
    """

    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def whole_evidence(
    layer: nn.Module, outputs: Sequence[Tensor], input_gradients: Sequence[Tensor]
) -> Evidence:
    """What one process leaves that took each rank's batch in turn; before gradients are cleared."""
    named = dict(layer.named_parameters())
    return _evidence(named, dict(enumerate(outputs)), dict(enumerate(input_gradients)))


def spread_evidence(layer: nn.Module, output: Tensor, input_gradient: Tensor) -> Evidence:
    """What this rank leaves: `layer` is an `ExpertParallelMoE` or a `SummedExperts`."""
    named = {}
    for name, parameter in layer.named_parameters():
        room, *rest = name.split(".")
        if room == "experts":  # numbered from 0 on each rank
            rest[0] = str(int(rest[0]) + layer.first)
        named[".".join([room, *rest])] = parameter
    rank = layer.group.rank
    return _evidence(named, {rank: output}, {rank: input_gradient})


def _evidence(
    named: Mapping[str, Tensor], outputs: Mapping[int, Tensor], inputs: Mapping[int, Tensor]
) -> Evidence:
    gradients = {name: parameter.grad.clone() for name, parameter in named.items()}
    return Evidence(
        {f"rank {rank}": output.detach().clone() for rank, output in outputs.items()},
        gradients | {f"input of rank {rank}": one.clone() for rank, one in inputs.items()},
        {name: parameter.detach().clone() for name, parameter in named.items()},
    )


def equal_kinds(
    ranks: Iterable[Evidence], alone: Evidence, tolerance: float = 1e-10
) -> dict[str, bool]:
    """For outputs, gradients, weights: do the ranks have all of `alone`'s, and each rank right?

    An element may be off by `tolerance` of the largest of its kind.
    """
    ranks, verdicts = list(ranks), {}
    for kind in Evidence._fields:
        right = getattr(alone, kind)
        found = [getattr(one, kind) for one in ranks]
        complete = right.keys() == set().union(*found)
        verdicts[kind] = complete and all(all_close(mine, right, tolerance) for mine in found)
    return verdicts


def equals_one_process(
    ranks: Iterable[Evidence], alone: Evidence, tolerance: float = 1e-10
) -> bool:
    """Whether `equal_kinds` finds all of them equal."""
    return all(equal_kinds(ranks, alone, tolerance).values())


def choices_elsewhere(group: Group, routing: Routing, experts_here: int) -> int:
    """How many of this rank's kept choices have their expert on another rank."""
    return int((routing.kept & (routing.experts // experts_here != group.rank)).sum())


class Crossing(NamedTuple):
    """Messages and bytes of one rank, to ranks of its own node and to those of other nodes."""

    messages_inside: int
    messages_between: int
    bytes_inside: int
    bytes_between: int


def crossing(events: Iterable[Event], per_node: int) -> Crossing:
    """What one rank's all_to_alls sent, the bytes of each shared evenly among its peers.

    **Raises** ValueError for an event whose bytes cannot have been even.
    """
    messages, nbytes = [0, 0], [0, 0]
    for event in events:
        others = [peer for peer in event.peers if peer != event.rank]
        if event.nbytes % len(others):
            raise ValueError(f"{event.nbytes} bytes to {len(others)} ranks are not even")
        for peer in others:
            between = peer // per_node != event.rank // per_node
            messages[between] += 1
            nbytes[between] += event.nbytes // len(others)
    return Crossing(*messages, *nbytes)
