"""Chapter 06: what is asked before a batch is cut."""

from __future__ import annotations

import torch
from torch.nn import functional

from pedagogy.costs.communication import ring_all_reduce_bytes
from pedagogy.exercises.chapter06 import accumulate_gradients
from pedagogy.exercises.chapter06_cases import IGNORED, count, fresh_model, loss_sum, slopes
from pedagogy.exercises.chapter06_windows import train_with_windows
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register


def _mean_gradient() -> float:
    microbatches = [slopes(1, 1, 1, 1), slopes(6)]
    model = fresh_model(microbatches)
    accumulate_gradients(model, microbatches, loss_sum, count)
    return model.weight.grad.item()


MEAN = Prediction(
    name="mean_gradient_c04",
    chapter="06",
    question="Micro-batch A: 4 tokens with gradient 1 each; B: 1 token with gradient 6. The "
    "gradient of the batch's mean loss?",
    key=_mean_gradient,
    tolerance=1e-6,
    mistakes=[
        (3.5, "that is the mean of the two means: B's token would count as much as A's four."),
        (7, "that is the sum of the two means; the mean over 5 tokens was asked for."),
        (10, "that is the sum; divide by the 5 tokens."),
        (5, "the sum, 10, is divided by the 5 tokens, not by the 2 micro-batches."),
        (2.5, "there are 5 tokens, not 4."),
        (1.75, "that is a fourth of the sum of the two means; divide the sum, 10, by 5 tokens."),
    ],
    because="(4 x 1 + 6) / 5.",
)


def _loss_of_ignored() -> str:
    labels = torch.full((3,), IGNORED)
    loss = functional.cross_entropy(torch.zeros(3, 4), labels, ignore_index=IGNORED)
    return "nan" if loss.isnan() else "zero"


IGNORED_LABELS = Prediction(
    name="ignored_labels_c08",
    chapter="06",
    question="cross_entropy (reduction 'mean') of a micro-batch in which every label is ignored: "
    "'zero', 'nan' or 'error'?",
    key=_loss_of_ignored,
    mistakes=[
        ("zero", "that is the sum's; the mean divides it by 0 labels."),
        ("error", "nothing is raised: 0 is divided by 0, and goes on as a number."),
    ],
    because="0 / 0. With reduction 'sum' it is 0, and no harm is done.",
)


def _after_five() -> list[float]:
    model, updates = fresh_model([slopes(1)]), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    before = model.weight.item()
    train_with_windows(model, optimizer, [slopes(1)] * 5, 2, loss_sum, count)
    return [len(updates), model.weight.item() - before]


UPDATES = Prediction(
    name="updates_c07",
    chapter="06",
    question="5 micro-batches, each of one item with gradient 1; windows of 2, SGD with learning "
    "rate 1. [number of updates, by how much w changes]",
    key=_after_five,
    tolerance=1e-5,
    mistakes=[
        ([2, -2], "the fifth micro-batch is in a window too, even if it is alone there."),
        ([3, -2.5], "the last window holds one micro-batch, and is divided by 1, not by 2."),
        ([3, 3], "SGD goes against the gradient: the change is negative."),
        ([2, 2], "there is a third window, of one micro-batch; and SGD goes against the gradient."),
        ([3, -5], "an update is the mean over its window's items, not their sum."),
        ([5, -5], "there is one update for each window, not for each micro-batch."),
        ([2, -2.5], "whatever moves w by the last half is an update too; and it is a whole one."),
        ([1, -1], "windows have 2 micro-batches each."),
    ],
    because="Windows of 2, 2 and 1, and each mean is 1.",
)

RANK_0, RANK_1 = (1.0, 2.0), (3.0, 5.0)


def _first_instead_of_last() -> list[float]:
    average = (RANK_0[0] + RANK_1[0]) / 2
    return [average + RANK_0[1], average + RANK_1[1]]


FIRST = Prediction(
    name="first_instead_of_last_c06",
    chapter="06",
    question="2 ranks, 2 micro-batches each, gradients added up: 1 then 2 on rank 0, 3 then 5 on "
    "rank 1. By mistake the ranks average after the first micro-batch, not after the last. [.grad "
    "on rank 0, .grad on rank 1]",
    key=_first_instead_of_last,
    tolerance=1e-6,
    mistakes=[
        ([5.5, 5.5], "that is right, averaged after the last; here rank 0 adds 2, and rank 1 5."),
        ([3, 8], "those are the sums without any average; the first gradients are averaged."),
        ([2, 2], "the average of the first; each rank then adds its own second gradient."),
        ([6, 9], "that is the sum of the first gradients, 4, and not their average."),
        ([2.75, 2.75], "gradients were added up, not averaged over micro-batches."),
        ([2, 3.5], "gradients were added up, not averaged over micro-batches."),
        ([11, 11], "that is all of them; the ranks average, and only after the first."),
    ],
    because="2 + 2 and 2 + 5: the ranks part from here on. Right would be 5.5 on both.",
)


def _window_bytes() -> float:
    return ring_all_reduce_bytes(4 * 1_000_000, 4)


BYTES = Prediction(
    name="window_bytes",
    chapter="06",
    question="4 ranks, 1,000,000 parameters in fp32, windows of 8 micro-batches. Bytes that a rank "
    "sends per window in a ring all_reduce of the gradients, at best?",
    key=_window_bytes,
    tolerance=1e-3,
    unit="bytes",
    mistakes=[
        (48e6, "that is one all_reduce for each micro-batch; one for the window is enough."),
        (4e6, "those are the gradients; a rank of a ring sends 2 (N-1)/N of them."),
        (8e6, "that is 2 of the gradients; with 4 ranks it is 2 x 3/4."),
        (
            3e6,
            "that is one of the two rounds, 3/4 of the gradients: reduce-scatter and all-gather.",
        ),
        (1.5e6, "those are numbers; one in fp32 has 4 bytes."),
        (
            32e6,
            "those are the gradients of 8 micro-batches; they are added up before they are sent.",
        ),
        (24e6, "that is what all 4 ranks send together."),
        (0.75e6, "what is sent does not get less with micro-batches: gradients are of one size."),
    ],
    because="2 x 3/4 x 4,000,000, once a window: an eighth of one in each micro-batch.",
)

STATES_MB, ACTIVATIONS_MB = 160, 800

MEMORY = Prediction(
    name="memory_at_k4",
    chapter="06",
    question="A batch of 64 at once: weights, gradients and optimizer states 160 MB, activations "
    "800 MB. The peak in MB with k = 4 micro-batches?",
    key=STATES_MB + ACTIVATIONS_MB / 4,
    unit="MB",
    mistakes=[
        (240, "weights, gradients and states do not get smaller: only activations do."),
        (200, "those are the activations; weights, gradients and states are there as well."),
        (
            960,
            "that is the whole batch at once; of 16 at a time, a fourth of the activations live.",
        ),
        (840, "the other way round: activations get smaller, weights and states do not."),
        (210, "with k = 4 a micro-batch has 16: a fourth of the activations, not a sixteenth."),
        (160, "the activations of one micro-batch live at a time."),
    ],
    because="160 + 800/4. However large k is, 160 stay.",
)

FLOPS = Prediction(
    name="flops_at_k4",
    chapter="06",
    question="FLOPs of an update with k = 4 micro-batches, divided by those with k = 1?",
    key=lambda: 4 * (64 // 4) / 64,
    tolerance=1e-3,
    mistakes=[
        (4, "each micro-batch has a fourth of the samples, and a fourth of the FLOPs."),
        (0.25, "that is one micro-batch; an update has four."),
        (2, "there is no second forward: each sample runs once, as before."),
        (4 / 3, "nothing is recomputed: each sample runs forward and backward once."),
    ],
    because="The same samples, each once. The price is launching more and smaller operations.",
)

register(MEAN, IGNORED_LABELS, UPDATES, FIRST, BYTES, MEMORY, FLOPS)
