"""What the exchange of tokens between ranks costs, in one level and in two.

Why it exists
-------------
With the experts spread over ranks, every rank sends something to every other: an all_to_all. Its
bytes do not depend on how it is done. Its messages do.

Two levels
----------
N ranks stand in nodes of n. In the flat all_to_all each rank sends N - n messages to other nodes.
In two levels the ranks of a node first exchange among themselves, so that rank j holds what the
whole node has for the places j of all nodes; then only equal places talk: N/n - 1 messages each, of
n times the size. The same bytes cross between nodes; inside the node more is moved, (n-1)/n of all
instead of (n-1)/N.

When they pay
-------------
A rank sends one message after another, each for alpha seconds and its bytes / bytes_per_second, as
in `communication`. Two levels save (N - n)(n-1)/n times the outer alpha, and move (N - n)(n-1)/n
times the bytes for one rank more over the inner link. So they pay while the message for *one* rank
takes less time on the inner link than the outer alpha, whatever n is.

Balanced traffic is assumed: each rank has as many bytes for every rank, itself too.

Sources: Lepikhin et al. 2020 (GShard), section 3; Rajbhandari et al. 2022 (DeepSpeed-MoE), section
5, for two levels; seconds derived.
"""

from __future__ import annotations

from typing import NamedTuple

from pedagogy.costs.multiples import nearest_multiples


class Traffic(NamedTuple):
    """What one rank sends in one all_to_all, messages or bytes: inside its node, between nodes."""

    inside: float
    between: float


class Link(NamedTuple):
    """A link between two ranks: `alpha` seconds for each message, and then so many bytes/s."""

    alpha: float
    bytes_per_second: float


def expert_parallel_bytes(choices_elsewhere: int, hidden: int, number_bytes: int = 4) -> int:
    """Bytes of tokens that one `ExpertParallelMoE` sends in a training step, all ranks together.

    Each kept choice of an expert on another rank moves `hidden` numbers there and back, in forward
    and in backward. (The counts that go first: 8 bytes for each rank and each expert elsewhere.)
    **Raises** ValueError for negative choices or sizes below 1.
    """
    if choices_elsewhere < 0 or min(hidden, number_bytes) < 1:
        raise ValueError(
            f"{choices_elsewhere} choices elsewhere of {hidden} numbers of {number_bytes} bytes: "
            "choices must be 0 or more, sizes 1 or more"
        )
    return 4 * choices_elsewhere * hidden * number_bytes


def flat_messages(ranks: int, per_node: int) -> Traffic:
    """Messages that each rank sends in a flat all_to_all: n - 1 inside, N - n between nodes.

    **Raises** ValueError where nodes of `per_node` ranks do not make up the ranks.
    """
    _nodes(ranks, per_node)
    return Traffic(per_node - 1, ranks - per_node)


def two_level_messages(ranks: int, per_node: int) -> Traffic:
    """Messages that each rank sends in `hierarchical_all_to_all`: n - 1 inside, N/n - 1 between.

    Left out: the shapes that our implementation sends ahead, as many messages again, of 56 bytes
    for each tensor.
    **Raises** ValueError where nodes of `per_node` ranks do not make up the ranks.
    """
    return Traffic(per_node - 1, _nodes(ranks, per_node) - 1)


def flat_bytes(num_bytes: float, ranks: int, per_node: int) -> Traffic:
    """Bytes that each rank sends, of `num_bytes` of which every rank (itself too) gets 1/N.

    **Raises** ValueError where the nodes do not fit the ranks, or for negative bytes.
    """
    if num_bytes < 0:
        raise ValueError(f"{num_bytes} bytes: must be 0 or more")
    messages = flat_messages(ranks, per_node)
    return Traffic(*(count * num_bytes / ranks for count in messages))


def two_level_bytes(num_bytes: float, ranks: int, per_node: int) -> Traffic:
    """The same in two levels: (n-1)/n of them inside, for all nodes; between nodes as many.

    **Raises** ValueError where the nodes do not fit the ranks, or for negative bytes.
    """
    flat = flat_bytes(num_bytes, ranks, per_node)
    return Traffic((per_node - 1) * num_bytes / per_node, flat.between)


def exchange_seconds(messages: Traffic, sent_bytes: Traffic, inside: Link, between: Link) -> float:
    """Seconds of a rank that sends these messages, of these bytes together, one after another.

    **Raises** ValueError for a negative alpha, or a link without speed.
    >>> exchange_seconds(flat_messages(8, 4), flat_bytes(8e6, 8, 4), Link(0, 1e9), Link(1e-3, 1e9))
    0.011
    """
    _check_links(inside, between)
    links = zip(messages, sent_bytes, (inside, between), strict=True)
    return sum(m * link.alpha + n / link.bytes_per_second for m, n, link in links)


def two_levels_pay_below(ranks: int, inside: Link, between: Link) -> float:
    """Bytes of a rank's all_to_all below which two levels are faster: N alpha times bytes/s.

    That is alpha between nodes, bytes/s inside. Holds for nodes of any 1 < n < N ranks; at both
    ends the two ways are the same. **Raises** ValueError for no rank, or an impossible link.
    """
    _nodes(ranks, 1)
    _check_links(inside, between)
    return ranks * between.alpha * inside.bytes_per_second


def _nodes(ranks: int, per_node: int) -> int:
    if min(ranks, per_node) < 1:
        raise ValueError(f"{ranks} ranks in nodes of {per_node}: both must be 1 or more")
    if ranks % per_node:
        near = nearest_multiples(ranks, per_node)
        raise ValueError(f"{ranks} ranks in nodes of {per_node}: {near} ranks would do")
    return ranks // per_node


def _check_links(*links: Link) -> None:
    for alpha, speed in links:
        if alpha < 0 or speed <= 0:
            raise ValueError(f"alpha {alpha} s, {speed} bytes/s: 0 or more, and above 0")
