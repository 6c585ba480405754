"""Chapter 06, the last exercise: one batch in pieces on several ranks, sent once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from pedagogy.exercises.chapter06_cases import (
    IGNORED,
    MicroBatch,
    Watched,
    classes,
    count,
    fresh_model,
    gradients,
    slopes,
)
from pedagogy.exercises.chapter06_wrong_ranks import MISTAKES
from pedagogy.exercises.engine import Exercise, bytes_sent_at_most
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group


def accumulate_on_ranks(
    group: Group,
    model: nn.Module,
    microbatches: Sequence[MicroBatch],
    loss_sum: Callable[[nn.Module, MicroBatch], Tensor],
    count: Callable[[MicroBatch], int],
) -> None:
    """Every `.grad` becomes that of the mean loss over all items of all ranks, on all ranks."""
    here = torch.tensor(sum(count(microbatch) for microbatch in microbatches))
    total = max(int(group.all_reduce(here)), 1)
    model.zero_grad()
    for microbatch in microbatches:  # perhaps none
        (loss_sum(model, microbatch) / total).backward()
    for parameter in model.parameters():
        if parameter.grad is None:  # the others wait for this rank's part, even if it is 0
            parameter.grad = torch.zeros_like(parameter)
        group.all_reduce_(parameter.grad)


# --- the cases ------------------------------------------------------------------------------------

RANKS = 2
CASES = {  # micro-batches of each rank
    "gradients 1 and 2 on rank 0, 3 and 5 on rank 1": [
        [slopes(1), slopes(2)],
        [slopes(3), slopes(5)],
    ],
    "3 tokens of gradient 1 on rank 0, every label ignored on rank 1": [
        [slopes(1, 1), slopes(1)],
        [slopes(7, label=IGNORED), slopes(7, 7, label=IGNORED)],
    ],
    "2 micro-batches each of 1 to 4 items, gradients from before": [
        [classes([0, 2, IGNORED], 1), classes([1], 2)],
        [classes([3, 3, 0, 1], 3), classes([IGNORED, 2], 4)],
    ],
    "3 micro-batches on rank 0, 1 on rank 1": [
        [classes([0, 1], 1), classes([2], 2), classes([3, 3], 3)],
        [classes([IGNORED, 0, 2], 4)],
    ],
    "no micro-batch on rank 1": [[classes([0, 1, 3], 1), classes([2], 2)], []],
    "no item on any rank": [[classes([IGNORED], 1)], [classes([IGNORED] * 2, 2)]],
}


def _model(label: str) -> nn.Module:
    return fresh_model(list(chain(*CASES[label])))


LIMIT = sum(  # each rank's part of a ring of two: gradients, and up to 24 bytes for numbers
    4 * sum(p.numel() for p in _model(label).parameters()) + 24 for label in CASES
)


def inputs_of(label: str, rank: int) -> tuple:
    """The model, and this rank's micro-batches."""
    model = _model(label)
    if "from before" in label:
        for parameter in model.parameters():
            parameter.grad = parameter.detach() + 1.0
    return label, model, CASES[label][rank]


def _gradients_afterwards(
    function: Callable, group: Group, label: str, model: nn.Module, microbatches: Sequence
) -> dict | None:
    watched, has_returned = Watched(microbatches), False

    def checked(x: Tensor, op: str = "sum") -> Tensor:
        total = group.all_reduce(x, op)  # which notices that another rank does something else
        return x.copy_(total)

    group.all_reduce_ = checked
    try:
        function(group, model, microbatches, watched, count)
        has_returned = True
        group.agree(_END, [])
    except ValueError as error:
        if "do not agree" not in str(error):
            raise
        if has_returned or (group.rank > 0 and _END not in str(error)):
            return None  # one rank tells it, the one that waits
        raise RuntimeError(_parting(label, str(error))) from error
    finally:
        del group.all_reduce_
    return {
        "the gradients": gradients(model),
        "micro-batches that hold their activations": watched.most,
    }


_END = "the end"


def _parting(label: str, error: str) -> str:
    """What each rank is about to do; without shapes, where dtypes tell the ranks apart."""
    rows = [row.strip() for row in error.splitlines() if row.strip().startswith("rank")]
    plain = [re.sub(r"(all_reduce) \w+ of \(.*\) (\w+)", r"\1 of \2", row) for row in rows]
    different = len({row.partition(": ")[2] for row in plain}) > 1
    return f"in the case {label}, the ranks part: {'; '.join(plain if different else rows)}"


ON_RANKS = Exercise(
    name="accumulate_on_ranks",
    title="Sent once",
    chapter="06",
    reference=accumulate_on_ranks,
    cases=[lambda rank, label=label: inputs_of(label, rank) for label in CASES],
    labels=list(CASES),
    observe=_gradients_afterwards,
    ranks=RANKS,
    targets=[bytes_sent_at_most(LIMIT)],
    mistakes=MISTAKES,
    hints=[
        "Two things are summed over the ranks: first the number of items, a tensor of one integer; "
        "at the end the gradients.",
        "Between them nothing is sent: each micro-batch's sum is divided by the number of items of "
        "all ranks, and .grad adds up.",
        "A rank without micro-batches has .grad None. The others wait in their all_reduce: it "
        "takes part with zeros.",
    ],
)

register(ON_RANKS)
