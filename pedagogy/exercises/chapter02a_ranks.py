"""Chapter 02a: a GPipe step on ranks, written with messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.exercises.attempt import Outcome
from pedagogy.exercises.engine import Exercise, messages_only
from pedagogy.exercises.registry import register
from pedagogy.ranks import Group


def gpipe_step(
    group: Group,
    stage: nn.Module,
    microbatches: Sequence[Tensor] | None,
    targets: Sequence[Tensor] | None,
    loss: Callable[[Tensor, Tensor], Tensor],
    num_microbatches: int,
) -> None:
    """The parameters of `stage` have the gradient of the whole batch's mean loss.

    Rank r holds stage r. Rank 0 has the micro-batches, the last rank the targets; they are None
    elsewhere. All forwards come first, then all backwards.
    """
    first, last = group.rank == 0, group.rank == group.size - 1
    samples = sum(map(len, targets)) if last else None
    inputs, outputs = [], []
    for k in range(num_microbatches):
        x = microbatches[k] if first else group.recv(group.rank - 1).requires_grad_()
        output = stage(x)
        if last:
            output = loss(output, targets[k]) * len(targets[k]) / samples
        else:
            group.send(output, group.rank + 1)
        inputs.append(x)
        outputs.append(output)
    for k in range(num_microbatches):
        outputs[k].backward(None if last else group.recv(group.rank + 1))
        if not first:
            group.send(inputs[k].grad, group.rank - 1)


# --- mistakes: the same step with one part exchanged ----------------------------------------------

Held = list[tuple[Tensor, Tensor]]


def _input(group, microbatches, k):
    if group.rank == 0:
        return microbatches[k]
    return group.recv(group.rank - 1).requires_grad_()


def _share(targets, k):
    return len(targets[k]) / sum(map(len, targets))


def _forwards(
    group, stage, microbatches, targets, loss, m, take=_input, share=_share, then=None
) -> Held:
    held = []
    for k in range(m):
        x = take(group, microbatches, k)
        output = stage(x)
        if group.rank == group.size - 1:
            output = loss(output, targets[k]) * share(targets, k)
        else:
            group.send(output, group.rank + 1)
        held.append((x, output))
        if then:
            then(group, held)
    return held


def _backwards(group, held: Held) -> None:
    last = group.rank == group.size - 1
    for x, output in held:
        output.backward(None if last else group.recv(group.rank + 1))
        if group.rank:
            group.send(x.grad, group.rank - 1)


def _not_weighted(group, *arguments):
    _backwards(group, _forwards(group, *arguments, share=lambda targets, k: 1.0))


def _mean_of_means(group, *arguments):
    _backwards(group, _forwards(group, *arguments, share=lambda targets, k: 1 / len(targets)))


def _times_samples(group, *arguments):
    _backwards(group, _forwards(group, *arguments, share=lambda targets, k: len(targets[k])))


def _keeps_the_latest(group, *arguments):
    held = _forwards(group, *arguments)
    _backwards(group, held[-1:] * len(held))


def _nothing_sent_back(group, *arguments):
    last = group.rank == group.size - 1
    for _, output in _forwards(group, *arguments):
        output.backward(None if last else group.recv(group.rank + 1))


def _last_one_first(group, *arguments):
    def then(group, held):
        if group.rank == group.size - 1:
            _backwards(group, [held.pop()])

    _backwards(group, _forwards(group, *arguments, then=then))


def _one_at_a_time(group, *arguments):
    _forwards(group, *arguments, then=lambda group, held: _backwards(group, [held.pop()]))


def _input_without_gradient(group, *arguments):
    def take(group, microbatches, k):
        return microbatches[k] if group.rank == 0 else group.recv(group.rank - 1)

    _backwards(group, _forwards(group, *arguments, take=take))


def _last_gradient_alone(group, stage, *arguments):
    for one in _forwards(group, stage, *arguments):
        stage.zero_grad()
        _backwards(group, [one])


# --- the cases ------------------------------------------------------------------------------------


def stages_of_three() -> list[nn.Module]:
    """Three small stages, the same at each call."""
    draw = torch.Generator().manual_seed(2)
    stages = [nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 4), nn.Linear(4, 2)]
    for parameter in nn.ModuleList(stages).parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw)
    return stages


def batch_of(sizes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Micro-batches of these sizes, and their targets."""
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(sum(sizes), 3, generator=draw)
    targets = torch.randn(sum(sizes), 2, generator=draw)
    return list(inputs.split(sizes)), list(targets.split(sizes))


def _case(sizes: Sequence[int]) -> Callable[[int], tuple]:
    def arguments(rank: int) -> tuple:
        inputs, targets = batch_of(sizes)
        return (
            stages_of_three()[rank],
            inputs if rank == 0 else None,
            targets if rank == 2 else None,
            functional.mse_loss,
            len(sizes),
        )

    return arguments


def _gradients(function: Callable, group: Group, stage: nn.Module, *others) -> dict:
    function(group, stage, *others)
    return {f"the gradient of {name}": p.grad for name, p in stage.named_parameters()}


def _forwards_first(function: Callable, outcome: Outcome) -> str | None:
    """A target: rank 0 sends all micro-batches of a step before it waits for a gradient."""
    events = sorted(outcome.trace.of(rank=0), key=lambda event: event.start)
    kinds = [event.kind for event in events if event.kind in ("send", "recv")]
    if kinds[:4] == ["send"] * 4:
        return None
    sent = kinds.index("recv")
    return (
        f"rank 0 waits for a gradient after {sent} of 4 micro-batches: all forwards come before "
        "the first backward, so that the stages work at the same time"
    )


STEP = Exercise(
    name="gpipe_step",
    title="GPipe on three ranks",
    chapter="02a",
    reference=gpipe_step,
    cases=[_case([2, 2, 2, 2]), _case([3, 3, 1])],
    labels=["4 micro-batches of 2", "micro-batches of 3, 3 and 1"],
    observe=_gradients,
    ranks=3,
    targets=[messages_only, _forwards_first],
    mistakes=[
        (
            _not_weighted,
            "Each micro-batch's loss is a mean already, and these gradients are the sum of all: "
            "weight each loss by its share of the batch's samples.",
        ),
        (
            _mean_of_means,
            "Dividing by the number of micro-batches is right only while they are equally large. "
            "Weight each loss by its share of the samples.",
        ),
        (
            _times_samples,
            "This is the gradient of the sum over samples. Divide by the samples of the batch.",
        ),
        (
            _keeps_the_latest,
            "Only the latest input and output are kept, so the same micro-batch goes back again "
            "and again. Keep those of every micro-batch until its backward.",
        ),
        (
            _nothing_sent_back,
            "No gradient is sent back: after its backward, a stage sends the gradient of its "
            "input, x.grad, to the stage before.",
        ),
        (
            _last_one_first,
            "The last stage goes back at once, and sends its gradient to a rank that is itself "
            "sending the next activation: both wait for the other to receive. All forwards first.",
        ),
        (_one_at_a_time, "This is the naive schedule: while one stage works, the others wait."),
        (
            _input_without_gradient,
            "What recv returns is a fresh tensor without history: autograd computes the gradient "
            "that you send back only after .requires_grad_() on it.",
        ),
        (
            _last_gradient_alone,
            "backward() adds to .grad, and the gradients of all micro-batches must add up: do not "
            "zero them in between.",
        ),
    ],
    hints=[
        "Two loops over k: in the first receive (or take) the input, run the stage, send the "
        "output on; in the second receive the gradient, go back, send the input's gradient.",
        "Keep inputs and outputs of all micro-batches in lists. output.backward(gradient) "
        "continues with a gradient that came from elsewhere.",
        "On the last rank the output is the loss: loss(stage(x), targets[k]) * len(targets[k]) / "
        "(all samples), and backward() needs no gradient.",
    ],
)

register(STEP)
