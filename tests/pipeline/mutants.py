"""Pipelines as they are got wrong, each by one line.

A mutant is a function without arguments that returns a context manager; inside it, a piece of
`pedagogy.pipeline` is replaced. `MUTANTS` says for each on which problem and schedule (of three
ranks) it shows: the equality check must notice every one of them.
"""

from functools import partial
from unittest.mock import patch

import torch

from pedagogy.pipeline import (
    executor,
    gpipe,
    gpipe_recomputing,
    interleaved,
    mail,
    stage,
    tied,
    zero_bubble_h1,
)
from pedagogy.pipeline.stage import SplitStage, Stage
from tests.equality import TIED_GPT
from tests.pipeline import training
from tests.pipeline.training import CHAIN, DROPOUT, EVEN, typed

weight_backward, split_layers = SplitStage.weight_backward, training.split_layers
send, receive = mail.Mail.send, mail.Mail.receive


def nothing(*_):
    """What should have been done."""


def sums(mine, last_stage, targets):
    """The micro-batches' gradients are summed: m times too large."""
    return dict.fromkeys(range(len(targets)), 1.0)


def unweighted_mean(mine, last_stage, targets):
    """The mean of means, though micro-batches differ in size."""
    return dict.fromkeys(range(len(targets)), 1 / len(targets))


class Latest(dict):
    """A stage's memory with room for one micro-batch."""

    def __setitem__(self, k, held):
        super().__setitem__("latest", held)

    def pop(self, k):
        """The latest, whatever was asked for."""
        return self["latest"]


class OnePlace(Stage):
    """State kept per stage, not per micro-batch."""

    def __init__(self, module):
        super().__init__(module)
        self.held = Latest()

    def backward(self, k, gradient):
        """As `Stage.backward`, but the graph may be used again."""
        x, output, _ = self.held.pop(k)
        torch.autograd.backward(output, gradient, retain_graph=True)
        return x.grad


def twice(self, k):
    """The weights' half of a backward is run twice."""
    postponed = self._postponed[k]
    products = list(postponed._products)
    weight_backward(self, k)
    postponed._products = products
    postponed.run()


def forgets_the_last(self, k):
    """The weights' half of a backward is left out for one micro-batch."""
    self._postponed.pop(k) if k == 4 else weight_backward(self, k)


def wrong_order(layers, boundaries):
    """The second stage and the third are exchanged: their ranks hold each other's."""
    first, second, third, *others = split_layers(layers, boundaries)
    return [first, third, second, *others]


def in_order_of_arrival(self, consumer):
    """The next message of the right rank, whichever action it is for."""
    source = self._source(consumer)
    if consumer not in self._here and self._expected[source]:
        _, place = self._expected[source][0]
        self._expected[source][0] = (consumer, place)
    return receive(self, consumer)


def no_gradient_of_the_input(self, x, consumer):
    """Stages are trained each on its own."""
    return send(self, torch.zeros_like(x) if consumer.kind == "B" else x, consumer)


def averaged(self):
    """The gradients of a tied weight's copies are averaged, not summed."""
    if self._copies is not None:
        self._copies.all_reduce_(self._parameter.grad, "mean")


def not_broadcast(self, group, holders, parameter):
    """The copies start as they were drawn."""
    self._parameter = parameter
    self._copies = group.subset(holders, "tied weight") if parameter is not None else None


OUT_OF_ORDER = typed(
    "F0@0 F1@0 B1@0 B0@0",
    "F1@1 F0@1 B0@1 B1@1",
    "F1@2 F0@2 B0@2 B1@2",
)

MUTANTS = {
    name: (problem, schedule, partial(patch.object, *what))
    for name, problem, schedule, *what in [
        ("sums", CHAIN, gpipe(3, 5), executor, "_loss_weights", sums),
        ("unweighted mean", CHAIN, gpipe(3, 5), executor, "_loss_weights", unweighted_mean),
        ("one place", CHAIN, gpipe(3, 3), executor, "Stage", OnePlace),
        ("recomputes other dropout", DROPOUT, gpipe_recomputing(3, 5), stage, "restore_rng_state",
         nothing),
        ("tied gradient kept", TIED_GPT, gpipe(3, 5), tied.TiedWeight, "sum_gradients", nothing),
        ("tied gradient averaged", TIED_GPT, gpipe(3, 5), tied.TiedWeight, "sum_gradients",
         averaged),
        ("tied weight drawn twice", TIED_GPT, gpipe(3, 5), tied.TiedWeight, "__init__",
         not_broadcast),
        ("W forgotten", CHAIN, zero_bubble_h1(3, 5), SplitStage, "weight_backward",
         forgets_the_last),
        ("W twice", CHAIN, zero_bubble_h1(3, 5), SplitStage, "weight_backward", twice),
        ("wrong order of stages", EVEN, interleaved(3, 3, 2), training, "split_layers",
         wrong_order),
        ("in order of arrival", EVEN, OUT_OF_ORDER, mail.Mail, "receive", in_order_of_arrival),
        ("no gradient sent", EVEN, gpipe(3, 5), mail.Mail, "send", no_gradient_of_the_input),
    ]
}  # fmt: skip
