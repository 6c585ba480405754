"""The map of the book: what each technique cuts, and what that does to one device.

Why it exists
-------------
Fifteen techniques are hard to keep apart by name. They are easy to keep apart by two questions:
*what is cut* (the batch, the layers, an operation, the experts, the sequence, the states, the
bits), and *which of the things that fill a device or its time become less*. The chapters answer
with measured bytes; this table is their summary.

How to read it
--------------
Each entry says what happens to one device when the technique is switched on and nothing else
changes: "less", "same", "more", or "moved" (to host memory). Memory is compared at the same number
of sequences on that device; `seconds` is the time for a given number of sequences on all devices
together. Where devices differ, the fullest one counts: PipeDream's first stage keeps as many weight
versions, and as many micro-batches in flight, as there are stages, and saves neither. `exact` is
"yes" where the result equals one process's, "rounding" where only rounding differs, "another
update" where the rule of the update is another one, and "another model" where the model is.
"""

from __future__ import annotations

from typing import NamedTuple

ONE_DEVICE, MANY_RANKS = "one device", "many ranks"
EFFECTS = ("less", "same", "more", "moved")
KINDS = ("parameters", "gradients", "optimizer_state", "activations", "seconds")
EXACT = ("yes", "rounding", "another update", "another model")


class Technique(NamedTuple):
    """One row of the map."""

    chapter: str
    name: str
    track: str
    cuts: str
    parameters: str
    gradients: str
    optimizer_state: str
    activations: str
    seconds: str
    exact: str
    price: str

    def effects(self) -> dict[str, str]:
        """What happens to each kind of memory, and to the seconds."""
        return {kind: getattr(self, kind) for kind in KINDS}


def _row(chapter: str, name: str, track: str, cuts: str, effects: str, exact: str, price: str):
    return Technique(chapter, name, track, cuts, *effects.split(), exact, price)


TECHNIQUES = (
    _row(
        *("05", "mixed precision", ONE_DEVICE, "the bits of a number"),
        *("less less more less less", "rounding", "loss scale, master weights"),
    ),
    _row(
        *("06", "gradient accumulation", ONE_DEVICE, "the batch, in time"),
        *("same same same less same", "yes", "one update, many passes"),
    ),
    _row(
        *("07", "offloading", ONE_DEVICE, "the place: host memory"),
        *("moved moved moved moved more", "yes", "copies over the link"),
    ),
    _row(
        *("08", "recomputation", ONE_DEVICE, "what forward keeps"),
        *("same same same less more", "yes", "up to one more forward"),
    ),
    _row(
        *("09", "compression", ONE_DEVICE, "the model itself"),
        *("same same same same same", "another model", "pays after training"),
    ),
    _row(
        *("10", "lean optimizers", ONE_DEVICE, "the optimizer state"),
        *("same same less same same", "another update", "coarser statistics"),
    ),
    _row(
        *("01", "data parallelism", MANY_RANKS, "the batch, over ranks"),
        *("same same same same less", "yes", "an all-reduce of gradients"),
    ),
    _row(
        *("01", "parameter server", MANY_RANKS, "the batch, without waiting"),
        *("same same same same less", "another update", "stale gradients"),
    ),
    _row(
        *("02a", "pipeline with flush", MANY_RANKS, "the layers"),
        *("less less less less less", "yes", "the bubble"),
    ),
    _row(
        *("02b", "PipeDream", MANY_RANKS, "the layers, without flush"),
        *("same less less same less", "another update", "weight versions"),
    ),
    _row(
        *("03", "tensor parallelism", MANY_RANKS, "inside an operation"),
        *("less less less less less", "yes", "4 all-reduces a layer"),
    ),
    _row(
        *("03", "sequence parallelism", MANY_RANKS, "the sequence"),
        *("same same same less less", "yes", "gathers, or a ring"),
    ),
    _row(
        *("04", "mixture of experts", MANY_RANKS, "the experts"),
        *("more more more same same", "another model", "all-to-all, balance"),
    ),
    _row(
        *("11", "ZeRO", MANY_RANKS, "the states, over ranks"),
        *("less less less same less", "yes", "gathers when needed"),
    ),
)
