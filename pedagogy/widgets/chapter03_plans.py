"""What tensor parallelism does with a layer, step by step, as data that the explorer draws.

A plan is a chain of tensors and the links between them. Forward goes along the links, backward
returns over them in reverse. A link either computes, on each rank from what it holds, or exchanges;
then it names the collective of each direction ("" where nothing is sent).

How a tensor lies on the ranks: whole on every rank, cut by rows, cut by columns, or as parts of a
sum, of which every rank has one of full size. Rows of an activation are tokens, columns are
features. `TENSOR` cuts the products alone: the activations between them are whole on every rank,
and f and g exchange. `SEQUENCE` cuts those along the sequence besides. The shapes are those of
GPT-3, in 16 bit.

Sources: Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from typing import NamedTuple

from pedagogy.costs.communication import ring_all_reduce_bytes
from pedagogy.plots.tensor import COLUMNS, ROWS, WHOLE

SIZES = {"s": 2048, "h": 12288, "3h": 36864, "4h": 49152, "V": 51200, "1": 1, "3": 3}
ELEMENT_BYTES = 2
TENSOR, SEQUENCE = "TP", "TP + SP"


class Tensor(NamedTuple):
    """A tensor of the chain: shape in `SIZES`, how it lies on the ranks, how its gradient does.

    gradient: None for a tensor that has none.
    """

    name: str
    rows: str
    columns: str
    cut: str
    gradient: str | None
    weight: bool = False


class Link(NamedTuple):
    """One step of forward, and the one of backward that belongs to it.

    weight: the index of the weight that is used, operator: how. does, undoes: what each rank does
    on the way and on the way back. exchanges: the collectives of forward and backward, "" for none;
    they carry `count` tensors of `nbytes`.
    """

    symbol: str
    source: int
    target: int
    does: str
    undoes: str
    weight: int | None = None
    exchanges: tuple[str, str] = ("", "")
    nbytes: int = SIZES["s"] * SIZES["h"] * ELEMENT_BYTES
    count: int = 1
    operator: str = "@"

    def sent_bytes(self, backward: bool, ranks: int) -> float:
        """Bytes that each rank sends, by a ring: an all_reduce 2(N-1)/N of the tensor."""
        kind = self.exchanges[backward]
        both_halves = self.count * ring_all_reduce_bytes(self.nbytes, ranks)
        return {"": 0.0, "all_reduce": both_halves}.get(kind, both_halves / 2)


class Plan(NamedTuple):
    """A chain of tensors and its links."""

    tensors: list[Tensor]
    links: list[Link]

    @property
    def last(self) -> int:
        """How many steps forward and backward have together."""
        return 2 * len(self.links)

    def link_of(self, step: int) -> tuple[Link, bool]:
        """The link of a step, counted from 1, and whether it is backward."""
        if step <= len(self.links):
            return self.links[step - 1], False
        return self.links[self.last - step], True

    def sent_bytes(self, step: int, ranks: int) -> float:
        """Bytes that each rank has sent after so many steps."""
        passed = [self.link_of(one) for one in range(1, step + 1)]
        return sum(link.sent_bytes(backward, ranks) for link, backward in passed)

    def count(self, kind: str) -> int:
        """How many collectives of that kind forward and backward have together."""
        return sum(link.count * link.exchanges.count(kind) for link in self.links)


def enter(split: str, source: int, name: str) -> Link:
    """Into the part where each rank computes something else: f, or the gathering of a sequence."""
    if split == TENSOR:
        return Link(
            "f",
            source,
            source + 1,
            f"f hands the whole {name} on, which every rank has; nothing is sent",
            f"f adds up the parts of the gradient of {name} by all_reduce: all have it whole",
            exchanges=("", "all_reduce"),
        )
    return Link(
        "gather",
        source,
        source + 1,
        f"all_gather gives every rank the whole {name}, from the ranks' slices of the sequence",
        f"reduce_scatter adds up the parts of the gradient of {name}, and each rank keeps its "
        "slice of the sequence",
        exchanges=("all_gather", "reduce_scatter"),
    )


def leave(split: str, source: int, name: str, then: str = "") -> Link:
    """Out of it: g, or a reduce_scatter along the sequence."""
    if split == TENSOR:
        return Link(
            "g",
            source,
            source + 1,
            f"g adds the parts up by all_reduce, and every rank has the whole {name}{then}",
            f"g hands the gradient of {name} on: it is that of each part; nothing is sent",
            exchanges=("all_reduce", ""),
        )
    return Link(
        "scatter",
        source,
        source + 1,
        f"reduce_scatter adds the parts up, and each rank keeps its slice of the sequence{then}",
        f"all_gather gives every rank the gradient of the whole {name}, which is that of its part",
        exchanges=("reduce_scatter", "all_gather"),
    )


def outside(split: str) -> str:
    """How an activation lies where the ranks compute the same: whole, or cut by tokens."""
    return WHOLE if split == TENSOR else ROWS


def product(source: int, weight: int, target: int, by: str = COLUMNS, then: str = "") -> Link:
    """A matrix product; its backward makes the gradients of the input and of the weight."""
    if by == COLUMNS:
        return Link(
            "→",
            source,
            target,
            f"each rank has whole dot products, of its columns{then}",
            "each rank has the gradient of its columns of the weight, and a part of the input's",
            weight,
        )
    return Link(
        "→",
        source,
        target,
        "each rank has a part of every dot product, over its columns of the input and its rows of "
        "the weight",
        "each rank has the gradient of its rows of the weight, and of its columns of the input",
        weight,
    )


def norm(split: str, source: int) -> Link:
    """A LayerNorm: on the whole, or on a slice of the sequence."""
    if split == TENSOR:
        does, undoes = "every rank normalises the whole: the same work N times", ""
    else:
        does = "each rank normalises its slice of the sequence, and keeps 1/N of the activations"
        undoes = "; those of the norm's weights are parts of a sum, to be added up after backward"
    return Link(
        "norm",
        source,
        source + 1,
        does,
        f"each rank has the gradients of what it normalised{undoes}",
    )
