"""A collective's step as a picture: before it, after it, and what each rank has sent."""

from __future__ import annotations

from matplotlib.figure import Figure

from pedagogy.plots.shards import ShardMap, shards_figure
from pedagogy.widgets.collective_states import Collective, sent_after, states_of

HEIGHT = 4.6  # inches, for any number of ranks up to 8


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
    maps = [one._replace(columns=collective.columns, contributions=ranks) for one in maps]
    total = max(sent_after(collective, ranks, last))
    sent = sent_after(collective, ranks, step)
    return shards_figure(maps, finding, sent=sent, limit=total or None, height=HEIGHT)
