"""Which gradients are ready everywhere, and in which order to send them: Horovod's coordinator.

The problem
    Frameworks that run operations as their inputs become ready do not run them in the same order on
    every rank. If rank 0 reduces the gradient of A first and rank 1 that of B, they wait for each
    other for ever, or, worse, add A to B where the shapes happen to fit.

How it works
    Each rank tells rank 0, the coordinator, which tensors it has, in the order in which they became
    ready. The coordinator answers all of them with one list; everyone follows it:

        rank 0: A B C        B is ready everywhere after 2 tensors (rank 0 had it second),
        rank 1: B C A        then C and A after 3;          everyone sends B, A, C
        rank 2: B A C        ties go to the smaller number

    A tensor that only some ranks have (an unused parameter elsewhere) comes last, in the order of
    its number; the ranks that lack it contribute zero.

What it costs
    One small message to the coordinator and one back: latency, not bandwidth, and rank 0 must read
    N-1 of them, which is why Horovod later added a cache of known answers.

What real systems do differently
    Horovod's ranks report every few milliseconds, from a thread of their own, while backward runs.
    Here there is one round a step, after backward. PyTorch's DDP needs no coordinator: its buckets
    are started in an order that was fixed beforehand.

Source: Sergeev and Del Balso 2018 (Horovod), and the controller of its implementation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pedagogy.ranks import Group


def negotiate(requests: Sequence[Sequence[int]]) -> list[int]:
    """The order in which all ranks send, from each rank's tensors in the order they became ready.

    A tensor's turn is when the last rank has it; where some rank never has it, at the end.
    **Raises** ValueError where a rank reports a tensor twice.
    """
    for rank, request in enumerate(requests):
        if len(set(request)) < len(request):
            raise ValueError(f"rank {rank} reported {len(request)} tensors, some of them twice")
    never = max((len(request) for request in requests), default=0)
    places = [{tensor: place for place, tensor in enumerate(request)} for request in requests]
    tensors = sorted({tensor for request in requests for tensor in request})
    return sorted(tensors, key=lambda t: max(place.get(t, never) for place in places))


def agree_on_order(group: Group, ready: Sequence[int], num_tensors: int) -> list[int]:
    """The same list on all ranks: what to send, in which order, decided by rank 0.

    **Bytes** each rank sends 8 for each tensor to rank 0, which sends as much back to each.
    **Raises** ValueError for a tensor that is not one of `num_tensors`.
    """
    if any(not 0 <= tensor < num_tensors for tensor in ready):
        raise ValueError(f"ready is {list(ready)}; the tensors are 0 to {num_tensors - 1}")
    nothing = -1
    message = torch.full((num_tensors,), nothing, device=group.device)
    message[: len(ready)] = torch.tensor(list(ready), dtype=message.dtype)
    if group.rank == 0:
        requests = [message, *(torch.empty_like(message) for _ in range(1, group.size))]
        receives = [(requests[rank], rank) for rank in range(1, group.size)]
        group.exchange(receives=receives)
        order = negotiate([[t for t in request.tolist() if t != nothing] for request in requests])
        message.fill_(nothing)
        message[: len(order)] = torch.tensor(order, dtype=message.dtype)
    else:
        group.send_(message, 0)
    group.broadcast_(message, 0)
    return [tensor for tensor in message.tolist() if tensor != nothing]
