"""Chapter 04, the last exercise: experts on several ranks, to which rows travel.

Rows are counted, and calls are not: an expert may run once for each rank that sends it rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pedagogy.collectives import all_to_all
from pedagogy.exercises.chapter04_mixture import CountedExpert, draw_experts, gradient_of
from pedagogy.exercises.chapter04_wrong_ranks import MISTAKES
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group


def expert_parallel_forward(
    group: Group, rows: Tensor, counts: Tensor, experts: Sequence[Callable[[Tensor], Tensor]]
) -> Tensor:
    """The output of each row's expert, in the order of `rows`, wherever that expert is.

    `rows` (n, hidden) are this rank's, sorted by expert; `counts` (E,) says how many belong to each
    expert of all ranks; `experts` are this rank's E / N.
    """
    size, each = group.size, len(experts)
    leaving = counts.view(size, each)  # (rank, expert there)
    arriving = torch.stack(group.all_to_all(list(leaving)))  # (source, expert here)
    parts = all_to_all(group, list(rows.split(leaving.sum(1).tolist())))
    # blocks[source][expert], then outputs by expert, then back[expert][source]
    blocks = [part.split(n.tolist()) for part, n in zip(parts, arriving, strict=True)]
    outputs = [
        expert(torch.cat([of_source[e] for of_source in blocks]))
        for e, expert in enumerate(experts)
    ]
    back = [output.split(n.tolist()) for output, n in zip(outputs, arriving.T, strict=True)]
    homeward = [torch.cat(of_source) for of_source in zip(*back, strict=True)]
    return torch.cat(all_to_all(group, homeward))


# --- the cases ------------------------------------------------------------------------------------

RANKS, EXPERTS, HIDDEN = 2, 4, 3
COUNTS = {  # of each rank, for each expert
    "one row for each expert": [[1, 1, 1, 1], [1, 1, 1, 1]],
    "as many rows for each rank, not for each expert": [[2, 1, 0, 3], [1, 2, 1, 2]],
    "counts of all kinds": [[1, 3, 1, 1], [0, 2, 2, 0]],
    "rank 1 has no rows, and its experts get none": [[2, 1, 0, 0], [0, 0, 0, 0]],
}


def inputs_of(label: str, rank: int) -> tuple[Tensor, Tensor, list[CountedExpert]]:
    """rows, counts and experts of a rank."""
    counts = torch.tensor(COUNTS[label][rank])
    draw = torch.Generator().manual_seed(rank)
    rows = torch.randn(int(counts.sum()), HIDDEN, generator=draw).requires_grad_()
    each = EXPERTS // RANKS
    return rows, counts, draw_experts(EXPERTS, HIDDEN)[rank * each : (rank + 1) * each]


def factors_of(output: Tensor, rank: int) -> Tensor:
    """What the sum over the output is weighted with, so that each element's gradient differs."""
    return (torch.arange(1.0, output.numel() + 1) + 100 * rank).view(output.shape) / 100


_END = "the end of forward"


def _outputs_and_gradients(
    function: Callable, group: Group, rows: Tensor, counts: Tensor, experts: list
) -> dict | None:
    try:
        y = function(group, rows, counts, experts)
    except ValueError as error:
        if _END not in str(error):
            raise
        raise TimeoutError("another rank has returned, and this one would wait for ever") from error
    try:
        group.agree(_END, [])  # so that it is seen at once if ranks part
    except ValueError:  # this rank returned too early; the one that waits for it says so
        return None
    if y is None:
        return None
    if isinstance(y, Tensor) and y.requires_grad:
        (y * factors_of(y, group.rank)).sum().backward()
    return {
        "the outputs": y,
        "the gradient of rows": gradient_of(rows),
        "the gradients of the experts here": [gradient_of(expert.weight) for expert in experts],
        "the rows that each expert here was given": [expert.rows for expert in experts],
    }


ON_RANKS = Exercise(
    name="expert_parallel_forward",
    title="Experts elsewhere",
    chapter="04",
    reference=expert_parallel_forward,
    cases=[lambda rank, label=label: inputs_of(label, rank) for label in COUNTS],
    labels=list(COUNTS),
    observe=_outputs_and_gradients,
    ranks=RANKS,
    mistakes=MISTAKES,
    hints=[
        "First the counts, since nobody knows what will arrive: counts.view(N, -1) has a row for "
        "each rank, and group.all_to_all(list(counts.view(N, -1))) gives you every source's counts "
        "for your experts.",
        "rows.split([...]) with one length for each rank, and all_to_all(group, parts). What comes "
        "from one source is sorted by expert: split it by that source's counts.",
        "An expert's input is its block from each source, one behind the other (torch.cat). Its "
        "output is split by source again; what goes back to a source is one block of each expert.",
        "Both ranks take part in each exchange, with zero rows too, and an expert without rows "
        "runs on none: so its backward takes part as well.",
    ],
)

register(ON_RANKS)
