"""The layers of chapter 03's shard maps: which tensors, how each is cut, and what each link does.

Sources: Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable

from pedagogy.plots.tensor import COLUMNS, PARTS, ROWS, WHOLE
from pedagogy.widgets.chapter03_plans import (
    SIZES,
    Link,
    Plan,
    Tensor,
    enter,
    leave,
    norm,
    outside,
    product,
)


def _by_columns(split: str) -> Plan:
    out = outside(split)
    tensors = [
        Tensor("X", "s", "h", out, out),
        Tensor("X", "s", "h", WHOLE, PARTS),
        Tensor("A", "h", "4h", COLUMNS, COLUMNS, True),
        Tensor("Y", "s", "4h", COLUMNS, COLUMNS),
    ]
    return Plan(tensors, [enter(split, 0, "X"), product(1, 2, 3)])


def _by_rows(split: str) -> Plan:
    out = outside(split)
    tensors = [
        Tensor("X", "s", "4h", COLUMNS, COLUMNS),
        Tensor("A", "4h", "h", ROWS, ROWS, True),
        Tensor("Y", "s", "h", PARTS, WHOLE),
        Tensor("Y", "s", "h", out, out),
    ]
    return Plan(tensors, [product(0, 1, 2, ROWS), leave(split, 2, "Y")])


def _mlp(split: str) -> Plan:
    out = outside(split)
    tensors = [
        Tensor("X", "s", "h", out, out),
        Tensor("X", "s", "h", WHOLE, PARTS),
        Tensor("A", "h", "4h", COLUMNS, COLUMNS, True),
        Tensor("Z", "s", "4h", COLUMNS, COLUMNS),
        Tensor("B", "4h", "h", ROWS, ROWS, True),
        Tensor("Y", "s", "h", PARTS, WHOLE),
        Tensor("Y", "s", "h", out, out),
    ]
    gelu = " of Z = GELU(X A): GELU goes element by element and needs no other rank"
    return Plan(
        tensors,
        [
            enter(split, 0, "X"),
            product(1, 2, 3, COLUMNS, gelu),
            product(3, 4, 5, ROWS),
            leave(split, 5, "Y"),
        ],
    )


def _attention(split: str) -> Plan:
    out = outside(split)
    tensors = [
        Tensor("X", "s", "h", out, out),
        Tensor("X", "s", "h", WHOLE, PARTS),
        Tensor("W", "h", "3h", COLUMNS, COLUMNS, True),
        Tensor("Q, K, V", "s", "3h", COLUMNS, COLUMNS),
        Tensor("heads", "s", "h", COLUMNS, COLUMNS),
        Tensor("B", "h", "h", ROWS, ROWS, True),
        Tensor("Y", "s", "h", PARTS, WHOLE),
        Tensor("Y", "s", "h", out, out),
    ]
    attend = Link(
        "→",
        3,
        4,
        "each rank computes softmax(Q K^T) V for its own heads, over the whole sequence",
        "each rank goes back through its own heads",
    )
    return Plan(
        tensors,
        [
            enter(split, 0, "X"),
            product(1, 2, 3, COLUMNS, ": query, key and value of its heads"),
            attend,
            product(4, 5, 6, ROWS),
            leave(split, 6, "Y"),
        ],
    )


def _embedding(split: str) -> Plan:
    out = outside(split)
    tensors = [
        Tensor("ids", "s", "1", WHOLE, None),
        Tensor("E", "V", "h", ROWS, ROWS, True),
        Tensor("X", "s", "h", PARTS, WHOLE),
        Tensor("X", "s", "h", out, out),
    ]
    look_up = Link(
        "→",
        0,
        2,
        "each rank looks up the tokens whose rows it has, and writes zeros for the others",
        "each rank adds the gradients of its own tokens to its rows",
        1,
        operator="in",
    )
    return Plan(tensors, [look_up, leave(split, 2, "X")])


def _loss(split: str) -> Plan:
    out = outside(split)
    tensors = [
        Tensor("X", "s", "h", out, out),
        Tensor("X", "s", "h", WHOLE, PARTS),
        Tensor("Eᵀ", "h", "V", COLUMNS, COLUMNS, True),
        Tensor("logits", "s", "V", COLUMNS, COLUMNS),
        Tensor("3 numbers", "s", "3", PARTS, None),
        Tensor("loss", "s", "1", WHOLE, WHOLE),
    ]
    three = Link(
        "→",
        3,
        4,
        "for each token a rank has the maximum of its logits, their sum of exponentials, and the "
        "label's logit if the label is among its own",
        "softmax minus one at the label: each rank has it for its own logits",
    )
    sums = Link(
        "sum",
        4,
        5,
        "3 all_reduces, of one fp32 number for each token, make the loss of the whole vocabulary",
        "every rank has the maximum and the sum of all logits from forward; nothing is sent",
        exchanges=("all_reduce", ""),
        nbytes=SIZES["s"] * 4,
        count=3,
    )
    return Plan(tensors, [enter(split, 0, "X"), product(1, 2, 3), three, sums])


def _layer(split: str) -> Plan:
    out = outside(split)
    tensors = [
        Tensor("X", "s", "h", out, out),
        Tensor("norm", "s", "h", out, out),
        Tensor("norm", "s", "h", WHOLE, PARTS),
        Tensor("attention", "s", "h", PARTS, WHOLE),
        Tensor("sum", "s", "h", out, out),
        Tensor("norm", "s", "h", out, out),
        Tensor("norm", "s", "h", WHOLE, PARTS),
        Tensor("MLP", "s", "h", PARTS, WHOLE),
        Tensor("Y", "s", "h", out, out),
    ]
    heads = Link(
        "→",
        2,
        3,
        "each rank computes its heads, and a part of the projection",
        "each rank has the gradients of its heads' weights, and a part of the input's",
    )
    mlp = Link(
        "→",
        6,
        7,
        "each rank computes its columns of the MLP, GELU, and a part of the projection",
        "each rank has the gradients of its columns and rows, and a part of the input's",
    )
    links = [
        norm(split, 0),
        enter(split, 1, "norm"),
        heads,
        leave(split, 3, "sum", "; dropout and the residual sum follow"),
        norm(split, 4),
        enter(split, 5, "norm"),
        mlp,
        leave(split, 7, "Y", "; dropout and the residual sum follow"),
    ]
    return Plan(tensors, links)


PLANS: dict[str, Callable[[str], Plan]] = {
    "linear by columns": _by_columns,
    "linear by rows": _by_rows,
    "MLP": _mlp,
    "attention": _attention,
    "embedding": _embedding,
    "loss": _loss,
    "whole layer": _layer,
}


def plan_of(layer: str, split: str) -> Plan:
    """Return the plan of a layer by name, under `TENSOR` or `SEQUENCE`."""
    return PLANS[layer](split)
