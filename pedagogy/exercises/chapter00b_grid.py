"""Chapter 00b: who is in which group, on a grid of ranks."""

from __future__ import annotations

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def axis_ranks(axes: dict[str, int], axis: str, rank: int) -> list[int]:
    """The ranks of `rank`'s group along `axis`, on a grid whose last axis varies fastest."""
    stride = 1
    for name in reversed(axes):
        if name == axis:
            break
        stride *= axes[name]
    place = rank // stride % axes[axis]
    return [rank + (other - place) * stride for other in range(axes[axis])]


def _first_axis_fastest(axes, axis, rank):
    return axis_ranks(dict(reversed(axes.items())), axis, rank)


def _neighbours_by_number(axes, axis, rank):
    start = rank // axes[axis] * axes[axis]
    return list(range(start, start + axes[axis]))


def _always_from_rank_0(axes, axis, rank):
    return axis_ranks(axes, axis, 0)


def _from_this_rank_on(axes, axis, rank):
    first, second, *_ = [*axis_ranks(axes, axis, rank), rank, rank]
    stride = second - first
    return [rank + stride * other for other in range(axes[axis])]


CUBE = {"dp": 2, "pp": 2, "tp": 2}
AXIS_RANKS = Exercise(
    name="axis_ranks",
    title="The ranks along one axis of a grid",
    chapter="00b",
    reference=axis_ranks,
    cases=[
        (CUBE, "tp", 5),
        (CUBE, "pp", 5),
        (CUBE, "dp", 5),
        ({"dp": 3, "tp": 4}, "dp", 6),
        ({"dp": 2, "pp": 3, "tp": 2}, "pp", 9),
        ({"dp": 4}, "dp", 2),
    ],
    mistakes=[
        (
            _first_axis_fastest,
            "Here the first axis varies fastest: on this grid the last one does.",
        ),
        (
            _neighbours_by_number,
            "These are neighbours by number, which is right for the last axis alone: along the "
            "others, ranks are further apart.",
        ),
        (_always_from_rank_0, "This is rank 0's group: find this rank's own place on the axis."),
        (_from_this_rank_on, "The group starts before this rank, unless it is the first in it."),
    ],
    hints=[
        "How far apart are two neighbours along an axis? Multiply the sizes of the axes after it.",
        "The place of a rank on the axis is rank // stride % size.",
        "The first rank of the group is rank - place * stride.",
    ],
)

register(AXIS_RANKS)
