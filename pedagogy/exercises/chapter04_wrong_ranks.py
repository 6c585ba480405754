"""Chapter 04: wrong ways to experts on other ranks, and what to say about each.

The steps that they share stand in `chapter04_travel`. Where two ranks would each raise an error of
their own, whichever is first, `_raised_on` makes two mistakes of one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pedagogy.collectives import all_to_all
from pedagogy.exercises.chapter04_travel import (
    by_expert,
    by_source,
    exchanged,
    in_order_of_arrival,
    in_order_of_experts,
    run_each,
    sliced,
    split,
    travel,
)
from pedagogy.ranks import Group


def _plain(group: Group, xs: list[Tensor]) -> list[Tensor]:
    return group.all_to_all(xs)


def _own_counts(group: Group, counts: Tensor, each: int) -> Tensor:
    """As if every rank had as many rows for the experts here as this rank."""
    mine = counts.view(group.size, each)[group.rank]
    return mine.expand(group.size, each)


def _own_counts_by_rank(group: Group, counts: Tensor, each: int) -> Tensor:
    return counts.view(group.size, each)


def _counts_of_rank_0(group: Group, counts: Tensor, each: int) -> Tensor:
    """Whole counts travel, and each rank takes the first of them."""
    return torch.stack(group.all_to_all([counts] * group.size))[:, :each]


def _not_sent_home(group, rows, counts, experts):
    arriving = exchanged(group, counts, len(experts))
    parts = all_to_all(group, split(rows, counts.view(group.size, -1).sum(1)))
    return torch.cat(run_each(experts, by_expert(parts, arriving, split)))


def _not_sent_home_by_source(group, rows, counts, experts):
    arriving = exchanged(group, counts, len(experts))
    parts = all_to_all(group, split(rows, counts.view(group.size, -1).sum(1)))
    outputs = run_each(experts, by_expert(parts, arriving, split))
    return torch.cat(by_source(outputs, arriving, split))


def _stays_at_home(group, rows, counts, experts):
    blocks = split(rows, counts)
    return torch.cat([experts[e % len(experts)](block) for e, block in enumerate(blocks)])


def _global_numbers(group, rows, counts, experts):
    first = group.rank * len(experts)

    def run(experts, inputs):
        return [experts[first + e](block) for e, block in enumerate(inputs)]

    return travel(group, rows, counts, experts, run=run)


def _rows_in_equal_parts(group, rows, *others):
    def there(group, xs):
        return all_to_all(group, list(torch.cat(xs).chunk(group.size)))

    return travel(group, rows, *others, there=there)


def _arrived_in_equal_parts(group, rows, counts, experts):
    lengths = counts.view(group.size, -1).sum(1)
    parts = all_to_all(group, split(rows, lengths))
    inputs = torch.cat(parts).chunk(len(experts))
    outputs = torch.cat([expert(one) for expert, one in zip(experts, inputs, strict=False)])
    return torch.cat(all_to_all(group, list(outputs.split([len(part) for part in parts]))))


def _a_tensor_for_each_expert(group, rows, counts, experts):
    return torch.cat(all_to_all(group, split(rows, counts)))


def _equal_parts(group, rows, counts, experts):
    parts = all_to_all(group, list(rows.chunk(group.size)))
    inputs = torch.cat(parts).chunk(len(experts))
    outputs = [expert(block) for expert, block in zip(experts, inputs, strict=False)]
    return torch.cat(all_to_all(group, list(torch.cat(outputs).chunk(group.size))))


def _leaves_without_rows(group, rows, *others):
    return rows if len(rows) == 0 else travel(group, rows, *others)


def _idle_experts_left_out(group, *arguments):
    def run(experts, inputs):
        pairs = zip(experts, inputs, strict=True)
        return [expert(one) if len(one) else torch.zeros(0, one.size(1)) for expert, one in pairs]

    return travel(group, *arguments, run=run)


def _counts_lie_by_rank(group, rows, counts, experts):
    """The counts are read as if an expert's were neighbours, one for each rank."""
    mixed = counts.view(len(experts), group.size).T
    return travel(group, rows, mixed.reshape(-1), experts)


def _outputs_divided(group, *arguments):
    return travel(group, *arguments) / group.size


def _lists_for_tensors(group, rows, counts, experts):
    group.all_to_all(counts.view(group.size, -1).tolist())


def _numbers_for_tensors(group, rows, counts, experts):
    group.all_to_all(counts.view(group.size, -1).sum(1).tolist())


def _raised_on(rank: int, wrong: Callable) -> Callable:
    """`wrong`, whose error is that of this rank, where by itself either could be the first."""

    def on_ranks(group, *arguments):
        try:
            return wrong(group, *arguments)
        except Exception:
            if group.rank == rank:
                raise
            return group.barrier()  # until the others have stopped

    return on_ranks


_COUNTS = (
    "How many rows arrive, and for which expert here, only the rank that sends them knows: split "
    "what comes from a source by that source's counts, which are exchanged first "
    "(group.all_to_all)."
)
_FIRST = (
    "Whole counts were exchanged, and of them the first are taken: those for rank 0's experts. "
    "The experts here begin at group.rank * len(experts)."
)
_HOME = (
    "These are the outputs of the rows that arrived. Each rank wants those of its own rows, so "
    "outputs travel once more, each to where its row came from."
)
_ARRIVAL = (
    "Rows arrive source by source, and within a source by expert. An expert's input is its block "
    "from the first source, then its block from the next: split by source and by expert, and put "
    "together anew."
)
_BY_RANK = (
    "all_to_all takes one tensor for each rank, and this is one for each expert: a rank gets the "
    "rows of all its experts together, counts.view(N, -1).sum(1) of them."
)
_PARTS = (
    "rows.chunk cuts into equal parts. How many go to a rank is the sum of the counts of its "
    "experts: counts.view(N, -1).sum(1)."
)

_TENSORS = (
    "all_to_all takes a list of tensors, one for each rank, and these are Python's lists or "
    "numbers: list(counts.view(N, -1)) is a list of tensors; tolist() is for the lengths of split."
)

MISTAKES = [
    (
        _stays_at_home,
        "Each row meets an expert of this very rank. Those of its expert may be elsewhere: then "
        "the row travels there, and the output back.",
    ),
    (_not_sent_home, _HOME),
    (_not_sent_home_by_source, _HOME),
    (partial(travel, regroup=in_order_of_arrival, home=in_order_of_experts), _ARRIVAL),
    (partial(travel, regroup=in_order_of_arrival), _ARRIVAL),
    (
        partial(travel, home=in_order_of_experts),
        "The outputs lie expert by expert, and go home as if they lay source by source: split each "
        "expert's output by source, and give a source its blocks of all experts.",
    ),
    (
        partial(travel, there=_plain, back=_plain),
        "The outputs are right, but no gradient comes back: what group.all_to_all returns (or what "
        "no_grad and detach leave) knows nothing of its argument. Rows and outputs travel by "
        "pedagogy.collectives.all_to_all.",
    ),
    (
        partial(travel, there=_plain),
        "The outputs are right and the experts learn, but no gradient travels back to the rows: "
        "they went there by group.all_to_all, or detached. Use pedagogy.collectives.all_to_all.",
    ),
    (partial(travel, arrive=_own_counts), _COUNTS),
    (partial(travel, arrive=_own_counts, split=sliced), _COUNTS),
    (partial(travel, arrive=_own_counts_by_rank), _COUNTS),
    (partial(travel, arrive=_counts_of_rank_0), _FIRST),
    (partial(travel, arrive=_counts_of_rank_0, split=sliced), _FIRST),
    (
        _global_numbers,
        "`experts` are this rank's alone, numbered from 0: the expert with number e of all is "
        "experts[e - group.rank * len(experts)].",
    ),
    (
        _arrived_in_equal_parts,
        "What arrived is cut into equal parts for the experts here. How many rows are whose, the "
        "counts say, which are exchanged first (group.all_to_all).",
    ),
    (_raised_on(0, _a_tensor_for_each_expert), _BY_RANK),
    (_raised_on(1, _a_tensor_for_each_expert), _BY_RANK),
    (_equal_parts, _PARTS),
    (_raised_on(0, _rows_in_equal_parts), _PARTS),
    (_raised_on(1, _rows_in_equal_parts), _PARTS),
    (
        _counts_lie_by_rank,
        "The counts are sorted by expert, so those of one rank's experts are neighbours: "
        "counts.view(N, -1) has a row for each rank.",
    ),
    (
        _outputs_divided,
        "The outputs are divided by the number of ranks. The layer's outputs are those of one "
        "process; what may be divided, later, are the experts' gradients.",
    ),
    *(
        (_raised_on(rank, wrong), _TENSORS)
        for wrong in (_lists_for_tensors, _numbers_for_tensors)
        for rank in (0, 1)
    ),
    (
        _leaves_without_rows,
        "A rank that has no rows, or gets none, leaves early, and the other waits for it. An "
        "all_to_all is for all ranks, each time, with zero rows too.",
    ),
    (
        _idle_experts_left_out,
        "An expert without rows does not run. Fresh zeros have no history, so that rank has no "
        "backward, and there the other waits for its part of the exchange. Run experts on zero "
        "rows too.",
    ),
]
