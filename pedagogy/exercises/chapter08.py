"""Chapter 08: what autograd saves is dropped, and made again when backward asks.

Where to cut is in `chapter08_cuts`, the three policies in `chapter08_policies`, swap or recompute
in `chapter08_decide`, predictions in `chapter08_predictions`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def checkpointed(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x); what it saves for backward is dropped, and made again when backward asks."""
    random, numbers, saved = torch.get_rng_state(), count(), {}

    def drop(tensor: Tensor) -> int:
        return next(numbers)

    def ask(number: int) -> Tensor:
        if number not in saved:
            run_again()
        return saved.pop(number)

    def run_again() -> None:
        again, outside = count(), torch.get_rng_state()

        def collect(tensor: Tensor) -> None:
            saved[next(again)] = tensor.detach()

        torch.set_rng_state(random)
        with torch.enable_grad(), saved_tensors_hooks(collect, lambda nothing: nothing):
            function(x)
        torch.set_rng_state(outside)

    with saved_tensors_hooks(drop, ask):
        return function(x)


# --- mistakes -------------------------------------------------------------------------------------


@contextmanager
def _as_it_was(random: Tensor) -> Iterator[None]:
    outside = torch.get_rng_state()
    torch.set_rng_state(random)
    yield
    torch.set_rng_state(outside)


@contextmanager
def _never_put_back(random: Tensor) -> Iterator[None]:
    torch.set_rng_state(random)
    yield


def _dropped(
    function: Callable,
    x: Tensor,
    around: Callable = _as_it_was,
    again: Callable[[list], bool] = lambda saved: not saved,
    hand: Callable[[list, int], Tensor] = lambda saved, number: saved[number],
    seen: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """The reference's output, with the parts that are given in the place of its own."""
    random, numbers, saved = torch.get_rng_state(), count(), []

    def ask(number: int) -> Tensor:
        if again(saved):
            saved.clear()
            collect = saved_tensors_hooks(lambda t: saved.append(t.detach()), lambda t: t)
            with around(random), torch.enable_grad(), collect:
                function(seen(x))
        return hand(saved, number)

    with saved_tensors_hooks(lambda tensor: next(numbers), ask):
        return function(seen(x))


def _kept_after_all(function, x):
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return function(x)


MISTAKES = [
    (
        partial(_dropped, around=lambda random: nullcontext()),
        "The second run draws new random numbers: dropout has another mask, and the gradient is "
        "that of another loss. Keep the state of the generator before the first run, and set it "
        "for the second.",
    ),
    (
        partial(_dropped, around=_never_put_back),
        "The mask is the same, but then the generator stands where the first run left it, and what "
        "others have drawn since is drawn again. Read its state when backward asks, and put that "
        "back.",
    ),
    (
        partial(_dropped, again=lambda saved: True),
        "The function runs again for each tensor that backward asks for. The first ask makes all "
        "of them: collect them, and hand out the others from there.",
    ),
    (
        partial(_dropped, hand=lambda saved, number: saved.pop()),
        "The tensors are handed out last first. Backward takes the operations in this order, but "
        "an operation that saved two asks for the first of them first: hand out by number.",
    ),
    (
        partial(_dropped, seen=lambda x: x.detach()),
        "The input is detached, and no gradient reaches it. Hand x on as it is.",
    ),
    (
        _kept_after_all,
        "Nothing is dropped: the tensors stay, in the graph. What the first hook returns is what "
        "autograd keeps; a number is enough.",
    ),
]

# --- the cases ------------------------------------------------------------------------------------


def _gated(x: Tensor) -> Tensor:
    return x * x.sigmoid()  # two of one shape are saved


CASES = {  # the layers, and whether the input needs a gradient
    "two linear layers": (lambda: [nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)], True),
    "a product saves two": (lambda: [nn.Linear(4, 4), _gated, nn.Linear(4, 4)], True),
    "dropout (C27)": (lambda: [nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)], True),
    "the input needs no gradient (C29)": (
        lambda: [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)],
        False,
    ),
}


def _one_step(function: Callable, make_layers: Callable[[], list], needs: bool) -> dict | None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        return _observed(function, make_layers(), torch.randn(5, 4).requires_grad_(needs))


def _observed(function: Callable, layers: list, x: Tensor) -> dict | None:
    runs: list[tuple[bool, bool]] = []
    inside: list[weakref.ref] = []

    def run(x: Tensor) -> Tensor:
        runs.append((torch.is_grad_enabled(), x.requires_grad))
        for layer in layers[:-1]:
            x = layer(x)
            inside.append(weakref.ref(x.untyped_storage()))
        return layers[-1](x)

    output = function(run, x)
    if output is None:
        return None
    if not isinstance(output, Tensor):
        raise Refused(f"the output was asked for, a tensor, not {type(output).__name__}")
    if not output.requires_grad:
        raise Refused(
            "the output needs no gradient, as the input needs none, but the weights do (C29): an "
            "autograd.Function sees its inputs alone, hooks leave autograd's own graph"
        )
    alive = [storage() for storage in inside]
    kept = sum(storage.nbytes() for storage in alive if storage is not None)
    del alive
    torch.rand(1)  # someone else draws, between forward and backward
    try:
        output.square().sum().backward()
    finally:
        _refuse_what_differs(runs)
    weights = nn.ModuleList(layer for layer in layers if isinstance(layer, nn.Module)).parameters()
    return {
        "the output": output.detach(),
        "bytes kept inside after forward": kept,
        "the gradients of the input and the weights": [x.grad, *(w.grad for w in weights)],
        "runs of the function": len(runs),
        "the random numbers that come next": torch.rand(2),
    }


def _refuse_what_differs(runs: list[tuple[bool, bool]]) -> None:
    """Where the second run is not as the first, errors and numbers say little."""
    if not all(with_grad for with_grad, _ in runs[1:]):
        raise Refused(
            "backward runs without gradients, and the second run inside it saves nothing: "
            "torch.enable_grad()"
        )
    if len({needs for _, needs in runs}) > 1:
        raise Refused(
            "one run gets an input that needs a gradient, the other one that does not: autograd "
            "saves other tensors then, and the numbers do not fit"
        )


CHECKPOINTED = Exercise(
    name="checkpointed",
    title="Drop, and run again",
    chapter="08",
    reference=checkpointed,
    cases=list(CASES.values()),
    labels=list(CASES),
    observe=_one_step,
    mistakes=MISTAKES,
    tolerance=0.0,
    hints=[
        "The first hook returns a number (itertools.count), which is what autograd keeps; the "
        "second gets it back when backward asks, and has to return the tensor.",
        "On the first ask call function(x) once more, under saved_tensors_hooks again: its first "
        "hook puts each tensor, detached, into a dict under the next number. Backward runs without "
        "gradients: torch.enable_grad().",
        "torch.get_rng_state() before the first run; in the second: read the state, set the old "
        "one, run, and put back what was read.",
    ],
)

register(CHECKPOINTED)
