"""Chapter 02b: weight stashing, written into an executor that is given.

The order of replicated stages stands in `chapter02b_replicas`, cutting into stages in
`chapter02b_partition`, wrong gradients in `chapter02b_gradients`, predictions in
`chapter02b_predictions`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.compare import brief
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register
from pedagogy.pipeline import pipedream, simulate

Choose = Callable[[str, int, Tensor, dict], Tensor]
LEARNING_RATE = 0.02


def stash_weights(kind: str, minibatch: int, newest: Tensor, stash: dict) -> Tensor:
    """The weights that this forward ("F") or backward ("B") of a stage uses.

    `newest` are the stage's weights as they are now; every update overwrites them in place.
    `stash`, a dict of this stage, empty at first, keeps tensors as long as they are needed.
    """
    if kind == "F":
        stash[minibatch] = newest.clone()
        return newest
    return stash.pop(minibatch)


# --- the executor ---------------------------------------------------------------------------------


def train_with_stash(
    choose: Choose, weights: list[Tensor], inputs: list[Tensor], targets: list[Tensor]
) -> list[int]:
    """`weights` are those after one update a minibatch; returns the most tensors in a stash.

    PipeDream's order in one process. Stage s computes x weights[s], the loss is half the squared
    error; `choose(kind, minibatch, newest, stash)` says which weights a stage uses.
    """
    p, stashes = len(weights), [{} for _ in weights]
    activation, gradient = {}, {}  # (stage, minibatch) -> its input; the gradient of its output
    weight_gradient, most = {}, [0] * p
    start = simulate(pipedream(p, len(inputs))).start
    for kind, s, k in sorted(start, key=start.__getitem__):
        if kind == "U":  # in place, as torch's optimizers do
            weights[s] -= LEARNING_RATE * weight_gradient.pop((s, k))
            continue
        used = choose(kind, k, weights[s], stashes[s])
        if kind == "F":
            x = activation[s, k] = inputs[k] if s == 0 else activation[s, k]
            activation[s + 1, k] = x @ used
        else:
            error = activation[p, k] - targets[k] if s == p - 1 else gradient.pop((s, k))
            weight_gradient[s, k] = activation.pop((s, k)).T @ error
            gradient[s - 1, k] = error @ used.T
        most[s] = max(most[s], len({one.data_ptr() for one in stashes[s].values()}))
    return most


# --- mistakes -------------------------------------------------------------------------------------


def _no_stash(kind, minibatch, newest, stash):
    return newest


def _no_copy(kind, minibatch, newest, stash):
    if kind == "F":
        stash[minibatch] = newest
        return newest
    return stash.pop(minibatch)


def _never_dropped(kind, minibatch, newest, stash):
    if kind == "F":
        stash[minibatch] = newest.clone()
        return newest
    return stash[minibatch]


def _one_place(kind, minibatch, newest, stash):
    if kind == "F":
        stash["weights"] = newest.clone()
    return stash["weights"]


def _stashed_not_used(kind, minibatch, newest, stash):
    if kind == "F":
        stash[minibatch] = newest.clone()
    else:
        stash.pop(minibatch)
    return newest


def _the_first_for_ever(kind, minibatch, newest, stash):
    return stash.setdefault("weights", newest.clone())


def _copied_back(kind, minibatch, newest, stash):
    if kind == "F":
        stash[minibatch] = newest.clone()
        return newest
    return newest.copy_(stash.pop(minibatch))


def _stale_forward(kind, minibatch, newest, stash):
    if kind == "B":
        return stash.pop(minibatch)
    stash[minibatch] = next(iter(stash.values()), newest).clone()
    return stash[minibatch]


def _case(num_stages: int, num_minibatches: int) -> tuple:
    draw = torch.Generator().manual_seed(num_stages)
    weights = [torch.eye(2) + torch.randn(2, 2, generator=draw) / 2 for _ in range(num_stages)]
    rows = torch.randn(2, num_minibatches, 3, 2, generator=draw)
    return weights, list(rows[0]), list(rows[1])


def _trained(function: Callable, weights: list, inputs: list, targets: list) -> dict | None:
    def choose(kind: str, minibatch: int, newest: Tensor, stash: dict) -> Tensor:
        used = function(kind, minibatch, newest, stash)
        if not isinstance(used, Tensor) or used.shape != newest.shape:
            raise Refused(f'for "{kind}" it returns {brief(used)}, not the weights of the stage')
        return used

    if function("F", 0, weights[0].clone(), {}) is None:
        return None
    most = train_with_stash(choose, weights, inputs, targets)
    return {
        **{f"the weights of stage {s}": one for s, one in enumerate(weights)},
        **{f"the most versions in the stash of stage {s}": one for s, one in enumerate(most)},
    }


STASH = Exercise(
    name="stash_weights",
    title="The version that the forward saw",
    chapter="02b",
    reference=stash_weights,
    cases=[_case(4, 10), _case(2, 5), _case(1, 3)],
    labels=["4 stages, 10 minibatches", "2 stages, 5 minibatches", "1 stage, 3 minibatches"],
    observe=_trained,
    mistakes=[
        (
            _no_stash,
            "Without a stash, backward multiplies by weights that its forward never saw: these are "
            "the gradients of no function.",
        ),
        (
            _no_copy,
            "The stash holds the newest tensor itself, which every update overwrites: .clone() it.",
        ),
        (
            _never_dropped,
            "Nothing is ever dropped. A version is needed once more, in this minibatch's backward: "
            "pop it there, and stage s keeps p - s of them.",
        ),
        (
            _one_place,
            "One place is overwritten by the next forward, and up to p - s minibatches are under "
            "way. Give each minibatch its own.",
        ),
        (
            _stashed_not_used,
            "The copy is made and dropped, but the backward still gets the newest weights.",
        ),
        (
            _the_first_for_ever,
            "These are always the first weights: the updates change what no minibatch ever uses.",
        ),
        (
            _copied_back,
            "This overwrites the newest weights: the updates made since are lost.",
        ),
        (
            _stale_forward,
            "A forward uses the newest weights; only the backward goes back to old ones.",
        ),
    ],
    hints=[
        "The rule of weight stashing: a forward uses the newest weights, and the backward of the "
        "same minibatch uses what its forward used.",
        "In F, keep a copy under the minibatch's number: an update writes into `newest` itself.",
        "In B, stash.pop(minibatch) gives the copy and drops it.",
    ],
)

register(STASH)
