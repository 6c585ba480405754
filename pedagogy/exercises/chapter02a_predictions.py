"""Chapter 02a: what is asked before anything runs."""

from __future__ import annotations

from pedagogy.costs.pipeline import bubble_fraction, bubble_ratio, in_flight
from pedagogy.costs.pipeline_batch import best_num_microbatches
from pedagogy.costs.pipeline_memory import point_to_point_bytes
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.pipeline import naive, simulate

UTILISATION = Prediction(
    name="naive_utilisation",
    chapter="02a",
    question="4 even stages on 4 ranks, no micro-batches: which part of the machine is at work?",
    key=lambda: 1 - simulate(naive(4, 1)).bubble_fraction,
    mistakes=[
        (1, "a stage waits for the one before it; no two work at the same time."),
        (3 / 4, "that is the part that waits."),
        (1 / 8, "a backward passes the same four stages, and one rank of four works then, too."),
    ],
    because="One rank of four at any time: 1/p, whatever a backward takes.",
)

BUBBLE = Prediction(
    name="bubble_of_a_layout",
    chapter="02a",
    question="4 ranks, 8 micro-batches, 2 chunks on each rank: bubble_fraction of the interleaved "
    "schedule, a share of the total?",
    key=lambda: bubble_fraction(4, 8, 2),
    tolerance=0.003,
    mistakes=[
        (lambda: bubble_ratio(4, 8, 2), "that is bubble_ratio, idle to busy; divide by the total."),
        (lambda: bubble_fraction(4, 8), "that is the bubble with one chunk; two halve its time."),
        (lambda: bubble_ratio(4, 8), "that is idle to busy, (p-1)/m, and with one chunk."),
        (lambda: bubble_fraction(4, 8) / 2, "the idle time halves, but the total shrinks, too."),
        (lambda: 1 - bubble_fraction(4, 8, 2), "that is the part at work; the rest was asked for."),
        (6 / 14, "chunks make the line fill faster: (p-1)/v idle, not (p-1) v."),
    ],
    because="(p-1)/v = 1.5 idle beside 8 busy: 1.5/9.5.",
)

PEAKS = Prediction(
    name="peak_gpipe_1f1b",
    chapter="02a",
    question="4 stages, 8 micro-batches: how many does stage 0 hold at most, in GPipe and in 1F1B?",
    key=lambda: [in_flight(name, 0, 4, 8) for name in ("gpipe", "one_f_one_b")],
    mistakes=[
        ([4, 8], "GPipe was asked for first."),
        ([8, 8], "1F1B goes back as soon as it can: not all 8 have come forward by then."),
        ([8, 3], "3 forwards are the warm-up; the fourth comes before the first backward."),
        ([8, 1], "one is what the last stage holds; the gradient of stage 0 comes last."),
        ([4, 4], "GPipe goes back only when all 8 have come forward."),
        ([8, 5], "after 4 forwards of stage 0 the first gradient is back: no fifth is needed."),
    ],
    because="GPipe holds all m, 1F1B p - s, with m = 8 or with m = 800.",
)

AT_4P = Prediction(
    name="bubble_at_4p",
    chapter="02a",
    question="8 stages, 32 micro-batches, as many as GPipe's authors call enough: which share of "
    "the whole time is a rank idle?",
    key=lambda: bubble_fraction(8, 32),
    tolerance=0.003,
    mistakes=[
        (0, "it never is: the line fills and drains with any number of micro-batches."),
        ("negligible", "put a number on it: while the line fills and drains, ranks are idle."),
        (lambda: bubble_ratio(8, 32), "that is 7 idle to 32 at work; the whole time is the sum."),
        (
            8 / 32,
            "32 steps are the work alone; and the last rank starts after 7 others, not after 8.",
        ),
        (8 / 39, "the last rank starts after 7 others, not after 8."),
        (8 / 40, "the last rank starts after 7 others: the whole time is 39 steps."),
        (7 / 40, "the line fills in 7 steps, so the whole time is 39."),
        (14 / 46, "filling costs the last rank 7, draining the first: no rank pays for both."),
        (
            7 / 256,
            "a step is one micro-batch on one stage: a rank works in 32 of them, not in 256.",
        ),
        (1 / 32, "that is one micro-batch's part; the line fills through 7 stages."),
        (0.05, "more: a rank idles for as long as 7 of the 32 micro-batches take it."),
        (32 / 39, "that is the part at work; the rest was asked for."),
    ],
    because="7 of 39 steps: more than a sixth.",
)

MESSAGES = Prediction(
    name="interleaved_messages",
    chapter="02a",
    question="4 ranks, 8 micro-batches: 2 chunks send how many times the bytes of 1 chunk?",
    key=lambda: point_to_point_bytes(4, 8, 1, 2) / point_to_point_bytes(4, 8, 1),
    mistakes=[
        (1, "every micro-batch passes each boundary between chunks, and there are more of them."),
        (2, "nearly: 4 chunks have 3 boundaries, and 8 have 7."),
        (8 / 3, "8 chunks have 7 boundaries between them."),
        (3 / 7, "that is the other way round."),
        (4, "count the boundaries between chunks: 3 with one chunk on a rank, 7 with two."),
    ],
    because="(pv - 1)/(p - 1) = 7/3, a little more than v.",
)

BEST = Prediction(
    name="best_microbatches",
    chapter="02a",
    question="4 stages, a batch of 64. A stage takes 3 ms + 1 ms a sample for a micro-batch. Into "
    "how many is the batch best cut?",
    key=lambda: best_num_microbatches(4, 64, 3e-3, 1e-3),
    tolerance=0.0,
    mistakes=[
        (64, "the bubble is smallest, but every micro-batch pays 3 ms: 67 times 4 ms."),
        (32, "34 times 5 ms have a small bubble; 11 times 11 ms are still shorter."),
        (16, "the rule m = 4p knows nothing of the 3 ms: 19 times 7 ms."),
        (4, "7 times 19 ms; a smaller bubble is worth a few more times 3 ms."),
        (1, "without micro-batches nothing overlaps: 4 times 67 ms."),
    ],
    because="(m + p-1)(3 + 64/m) is 121 ms there; sqrt((p-1) t1 64 / t0) = 8.",
)

register(UTILISATION, BUBBLE, PEAKS, AT_4P, MESSAGES, BEST)
