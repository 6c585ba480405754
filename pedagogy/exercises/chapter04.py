"""Chapter 04: where tokens go, and what keeps the gate from sending them all to one expert.

Here stands the warm-up, places in buffers. Switch's loss is in `chapter04_balance`, Shazeer's load
in `chapter04_load`, dispatch and combine in `chapter04_mixture`, experts on ranks in
`chapter04_ranks`, predictions in `chapter04_predictions` and `chapter04_traffic`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def place_in_buffers(experts: Tensor, num_experts: int, capacity: int) -> tuple[Tensor, Tensor]:
    """places (tokens,): each token's place in its expert's buffer; kept (tokens,): who finds room.

    `experts` (tokens,) is what each token chose. A place is how many earlier tokens chose the same
    expert, whether they found room or not.
    """
    chosen = functional.one_hot(experts, num_experts)  # (tokens, num_experts)
    before = chosen.cumsum(0) - chosen
    places = before.gather(1, experts[:, None])[:, 0]
    return places, places < capacity


# --- mistakes -------------------------------------------------------------------------------------


def _right(experts: Tensor, num_experts: int = 0) -> Tensor:
    return place_in_buffers(experts, int(experts.max()) + 1, 0)[0]


def _from_the_end(experts: Tensor, num_experts: int = 0) -> Tensor:
    """How many later tokens chose the same expert."""
    return _right(experts.flip(0)).flip(0)


def _of_every_expert(experts: Tensor, num_experts: int) -> Tensor:
    chosen = functional.one_hot(experts, num_experts)
    return chosen.cumsum(0) - chosen


def _fullest(experts: Tensor, num_experts: int) -> Tensor:
    return functional.one_hot(experts, num_experts).cumsum(0).amax(1) - 1


def _fullest_before(experts: Tensor, num_experts: int) -> Tensor:
    chosen = functional.one_hot(experts, num_experts)
    return (chosen.cumsum(0) - chosen).amax(1)


def _counts(experts: Tensor, num_experts: int = 0) -> Tensor:
    """How many tokens chose each token's expert."""
    return torch.bincount(experts)[experts]


def _placed(place: Callable[[Tensor, int], Tensor], one: int = 0) -> Callable:
    """Other places. `one` is 1 where they are counted from 1, and kept so."""

    def wrong(experts, num_experts, capacity):
        places = place(experts, num_experts)
        return places, places < capacity + one

    return wrong


def _kept(keep: Callable[[Tensor, Tensor, int, int], Tensor]) -> Callable:
    """The right places, of which others are kept."""

    def wrong(experts, num_experts, capacity):
        places = _right(experts)
        return places, keep(places, experts, num_experts, capacity)

    return wrong


def _dropped_at(place: Callable[[int], int]) -> Callable:
    """Dropped tokens get this place, which may depend on the capacity."""

    def wrong(experts, num_experts, capacity):
        places = _right(experts)
        kept = places < capacity
        return places.where(kept, torch.tensor(place(capacity))), kept

    return wrong


def _swapped(experts, num_experts, capacity):
    return place_in_buffers(experts, num_experts, capacity)[::-1]


def _wraps_around(experts, num_experts, capacity):
    places = _right(experts)
    return places % capacity, places < capacity


_DROPPED = (
    "What is kept is right. A dropped token has a place too, one beyond the buffer: how many "
    "before it chose the same expert, whether these found room or not."
)

_OF_THE_FULLEST = (
    "This is the place in the fullest buffer so far: of the counts take the one of the expert that "
    "the token chose (gather)."
)

MISTAKES = [
    (
        _placed(lambda experts, _: torch.arange(len(experts))),
        "This is each token's place in the batch. Every expert has a buffer of its own, and counts "
        "its own tokens alone.",
    ),
    (
        _placed(lambda experts, _: experts.argsort(stable=True).argsort()),
        "This is each token's position when all are sorted by expert: from it, take away where its "
        "expert's slice begins.",
    ),
    (
        _placed(lambda experts, _: experts.argsort(stable=True)),
        "argsort says which token stands at each position, not where a token stands; and places "
        "are counted within an expert.",
    ),
    (
        _placed(lambda experts, _: _right(experts) + 1),
        "Places are counted from 1, so every buffer seems full one token too early: the first "
        "place is 0.",
    ),
    (
        _placed(lambda experts, _: _right(experts) + 1, one=1),
        "What is kept is right, but places are counted from 1: cumsum counts the token itself, and "
        "a place is how many came before it.",
    ),
    (
        _kept(lambda places, experts, num_experts, capacity: places <= capacity),
        "Each buffer takes one token too many: `capacity` places have the numbers 0 to "
        "capacity - 1.",
    ),
    (
        _kept(lambda places, experts, num_experts, capacity: places + 1 < capacity),
        "The places are right, but each buffer takes one token too few: it has `capacity` places, "
        "from 0 to capacity - 1 (compare before the counter grows).",
    ),
    (_placed(_fullest), _OF_THE_FULLEST),
    (_placed(_fullest_before), _OF_THE_FULLEST),
    (
        _placed(_of_every_expert),
        "These are counts for every expert, (tokens, experts): a token's place is the one of the "
        "expert that it chose (gather).",
    ),
    (
        _placed(_from_the_end),
        "Counted from the end: a place is how many *earlier* tokens chose the expert, so the last "
        "ones are dropped.",
    ),
    (
        _kept(lambda places, experts, num_experts, capacity: _from_the_end(experts) < capacity),
        "The places are right, but the last tokens are kept, not the first.",
    ),
    (
        _kept(lambda places, experts, num_experts, capacity: _counts(experts) <= capacity),
        "An expert that is asked by too many keeps none of them here: it keeps the first "
        "`capacity`.",
    ),
    (
        _kept(lambda places, experts, _, capacity: torch.arange(len(experts)) < capacity),
        "The first `capacity` tokens of the batch are kept, whatever they chose: each expert has "
        "its own buffer, so compare places with the capacity.",
    ),
    (
        _kept(lambda places, experts, n, capacity: torch.arange(len(experts)) < capacity * n),
        "Here tokens share the room of all experts. An expert's buffer can be full while others "
        "are empty: compare each token's place with the capacity.",
    ),
    (
        _placed(_counts, one=1),
        "This is how many tokens chose the expert in all; a place is how many did so *before* this "
        "token.",
    ),
    (
        _placed(lambda experts, _: torch.zeros_like(experts)),
        "All places are 0: the running sum goes over the tokens (dim 0), not over the experts.",
    ),
    (
        _kept(lambda places, experts, num_experts, capacity: places >= capacity),
        "kept says here who is dropped: it is the other way round.",
    ),
    (_swapped, "The two are returned in the wrong order: places, then kept."),
    (
        _wraps_around,
        "A place beyond the buffer begins again at 0, where another token is already. Dropped "
        "tokens have places beyond it.",
    ),
    (_dropped_at(lambda capacity: -1), _DROPPED),
    (_dropped_at(lambda capacity: 0), _DROPPED),
    (_dropped_at(lambda capacity: capacity), _DROPPED),
    (_dropped_at(lambda capacity: capacity - 1), _DROPPED),
]

PLACES = Exercise(
    name="place_in_buffers",
    title="A place, or none",
    chapter="04",
    reference=place_in_buffers,
    cases=[
        (torch.tensor([2, 0, 2, 1, 2, 0, 2, 2]), 3, 3),
        (torch.tensor([0, 0, 0, 0, 0]), 4, 2),
        (torch.tensor([1, 0, 1, 0]), 3, 4),
    ],
    labels=[
        "tokens to experts 2, 0, 2, 1, 2, 0, 2, 2; capacity 3",
        "five tokens to expert 0, capacity 2",
        "room for all",
    ],
    mistakes=MISTAKES,
    hints=[
        "Go through the tokens with one counter for each expert: the counter is the place, then it "
        "grows by one. Afterwards, kept is places < capacity.",
        "Without a loop: functional.one_hot(experts, num_experts).cumsum(0) counts for each "
        "expert how many chose it up to this token, itself included.",
    ],
)

register(PLACES)
