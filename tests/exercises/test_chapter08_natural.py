"""Chapter 08: answers as readers write them, right and wrong."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as checkpoint_of_pytorch

from pedagogy.exercises import engine
from pedagogy.exercises.chapter08 import CHECKPOINTED
from pedagogy.exercises.chapter08_cuts import CUTS
from pedagogy.exercises.chapter08_decide import DECIDE, lost_seconds
from pedagogy.exercises.chapter08_policies import POLICIES
from pedagogy.recompute import CheckpointFunction


def pytorch_s(function, x):
    return checkpoint_of_pytorch(function, x, use_reentrant=False)


def with_fork_rng(function, x):
    state, kept, made = torch.get_rng_state(), [], None

    def pack(tensor):
        kept.append(None)
        return len(kept) - 1

    def unpack(i):
        nonlocal made
        if made is None:
            made = []
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(state)
                again = x.detach().requires_grad_(x.requires_grad)
                with saved_tensors_hooks(lambda t: made.append(t.detach()), lambda t: t):
                    function(again)
        return made[i]

    with saved_tensors_hooks(pack, unpack):
        return function(x)


def runs_again(function, x, grad=torch.enable_grad, given=lambda x: x):
    numbers, made = iter(range(10**6)), []

    def unpack(i):
        if not made:
            with grad(), saved_tensors_hooks(lambda t: made.append(t) or t, lambda t: t):
                function(given(x))
        return made[i]

    with saved_tensors_hooks(lambda t: next(numbers), unpack):
        return function(x)


def one_tensor_at_a_time(function, x):
    count, state = 0, torch.get_rng_state()

    def pack(tensor):
        nonlocal count
        count += 1
        return count - 1

    def unpack(i):
        made, now = [], torch.get_rng_state()
        torch.set_rng_state(state)
        with torch.enable_grad(), saved_tensors_hooks(made.append, lambda t: t):
            function(x)
        torch.set_rng_state(now)
        return made[i].detach()

    with saved_tensors_hooks(pack, unpack):
        return function(x)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (pytorch_s, "correct"),
        (with_fork_rng, "correct"),
        (runs_again, "draws new random numbers"),
        (one_tensor_at_a_time, "runs again for each tensor"),
        (lambda function, x: function(x), "Nothing is dropped"),
        (lambda function, x: CheckpointFunction.apply(function, x), "sees its inputs alone"),
        (lambda f, x: runs_again(f, x, grad=torch.no_grad), "torch.enable_grad()"),
        (lambda f, x: runs_again(f, x, given=torch.detach), "needs a gradient, the other one"),
        (lambda function, x: [function(x)], "a tensor, not list"),
    ],
)
def test_checkpoints_are_explained(answer, says):
    assert says in engine.explain(CHECKPOINTED, answer)


def by_recursion(sizes):
    @lru_cache(None)
    def best(first):
        if first == len(sizes):
            return 0, ()
        found = []
        for end in range(first + 1, len(sizes) + 1):
            later, starts = best(end)
            found.append((max(sum(sizes[first:end]), sizes[first] + later), (first, *starts)))
        return min(found)

    return best(0)[1]


def square_root(sizes):
    step = round(len(sizes) ** 0.5)
    return list(range(0, len(sizes), step))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_recursion, "correct"),
        (square_root, "sqrt(n) segments of equal length"),
        (lambda sizes: [0], "All inputs are there at once"),
        (lambda sizes: [len(sizes)], "A list was asked for that begins with 0"),
        (lambda sizes: [0, len(sizes)], "A list was asked for that begins with 0"),
        (lambda sizes: 4, "A list was asked for that begins with 0"),
    ],
)
def test_cuts_are_explained(answer, says):
    assert says in engine.explain(CUTS, answer)


def by_groups(sizes, kept, input_size, policy, triangle=lambda n: sum(range(1, n + 1))):
    read = [input_size, *sizes[:-1]]
    need = [2 * (a + b) for a, b in zip(read, sizes, strict=True)]
    total, peak = 0, max(need)
    for stays, group in groupby(range(len(sizes)), key=lambda i: kept[i]):
        if stays:
            continue
        layers = list(group)
        last = layers[-1]
        fast = read[layers[0]] + sum(sizes[i] for i in layers) + read[last] + sizes[last]
        if policy == "speed" or (policy == "cost" and fast <= max(need)):
            total += len(layers)
            peak = max(peak, fast)
        else:
            total += triangle(len(layers))
    return [total, peak]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_groups, "correct"),
        (lambda *chain: by_groups(*chain, lambda n: sum(range(n))), "n(n + 1)/2"),
    ],
)
def test_policies_are_explained(answer, says):
    assert says in engine.explain(POLICIES, answer)


def in_any_order(tensors, turn, budget, bandwidth):
    """Step by step the action that loses least for its bytes; swaps are not tried first."""
    actions = ["keep"] * len(tensors)
    while sum(t.nbytes for t, a in zip(tensors, actions, strict=True) if a == "keep") > budget:
        found = []
        for i, old in enumerate(actions):
            for new in ("swap", "recompute"):
                if old == "keep":
                    trial = [*actions[:i], new, *actions[i + 1 :]]
                    lost = lost_seconds(trial, tensors, turn, bandwidth)
                    found.append((lost / tensors[i].nbytes, trial))
        actions = min(found)[1]
    return actions


def largest_first(tensors, turn, budget, bandwidth):
    actions = ["keep"] * len(tensors)
    total = sum(t.nbytes for t in tensors)
    for size, i in sorted(((t.nbytes, -i) for i, t in enumerate(tensors)), reverse=True):
        if total > budget:
            actions[-i] = "swap"
            total -= size
    return actions


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (in_any_order, "not yet. In the case"),
        (largest_first, "The largest are swapped first"),
        (lambda tensors, *limits: ["keep"] * len(tensors), "bytes over the budget: it is 24"),
        (lambda tensors, *limits: ["recompute"] * len(tensors), "seconds lost"),
        (lambda tensors, *limits: ["keep"], "A list of 4 was asked for"),
        (lambda tensors, *limits: "keep", "A list of 4 was asked for"),
        (lambda tensors, *limits: 4, "A list of 4 was asked for"),
    ],
)
def test_decisions_are_explained(answer, says):
    assert says in engine.explain(DECIDE, answer)
