"""Two exercises and a prediction that only tests know: one in this process, one on two ranks."""

from __future__ import annotations

import torch

from pedagogy.exercises import check
from pedagogy.exercises.engine import Exercise, bytes_sent_at_most
from pedagogy.exercises.prediction import Prediction


def toy_mean(x):
    """The mean of the elements."""
    return x.sum() / x.numel()


def toy_average(group, x):
    """The mean of x over two ranks, each of which sends its own once."""
    other = 1 - group.rank
    if group.rank == 0:
        group.send(x, other)
        return (x + group.recv(other)) / 2
    received = group.recv(other)
    group.send(x, other)
    return (x + received) / 2


def _summed(group, x):
    return 2 * toy_average(group, x)


def _both_wait(group, x):
    received = group.recv(1 - group.rank)
    group.send(x, 1 - group.rank)
    return (x + received) / 2


def _sends_twice(group, x):
    toy_average(group, x)
    return toy_average(group, x)


MEAN = Exercise(
    name="toy_mean",
    title="A mean",
    chapter="toy",
    reference=toy_mean,
    cases=[(torch.tensor([1.0, 2.0]),), lambda rank: (torch.tensor([3.0, 5.0, 10.0]),)],
    mistakes=[
        (lambda x: x.sum(), "This is the sum: divide by the number of elements."),
        (lambda x: x.div_(x.numel()).sum(), "div_ writes into the caller's tensor: use /."),
        (lambda x: x.sum() / x.numel, "numel is a method: call it."),
    ],
    hints=["What does x.sum() give?", "How many elements are there?"],
)

AVERAGE = Exercise(
    name="toy_average",
    title="An average over two ranks",
    chapter="toy",
    reference=toy_average,
    cases=[lambda rank: (torch.tensor([1.0 + rank, 4.0]),), lambda rank: (torch.ones(3) * rank,)],
    mistakes=[
        (_summed, "This is the sum over the ranks: divide by their number."),
        (_both_wait, "Both ranks receive first, so neither ever sends: let one send first."),
        (_sends_twice, "Each value crosses the wire twice: once is enough."),
    ],
    hints=["One rank must send first."],
    ranks=2,
    targets=[bytes_sent_at_most(20)],
)

BYTES = Prediction(
    name="toy_bytes",
    chapter="toy",
    question="How many bytes do 1,000 float32 numbers hold?",
    key=lambda: 4 * 1000,
    unit="bytes",
    mistakes=[(1000, "that is the count: each number has 4 bytes."), (8000, "that is float64.")],
    because="32 bits are 4 bytes.",
)


def said(function, capsys, name="toy_mean") -> str:
    """The one line that check prints about this function."""
    function.__name__ = name
    check(function)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    return out.removeprefix(f"{name}: ").rstrip("\n")
