"""Chapter 00b: what is asked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from pedagogy.costs.communication import bus_bandwidth_factor
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register


def _strided_sum(ranks: int = 2) -> list[float]:
    """What gloo leaves on rank 0 of a column [v, v] of [[v, 0], [v, v]], v = rank + 1.

    It adds the dense storage from the view's first element on: [v, 0]. The sum replaces the first
    element, and the second place in storage is not in the column.
    """
    own, total = 1.0, float(sum(rank + 1 for rank in range(ranks)))
    return [total, own]


PIDS = Prediction(
    name="different_processes",
    chapter="00b",
    question="launch(worker, 4) from a notebook: how many processes have taken part, it included?",
    key=lambda: len([*range(4), "the notebook"]),
    unit="processes",
    mistakes=[
        (1, "that would be threads: a rank is a process of its own."),
        (4, "those are the ranks; the notebook is a fifth, and runs no rank."),
    ],
    because="4 ranks and the notebook, which is none of them.",
)

MESSAGE = Prediction(
    name="message_bytes",
    chapter="00b",
    question="1000 x 250 float32 are sent: how many bytes does the trace count?",
    key=lambda: 1000 * 250 * 4,
    tolerance=0.0,
    unit="bytes",
    mistakes=[
        (250_000, "that is the number of elements; a float32 has 4 bytes."),
        (1_000_128, "the header is not counted: the trace counts what the tensor weighs."),
        (2_000_000, "that is a float64's size."),
    ],
    because="250,000 elements of 4 bytes.",
)

GATHER = Prediction(
    name="gathered_bytes",
    chapter="00b",
    question="all_gather of 1,000,000 bytes on each of 4 ranks: how many does each of them send?",
    key=lambda: round(bus_bandwidth_factor("all_gather", 4) * 4 * 1_000_000),
    unit="bytes",
    mistakes=[
        (1_000_000, "then its tensor reaches one rank, and three others need it."),
        (4_000_000, "that is what each rank ends with; its own part it need not send."),
        (750_000, "(N-1)/N is the share of what the ranks hold together, which is 4,000,000."),
        (12_000_000, "that is what all four ranks send together."),
    ],
    because="N - 1 = 3 parts pass through every rank: its own and two others'.",
)

CROSSED = Prediction(
    name="messages_that_arrive",
    chapter="00b",
    question="Two ranks both send one float first, then call recv: how many messages arrive?",
    key=0,
    unit="messages",
    mistakes=[
        (1, "both ranks do the same, so either both messages arrive or none does."),
        (2, "this needs somebody who keeps a message nobody has asked for yet; gloo does not."),
    ],
    because="Each send waits until the other rank receives, and neither gets that far.",
)

STRIDED = Prediction(
    name="strided_sum",
    chapter="00b",
    question="gloo adds up the two numbers in memory from a column's first on, and writes the sums "
    "back there. The columns are [1, 1] and [2, 2]: what does rank 0's column show afterwards?",
    key=_strided_sum,
    mistakes=[
        ([3.0, 3.0], "that is the right sum; gloo reads the memory behind the column."),
        ([3.0, 2.0], "that is what rank 1 has: its own 2 stays in the second place."),
        ([3.0, 0.0], "that is what lies in memory; the column shows only the first of the two."),
        ([1.0, 1.0], "the first number is in the column and in memory, and is replaced."),
    ],
    because="The second element is the rank's own: it was neither sent nor written.",
)

FASTEST = Prediction(
    name="pipeline_neighbours",
    chapter="00b",
    question="8 ranks, dp=2, pp=2, tp=2, the last axis fastest: which ranks are rank 5's pp group?",
    key=lambda: [rank for rank in range(8) if (rank // 4, rank % 2) == (5 // 4, 5 % 2)],
    mistakes=[
        ([4, 5], "those are its tp group: the last axis varies fastest."),
        ([1, 5], "those are its dp group: along the first axis ranks are 4 apart."),
        ([3, 5], "rank 3 stands in the other half of the dp axis."),
    ],
    because="Along pp ranks are 2 apart: dp and tp stay the same.",
)

PREDICTIONS: Sequence[Prediction] = (PIDS, MESSAGE, GATHER, CROSSED, STRIDED, FASTEST)
register(*PREDICTIONS)
