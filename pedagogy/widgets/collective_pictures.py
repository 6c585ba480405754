"""A collective as a picture: before and after a step with what was sent, or as a whole."""

from __future__ import annotations

from matplotlib.figure import Figure

from pedagogy.plots.shards import ShardMap, shards_figure
from pedagogy.widgets.collective_states import (
    COLLECTIVES,
    Collective,
    State,
    pieces_of,
    sent_after,
    states_of,
)

HEIGHT = 4.6  # inches, for any number of ranks up to 8


def _labelled(one: ShardMap, collective: Collective, ranks: int) -> ShardMap:
    texts = pieces_of(one.state) if collective.columns == "piece" else None
    return one._replace(columns=collective.columns, contributions=ranks, texts=texts)


def step_figure(collective: Collective, ranks: int, step: int, finding: str) -> Figure:
    """Return the state before and after a step; step 0 shows the start and the end."""
    states = states_of(collective)
    last = len(collective.steps)
    if step == 0:
        maps = [ShardMap(states[0], "at the start"), ShardMap(states[-1], "at the end")]
    else:
        moves = collective.steps[step - 1]
        received = {(move.receiver, move.lands) for move in moves}
        maps = [
            ShardMap(states[step - 1], f"before step {step} of {last}", moves),
            ShardMap(states[step], f"after step {step} of {last}", (), received),
        ]
    maps = [_labelled(one, collective, ranks) for one in maps]
    total = max(sent_after(collective, ranks, last))
    sent = sent_after(collective, ranks, step)
    return shards_figure(maps, finding, sent=sent, limit=total or None, height=HEIGHT)


def results_of(name: str, ranks: int) -> State:
    """Return what a collective hands to its caller: of a reduce_scatter, the finished sums alone.

    The ring's steps leave partial sums behind, which no rank is given.
    """
    end = states_of(COLLECTIVES[name](ranks))[-1]
    if name != "reduce_scatter":
        return end
    nothing: frozenset[int] = frozenset()
    return [[held if len(held) == ranks else nothing for held in row] for row in end]


def whole_figure(name: str, ranks: int) -> Figure:
    """Return who holds what before and after a collective, whatever way it is done."""
    plan = COLLECTIVES[name](ranks)
    maps = [ShardMap(plan.start, f"before {name}"), ShardMap(results_of(name, ranks), "after")]
    maps = [_labelled(one, plan, ranks) for one in maps]
    return shards_figure(maps, f"{name} on {ranks} ranks: {plan.what}.")
