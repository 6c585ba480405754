"""Chapter 03: wrong answers as a reader would write them meet the mistake that explains them."""

from __future__ import annotations

import math
import sys

import cloudpickle
import pytest
import torch
from torch.nn import functional

from pedagogy.exercises import engine
from pedagogy.exercises.chapter03 import MLP
from pedagogy.exercises.chapter03_bytes import BYTES
from pedagogy.exercises.chapter03_loss import LOSS
from pedagogy.exercises.chapter03_ring import RING_ATTENTION
from pedagogy.exercises.chapter03_softmax import MERGE
from pedagogy.exercises.compare import difference

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def f_and_g_swapped(group, x, w_in, b_in, w_out, b_out):
    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return group.all_reduce(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class G(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            return part.view_as(part)

        @staticmethod
        def backward(ctx, gradient):
            return group.all_reduce(gradient)

    z = functional.gelu(F.apply(x) @ w_in.T + b_in)
    return G.apply(z @ w_out.T) + b_out


def one_maximum(group, logits_shard, labels):
    m = group.all_reduce(logits_shard.max(), "max")
    z = logits_shard - m
    total = group.all_reduce(z.exp().sum(dim=1))
    rows = z.shape[1]
    own = torch.zeros(len(labels))
    for position, label in enumerate(labels.tolist()):
        if label // rows == group.rank:
            own[position] = z[position, label % rows]
    return (total.log() - group.all_reduce(own)).mean()


def triangle_with_its_diagonal(group, q, k, v, causal):
    size, rank = group.size, group.rank
    m, total = torch.full((len(q),), -math.inf), torch.zeros(len(q))
    output, block = torch.zeros_like(q), torch.stack([k, v])
    for step in range(size):
        source = (rank - step) % size
        if not causal or source <= rank:
            scores = q @ block[0].T / math.sqrt(q.size(-1))
            if causal and source == rank:
                hidden = torch.ones(len(q), len(q), dtype=torch.bool).triu(0)
                scores = scores.masked_fill(hidden, -math.inf)
            new = torch.maximum(m, scores.amax(-1))
            weights = torch.exp(scores - new[:, None])
            total = total * torch.exp(m - new) + weights.sum(-1)
            output = output * torch.exp(m - new)[:, None] + weights @ block[1]
            m = new
        if step < size - 1:
            following = torch.empty_like(block)
            group.exchange([(block, (rank + 1) % size)], [(following, (rank - 1) % size)])
            block = following
    return output / total[:, None]


@pytest.mark.parametrize(
    ("exercise", "answer", "begins"),
    [
        (MLP, f_and_g_swapped, "f and g have changed places"),
        (LOSS, one_maximum, "One maximum for all positions"),
        (RING_ATTENTION, triangle_with_its_diagonal, "A query sees its own key too"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_an_answer_on_ranks_does_what_its_mistake_does(exercise, answer, begins):
    mistake = next(one for one, why in exercise.mistakes if why.startswith(begins))
    mine, known = engine.judge(exercise, answer), engine.known_verdict(exercise, mistake)
    assert mine.kind == known.kind == "value"
    assert difference(mine.outcome.value, known.outcome.value, exercise.tolerance) is None


def four_bytes(tokens, hidden, ranks):
    sent = 4 * tokens * hidden * (ranks - 1) // ranks
    return {"tensor": 8 * sent, "gathered": 8 * sent, "shard": 10 * sent}


def twelve(tokens, hidden, ranks):
    sent = 2 * tokens * hidden * (ranks - 1) // ranks
    return {"tensor": 8 * sent, "gathered": 8 * sent, "shard": 12 * sent}


def whole_in_each_step(tokens, hidden, ranks):
    sent = 2 * tokens * hidden * (ranks - 1)
    return {"tensor": 8 * sent, "gathered": 8 * sent, "shard": 10 * sent}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (four_bytes, "2 bytes, not 4"),
        (twelve, "10 and not 12"),
        (whole_in_each_step, "in each of them a rank sends 1/N"),
    ],
)
def test_wrong_bytes_are_explained(answer, says):
    assert says in engine.explain(BYTES, answer)


def exponential_of_m1(m1, l1, o1, m2, l2, o2):
    first, second = torch.exp(m1), torch.exp(m2)
    output = first.unsqueeze(1) * o1 + second.unsqueeze(1) * o2
    return torch.maximum(m1, m2), first * l1 + second * l2, output


def one_maximum_of_all(m1, l1, o1, m2, l2, o2):
    m = max(m1.max(), m2.max())
    first, second = torch.exp(m1 - m), torch.exp(m2 - m)
    return m, first * l1 + second * l2, first[:, None] * o1 + second[:, None] * o2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (exponential_of_m1, "the factor is exp(m1 - m)"),
        (one_maximum_of_all, "One maximum stands for all queries"),
    ],
)
def test_wrong_merges_are_explained(answer, says):
    assert says in engine.explain(MERGE, answer)
