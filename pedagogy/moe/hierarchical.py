"""Two levels: of gates, and of the network between experts.

A gate of two levels
--------------------
With E experts, one gate computes E logits a token. Two levels with sqrt(E) groups of sqrt(E)
experts compute about 2 sqrt(E): first a group, then an expert within it. Weights multiply:

    y = sum_i sum_j G_primary(x)_i  G_i(x)_j  E_ij(x)

It pays for thousands of experts. With 16, the gate is nothing beside an expert.

An all_to_all of two levels
---------------------------
Ranks live in nodes; links inside a node are fast, between nodes slow, and a message has a price of
its own. The flat all_to_all sends, from each rank, a message to every rank of every other node. In
two steps, ranks first exchange inside their node, so that rank j of a node holds all that the node
has for rank j of any node; then only equal j talk between nodes:

    flat          each rank sends to N - n ranks in other nodes      (n ranks a node)
    two levels    each rank sends to N/n - 1 of them, n times as much at once

The same bytes cross between nodes, in fewer and larger messages; inside a node more is moved.

Sources: Shazeer et al. 2017, appendix B; Rajbhandari et al. 2022 (DeepSpeed-MoE), section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pedagogy.collectives import exchange_by
from pedagogy.moe.routing import Routing, keep_within, places_of
from pedagogy.moe.shazeer import top_k
from pedagogy.ranks import Group


def hierarchical_gate(
    primary: Tensor, secondary: Tensor, k: int, capacity: int | None = None
) -> Routing:
    """k groups a token, and in each of them its k best experts: k * k choices.

    **Shapes** primary (tokens, groups), secondary (tokens, groups, experts of a group). Expert j of
    group i has the number i * experts + j. Weights are products, and sum to 1.
    **Raises** ValueError for k above the groups or the experts of a group.
    Source: Shazeer et al. 2017, appendix B.
    """
    tokens, groups, each = secondary.shape
    if primary.shape != (tokens, groups):
        raise ValueError(f"primary {tuple(primary.shape)} for secondary {tuple(secondary.shape)}")
    outer = top_k(primary, k)
    chosen = secondary.gather(1, outer.experts[..., None].expand(-1, -1, each))  # (tokens, k, each)
    inner = top_k(chosen.flatten(0, 1), k)
    experts = outer.experts[..., None] * each + inner.experts.view(tokens, k, k)
    weights = outer.weights[..., None] * inner.weights.view(tokens, k, k)
    experts, weights = experts.flatten(1), weights.flatten(1)
    places = places_of(experts, groups * each)
    probabilities = outer.probabilities[..., None] * secondary.to(outer.weights).softmax(-1)
    kept = keep_within(places, capacity)
    return Routing(experts, weights, places, kept, probabilities.flatten(1))


def hierarchical_load(primary: Tensor, secondary: Tensor, sent: Tensor) -> Tensor:
    """The smooth load of each expert of two levels: Load_p(i) Load_i(j) / |X_i|.

    **Shapes** primary (groups,): expected loads of the groups; secondary (groups, experts of a
    group): those of each group's experts over its own tokens; sent (groups,): how many tokens each
    group was sent -> (groups * experts of a group,). A group without tokens has none.
    **Raises** ValueError for unequal numbers of groups. Source: Shazeer et al. 2017, appendix B.
    """
    if not (primary.shape == sent.shape == secondary.shape[:1]):
        raise ValueError(
            f"{len(primary)} groups' loads, {len(secondary)} groups' experts and "
            f"{len(sent)} counts: must be the same number"
        )
    return (primary[:, None] * secondary / sent.clamp(min=1)[:, None]).flatten()


def hierarchical_all_to_all(node: Group, across: Group, xs: list[Tensor]) -> list[Tensor]:
    """What `all_to_all` over all ranks gives, in two steps: inside a node, then between nodes.

    `node` holds the ranks of this node; `across` those with the same place in every node. Rank r of
    all stands in node r // node.size (a `grid` with the nodes' axis first).
    **Shapes** free; one tensor for each rank of all. **Bytes** inside: each rank hands on all that
    is not for its own place. Between: what leaves the node, in `across.size - 1` messages.
    **Raises** ValueError for another number of tensors, or several dtypes.
    """
    size = node.size * across.size
    if len(xs) != size:
        raise ValueError(f"{len(xs)} tensors for {size} ranks ({across.size} nodes of {node.size})")
    if len({x.dtype for x in xs}) > 1:
        raise ValueError(f"one dtype for all, got {[str(x.dtype) for x in xs]}")
    shapes = _shapes(xs)
    # [1] inside: to place j goes everything for place j, whichever the node
    inside = [_pack([xs[n * node.size + j] for n in range(across.size)]) for j in range(node.size)]
    heads = [
        torch.stack([shapes[n * node.size + j] for n in range(across.size)])
        for j in range(node.size)
    ]
    packed, shapes_here = node.all_to_all(inside), torch.stack(node.all_to_all(heads))
    # [2] between: node n gets what each rank of this node had for it
    pieces = [_unpack(flat, head) for flat, head in zip(packed, shapes_here, strict=True)]
    between = [_pack([pieces[i][n] for i in range(node.size)]) for n in range(across.size)]
    heads = [shapes_here[:, n].contiguous() for n in range(across.size)]
    packed, heads = across.all_to_all(between), across.all_to_all(heads)
    return [x for flat, head in zip(packed, heads, strict=True) for x in _unpack(flat, head)]


def two_level_exchange(node: Group, across: Group) -> Callable[[list[Tensor]], list[Tensor]]:
    """`hierarchical_all_to_all` with a gradient, which travels back in two levels too.

    For `ExpertParallelMoE(group, whole, exchange=two_level_exchange(node, across))`.
    """
    return partial(exchange_by, partial(hierarchical_all_to_all, node, across))


MAX_DIMS = 6


def _shapes(xs: list[Tensor]) -> Tensor:
    """(tensors, 1 + MAX_DIMS): the number of dimensions, then the shape."""
    rows = [[x.dim(), *x.shape, *[0] * (MAX_DIMS - x.dim())] for x in xs]
    return torch.tensor(rows, device=xs[0].device)


def _pack(xs: list[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in xs])


def _unpack(flat: Tensor, shapes: Tensor) -> list[Tensor]:
    shapes = [tuple(row[1 : 1 + row[0]]) for row in shapes.tolist()]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(s) for part, s in zip(flat.split(sizes), shapes, strict=True)]
