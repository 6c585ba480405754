"""Explorer of chapter 03: who owns which rows and columns of a layer, and what is exchanged.

What happens in which step is data (`chapter03_layers`), its picture is drawn by
`chapter03_pictures`.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.widgets.chapter03_layers import PLANS
from pedagogy.widgets.chapter03_pictures import plan_figure
from pedagogy.widgets.chapter03_plans import SEQUENCE, TENSOR, Plan
from pedagogy.widgets.controls import choice, menu
from pedagogy.widgets.explorer import Explorer, Try


def plan_of(layer: str, split: str) -> Plan:
    """Return what happens to a layer (one of `PLANS`), under "TP" or "TP + SP"."""
    return PLANS[layer](split)


EXCHANGES = ("all_reduce", "all_gather", "reduce_scatter")


def shard_map_last_step(layer: str, split: str, ranks: int) -> int:
    """Return how many steps forward and backward of a layer take together."""
    return plan_of(layer, split).last


def render_shard_map(layer: str, split: str, ranks: int, step: int) -> Figure:
    """Draw what each rank holds of a layer after a step of forward or backward."""
    plan = plan_of(layer, split)
    step = min(step, plan.last)
    title = f"{layer[0].upper()}{layer[1:]} on {ranks} ranks, {split}"
    return plan_figure(plan, ranks, step, title, _finding(plan, ranks, step))


def _finding(plan: Plan, ranks: int, step: int) -> str:
    if step == 0:
        per_kind = [(plan.count(kind), kind) for kind in EXCHANGES]
        told = " and ".join(
            f"{count} {kind}{'s' * (count > 1)}" for count, kind in per_kind if count
        )
        return (
            f"{len(plan.links)} steps forward and as many backward, with {told}: each of the "
            f"{ranks} ranks sends {style.bytes_text(plan.sent_bytes(plan.last, ranks))}."
        )
    link, backward = plan.link_of(step)
    where = f"Step {step} of {plan.last}, {'backward' if backward else 'forward'}"
    sent = link.sent_bytes(backward, ranks)
    told = f" Each rank sends {style.bytes_text(sent)}." if sent else ""
    return f"{where}: {link.undoes if backward else link.does}.{told}"


def shard_map_explorer() -> Explorer:
    """Return the explorer that walks through a layer that is cut over ranks."""
    return Explorer(
        render_shard_map,
        play="step",
        last=shard_map_last_step,
        layer=menu(list(PLANS), "MLP"),
        split=[TENSOR, SEQUENCE],
        ranks=choice([2, 4, 8], 4),
        step=(0, 16, 4),
        try_this=(
            Try(
                "columns, then rows",
                "an MLP takes one all_reduce forward and one backward, whatever its width: each of "
                "4 ranks sends 151 MB",
                {"layer": "MLP", "split": TENSOR, "ranks": 4, "step": 8},
            ),
            Try(
                "along the sequence",
                "4 gathers and 4 scatters take the place of 4 all_reduces, and each rank sends the "
                "same 302 MB",
                {"layer": "whole layer", "split": SEQUENCE, "ranks": 4, "step": 16},
            ),
            Try(
                "three numbers",
                "the loss of 51,200 logits a token takes 43 kB; to gather the logits would take "
                "184 MB",
                {"layer": "loss", "split": TENSOR, "ranks": 8, "step": 4},
            ),
        ),
    )
