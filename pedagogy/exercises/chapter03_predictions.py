"""Chapter 03: what is asked before anything runs."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from pedagogy.costs.activations import activation_bytes_per_layer
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.parameters import Part, global_norm
from pedagogy.ranks import Group, launch
from pedagogy.tensor_parallel import ParallelBlock, padded_vocabulary
from pedagogy.workloads import Block

GPT3 = {"sequence": 2048, "batch": 1, "hidden": 12288, "heads": 96}


@cache
def _all_reduces() -> int:
    """How many all_reduces a layer makes, forward and backward, counted on 2 ranks."""
    return launch(_one_layer, 2, device="cpu")[0]


def _one_layer(group: Group) -> int:
    block, x = ParallelBlock(group, Block(8, 2, 4)), torch.ones(1, 4, 8, requires_grad=True)
    before = len(group.events)
    block(x).sum().backward()
    return sum(event.kind == "all_reduce" for event in group.events[before:])


ALL_REDUCES = Prediction(
    name="all_reduces_per_layer",
    chapter="03",
    question="One layer, tensor parallel: how many all_reduces in its forward and backward?",
    key=_all_reduces,
    mistakes=[
        (2, "attention and feed-forward have one each in forward, and one each in backward."),
        (8, "the first product of a pair needs none, and neither does the second's backward."),
        (1, "that is one half of a layer, in one direction."),
        (6, "the norms are computed whole on every rank: nothing is exchanged for them."),
    ],
    because="Two halves, one f and one g in each: g sums in forward, f in backward.",
)

ACTIVATIONS = Prediction(
    name="activation_share_tp8",
    chapter="03",
    question="A layer of GPT-3 keeps 2.869 GB for backward. GB on each of 8 tensor-parallel ranks?",
    key=lambda: activation_bytes_per_layer(**GPT3, tensor_parallel=8) / 1e9,
    unit="GB",
    mistakes=[
        (
            lambda: activation_bytes_per_layer(**GPT3) / 8e9,
            "that divides everything by 8; norms, the inputs of both halves and two masks stay "
            "whole on every rank.",
        ),
        (
            lambda: activation_bytes_per_layer(**GPT3) / 1e9,
            "that is one rank alone: what lies between the two products of a half is cut.",
        ),
        (lambda: activation_bytes_per_layer(**GPT3, tensor_parallel=8) / 2**30, "those are GiB."),
    ],
    because="s b h (10 + 24/8 + 80/8) bytes: 10 of the 34 are not divided.",
)

SAVING = Prediction(
    name="sequence_parallel_saving",
    chapter="03",
    question="Sequence parallelism cuts those 10 s b h as well. What share of the 0.579 GB goes?",
    key=lambda: 1 - _cut_along_sequence() / activation_bytes_per_layer(**GPT3, tensor_parallel=8),
    mistakes=[
        (
            7 / 8,
            "that is the share of the 10 s b h which goes; 13 s b h of the 23 were cut before.",
        ),
        (
            10 / 23,
            "that is all of the 10; each rank keeps an eighth of them.",
        ),
        (
            lambda: _cut_along_sequence() / activation_bytes_per_layer(**GPT3, tensor_parallel=8),
            "that is the share that stays.",
        ),
        (
            lambda: (
                activation_bytes_per_layer(**GPT3, tensor_parallel=8) / 1e9
                - _cut_along_sequence() / 1e9
            ),
            "those are the GB that go; what share of the 0.579 GB is that?",
        ),
        (
            lambda: _cut_along_sequence() / 1e9,
            "those are the GB that stay; what share of the 0.579 GB goes?",
        ),
        (0.875 * 10 / 114, "that is the share of what one rank alone would keep, 114 s b h."),
    ],
    because="10 (1 - 1/8) of 23 s b h, for the same bytes on the wire.",
)


def _cut_along_sequence() -> int:
    return activation_bytes_per_layer(**GPT3, tensor_parallel=8, sequence_parallel=True)


NORMS = Prediction(
    name="norm_parameters_k10",
    chapter="03",
    question="32 layers of hidden 4096, two RMSNorms each and one at the end, on 2 tensor-parallel "
    "ranks: norm parameters on each rank?",
    key=lambda: (2 * 32 + 1) * nn.RMSNorm(4096, device="meta").weight.numel(),
    unit="parameters",
    mistakes=[
        (65_536, "that counts one norm a layer, and cuts it in two; each rank holds all of both."),
        (133_120, "norms are not cut: every rank normalises whole positions."),
        (262_144, "the last norm, before the output, is missing."),
        (131_072, "a layer has two norms, and there is one more at the end."),
        (
            524_288,
            "that counts everything twice, for two ranks or for a bias, and leaves the last norm "
            "out; each rank holds 65 weights of 4096 numbers.",
        ),
        (532_480, "an RMSNorm has a weight and no bias; this would be LayerNorm."),
    ],
    because="(2 * 32 + 1) * 4096, the same on both ranks: 0.004 % of 7 billion.",
)

ROWS = Prediction(
    name="padded_rows",
    chapter="03",
    question="50,257 tokens, padded to a multiple of 128 on each of 2 ranks: how many of rank 1's "
    "rows stand for a token?",
    key=lambda: 50257 - padded_vocabulary(50257, 2, 128) // 2,
    tolerance=0.0,
    unit="rows",
    mistakes=[
        (25_216, "that is all of rank 1's rows: the padding is among them."),
        (25_128, "padding comes first: rank 0 takes 25,216 rows, not half of the tokens."),
        (25_129, "padding comes first: rank 0 takes 25,216 rows, not half of the tokens."),
        (25_105, "that pads to 50,304, a multiple of 128 in all and not on each of 2 ranks."),
        (175, "those are the rows of padding."),
    ],
    because="50,432 rows in all, 25,216 on each rank; the last 175 get logits of -inf.",
)


@cache
def _norm() -> float:
    return launch(_norm_on_ranks, 2, device="cpu")[0]


def _norm_on_ranks(group: Group) -> float:
    whole, cut = torch.tensor([3.0, 0.0]), torch.tensor([2.0, 2.0])
    return float(global_norm([Part((group,), [cut]), Part((), [whole])]))


CLIPPED = Prediction(
    name="clip_norm_c09",
    chapter="03",
    question="2 ranks: both hold the whole gradient [3, 0] of a norm, and each a slice of another "
    "gradient, with squared norm 8. The global norm?",
    key=_norm,
    mistakes=[
        (34**0.5, "that counts the whole gradient on both ranks; it is one gradient."),
        (17**0.5, "that is what one rank sees: the other's slice is missing."),
        (25, "that is its square."),
        (11, "that adds a norm, 3, to a squared norm, 8: add squares, and take the root."),
        (3 + 2 * 8**0.5, "those are the three norms added up; their squares do add up."),
        (4, "the slices alone: the whole gradient counts too, once."),
        (7, "norms do not add up; their squares do."),
    ],
    because="sqrt(9 + 8 + 8): slices from every rank, whole gradients once.",
)

register(ALL_REDUCES, ACTIVATIONS, SAVING, NORMS, ROWS, CLIPPED)
