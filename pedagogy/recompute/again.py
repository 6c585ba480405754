"""Make a dropped storage again, by its recipe.

How it works
------------
[1] Walk back from what is asked for to what is there. That gives the operations that are missing.
[2] Run each of them once, in the order of the first time. A tensor that two of them read is made
    once; if each reader made it for itself, the number of runs would double at each residual sum.
[3] Let a result go as soon as the last of them has read it, as a forward pass without autograd
    does. Only those stay that backward will ask for and that are to stay by their action.

Source: Peng et al. 2020 (Capuchin), section 4.3, for the lineage that ends at what is there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from pedagogy.recompute.made import Held, Input, Key, Made

KEEP, RECOMPUTE, ALONE, SWAP = ACTIONS = ("keep", "recompute", "alone", "swap")


def make_again(made: Made) -> Tensor:
    """The values of a storage that is nowhere.

    **Raises** RuntimeError where something that is read again was changed in place.
    """
    missing = _missing(made)  # [1]
    last_read = {x.made.key: one.op.number for one in missing for x in one.inputs}
    last_read[made.key] = made.op.number + 1
    made_now: dict[Key, Tensor] = {}
    for one in missing:  # [2]
        made_now |= _run(one, made_now, last_read, made)
        made_now = {k: x for k, x in made_now.items() if last_read[k] > one.op.number}  # [3]
    return made_now[made.key]


def _missing(made: Made) -> list[Made]:
    """For each operation that must run, in order, one storage that it makes."""
    found: dict[int, Made] = {}
    waiting = [made]
    while waiting:
        one = waiting.pop()
        if one.op.number in found:
            continue
        name = f"{one.op.name} (operation {one.op.number}) cannot run again"
        if not one.repeats:
            raise RuntimeError(name)
        if any(x.is_stale for x in tree_leaves(one.recipe) if isinstance(x, Held | Input)):
            raise RuntimeError(f"{name}: what it read was changed in place")
        found[one.op.number] = one
        waiting += [x.made for x in one.inputs if not x.made.is_there]
    return [found[number] for number in sorted(found)]


def _run(
    one: Made, made_now: dict[Key, Tensor], last_read: dict[Key, int], asked: Made
) -> dict[Key, Tensor]:
    """Run an operation again; what it made, of what will be read."""

    def argument(x: Any) -> Any:
        if isinstance(x, Held):
            return x.tensor
        if not isinstance(x, Input):
            return x
        found = made_now.get(x.made.key)
        return x.geometry.on(x.made.find() if found is None else found)

    func, args, kwargs = tree_map(argument, one.recipe)
    with torch.no_grad(), torch._C._DisableAutocast():  # casts are in the recipes
        results = tree_leaves(func(*args, **kwargs))
    one.op.runs += 1
    for sibling in filter(None, (reference() for reference in one.siblings)):
        alone = sibling.action == ALONE and sibling.op is asked.op
        if (sibling.action == RECOMPUTE or alone) and sibling.pending and not sibling.is_there:
            sibling.again = results[sibling.key[1]]
    keys = ((one.op.number, output) for output in range(len(results)))
    return {key: results[key[1]] for key in keys if key in last_read}
