"""The production twin: the same stages through torch.distributed.pipelining."""

import sys
from itertools import pairwise

import cloudpickle
import pytest
import torch
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn import functional

from pedagogy.pipeline import (
    Layout,
    gpipe,
    gpt_layers,
    interleaved,
    one_f_one_b,
    run_schedule,
    split_batch,
    split_layers,
    zero_bubble_h1,
)
from pedagogy.ranks import launch
from pedagogy.workloads import GPT, text_batch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

P, M, BATCH, SEQUENCE = 2, 4, 8, 8
PAIRS = {
    "gpipe": (gpipe(P, M), ScheduleGPipe),
    "1F1B": (one_f_one_b(P, M), Schedule1F1B),
    "interleaved": (interleaved(P, M, 2), ScheduleInterleaved1F1B),
    "zero-bubble": (zero_bubble_h1(P, M), None),
    "zero-bubble, interleaved": (interleaved(P, M, 2), ScheduleInterleavedZeroBubble),
}


def token_loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_stages(group, schedule):
    """This rank's stages of an untied GPT in float64, by number."""
    torch.manual_seed(0)
    model = GPT(layers=6, hidden=16, heads=2, sequence=SEQUENCE, tied=False).double()
    layout = Layout(schedule)
    layers, num_stages = gpt_layers(model), layout.num_stages
    cuts = [stage * len(layers) // num_stages for stage in range(num_stages + 1)]
    stages = split_layers(layers, list(pairwise(cuts)))
    return {s: stages[s] for s in range(num_stages) if layout.rank_of(s, 0) == group.rank}


def train(stages, step, steps=3):
    """Losses and gradients of every step, and the weights after the last."""
    parameters = list(nn.ModuleList(stages.values()).parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    losses, gradients = [], []
    for number in range(steps):
        losses.append(step(*text_batch(BATCH, SEQUENCE, step=number)))
        gradients.append([parameter.grad.clone() for parameter in parameters])
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients, [parameter.detach() for parameter in parameters]


def ours(group, schedule):
    stages = make_stages(group, schedule)

    def step(x, y):
        run = run_schedule(
            group, schedule, stages, split_batch(x, M), split_batch(y, M), token_loss
        )
        return run.loss

    return train(stages, step)


def theirs(group, schedule, make):
    stages, num_stages = make_stages(group, schedule), Layout(schedule).num_stages
    wrapped = [
        PipelineStage(module, s, num_stages, torch.device("cpu"), group=group.process_group)
        for s, module in stages.items()
    ]
    single = make in (ScheduleGPipe, Schedule1F1B)
    runner = make(wrapped[0] if single else wrapped, n_microbatches=M, loss_fn=token_loss)

    def step(x, y):
        losses = []
        arguments = (x,) if 0 in stages else ()
        target = {"target": y, "losses": losses} if num_stages - 1 in stages else {}
        runner.step(*arguments, **target)
        return torch.stack(losses).mean().detach() if losses else None

    return train(stages, step)


def both(group):
    torch.set_num_threads(1)
    return {
        name: (ours(group, schedule), theirs(group, schedule, twin or Schedule1F1B))
        for name, (schedule, twin) in PAIRS.items()
    }


@pytest.fixture(scope="module")
def runs():
    return launch(both, P)


@pytest.mark.parametrize("name", PAIRS)
def test_losses_gradients_and_weights_are_those_of_torchs_schedule(runs, name):
    for rank, found in enumerate(runs):
        (my_losses, *mine), (their_losses, *their) = found[name]
        torch.testing.assert_close(mine, their, rtol=1e-10, atol=1e-13)
        if rank == P - 1:
            torch.testing.assert_close(my_losses, their_losses, rtol=1e-12, atol=0)
        else:
            assert my_losses == their_losses == [None] * 3
