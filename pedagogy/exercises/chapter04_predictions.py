"""Chapter 04: what is asked before any gate runs; what is sent is asked in `chapter04_traffic`."""

from __future__ import annotations

from itertools import combinations

import torch

from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.moe import expert_capacity, keep_within, places_of, switch_loss, top_k


def _router_has_a_gradient() -> bool:
    logits = torch.tensor([[0.3, -0.1, 1.2]], requires_grad=True)
    top_k(logits, 1).weights.sum().backward()
    return bool(logits.grad.any())


ROUTER = Prediction(
    name="router_gradient_top1",
    chapter="04",
    question="Top 1, and an output's weight is a softmax over the chosen logit alone. Does the "
    "router get a gradient through it? True or False",
    key=_router_has_a_gradient,
    mistakes=[
        (
            True,
            "a softmax over one number is 1, whatever the number: there is nothing to improve. "
            "Switch takes the softmax over all experts.",
        ),
    ],
    because="The weight is 1 whatever the gate computes: with k = 1 the softmax must go over all.",
)


def _dropped_tokens() -> int:
    experts = torch.zeros(5, 1, dtype=torch.int64)
    return int((~keep_within(places_of(experts, 4), expert_capacity(5, 4, 1.0))).sum())


DROPPED = Prediction(
    name="dropped_tokens_c38",
    chapter="04",
    question="5 tokens, 4 experts, top 1, capacity factor 1.0. All five choose expert 0. How many "
    "are dropped?",
    key=_dropped_tokens,
    tolerance=0.0,
    unit="tokens",
    mistakes=[
        (2, "those are the two that are kept."),
        (4, "5/4 is rounded up: an expert has 2 places, not 1."),
        (3.75, "5/4 places is rounded up to whole ones."),
        (0, "factor 1.0 makes room for all only if the experts are asked equally often."),
        (5, "the expert still keeps the first ones, as many as it has places."),
        (1, "an expert has ceil(1.0 * 5 / 4) places here."),
    ],
    because="ceil(1.0 * 5 / 4) = 2 places; the other experts' stay empty.",
)


def _dropped_choices() -> list[int]:
    a, b, c = range(3)
    experts = torch.tensor([[a, b], [b, a], [a, b], [b, a], [a, c]])
    kept = keep_within(places_of(experts, 3), 3)
    return (~kept[:, 1]).nonzero()[:, 0].tolist()


_NAMED = [
    (
        [3],
        "that goes through the tokens one by one, both choices at once. All first choices "
        "are placed before any second one.",
    ),
    (
        [1, 3],
        "A is full with first choices, right; and B? It has two, then token 0's second one.",
    ),
    ([], "second choices have no buffer of their own: they get what first ones leave."),
    (
        [0, 1, 2, 3],
        "B has two first choices, and so a place left: for token 0, who comes first.",
    ),
    ([0, 1, 3], "B's last place goes in the order of the tokens: 0 before 2."),
    ([1, 2, 3, 4], "nobody else asks for C: token 4 gets its second choice."),
    ([2, 3, 4], "tokens are counted from 0."),
    (
        [2, 3],
        "B is right: token 0 takes its last place. But tokens 0, 2 and 4 chose A first, and "
        "fill it: token 1 finds no room there either.",
    ),
    (
        [1, 2],
        "B is right: token 0 takes its last place. But tokens 0, 2 and 4 chose A first, and "
        "fill it: token 3 finds no room there either.",
    ),
]
_WALK = (
    "which choices find their buffer full? Place the five first choices, then the second ones in "
    "the order of the tokens."
)


def _other_lists() -> list[list[int]]:
    """All other lists of tokens, so that no answer is told how long the right one is."""
    known = [_dropped_choices(), *(answer for answer, _ in _NAMED)]
    every = [list(some) for number in range(1, 6) for some in combinations(range(5), number)]
    return [some for some in every if some not in known]


CHOICES = Prediction(
    name="dropped_choices",
    chapter="04",
    question="Experts A, B and C have 3 places each. First and second choices of tokens 0 to 4: "
    "AB, BA, AB, BA, AC. Which tokens lose their second choice? A list",
    key=_dropped_choices,
    mistakes=[*_NAMED, *((other, _WALK) for other in _other_lists())],
    because="A is full after the first choices (0, 2, 4); B has one place left, and token 0 takes "
    "it.",
)

COLLAPSED = Prediction(
    name="collapsed_loss",
    chapter="04",
    question="8 experts; every token goes to the same one, with probability 1. Switch's loss, "
    "without its coefficient?",
    key=lambda: switch_loss(
        torch.eye(8)[:1].repeat(4, 1), torch.zeros(4, dtype=torch.int64)
    ).item(),
    mistakes=[
        (1, "that is the balanced value (or f P, without the factor E)."),
        (1 / 8, "that would be a mean over the experts; the loss is E times the sum."),
        (64, "one factor of E, not two: E sum f P, and here f and P are 1 for one expert."),
        (0, "that is when it should be largest: f and P are both 1 for this expert."),
        (0.08, "that is with the coefficient 0.01."),
    ],
    because="E * 1 * 1: the largest value there is; balanced, it is 1.",
)


def _mean_of_micro_batches() -> float:
    one_hot = torch.eye(2)
    losses = [
        switch_loss(one_hot[[e]].repeat(3, 1), torch.full((3,), e, dtype=torch.int64))
        for e in range(2)
    ]
    return torch.stack(losses).mean().item()


MICRO_BATCHES = Prediction(
    name="microbatch_loss_c43",
    chapter="04",
    question="2 experts. Micro-batch A: all tokens to expert 0, with probability 1; B, as large: "
    "all to expert 1. The mean of the two Switch losses, without coefficient?",
    key=_mean_of_micro_batches,
    mistakes=[
        (1, "that is the loss of the whole batch: together they are balanced, each alone is not."),
        (0.5, "that is sum f P of the whole batch, without the factor E."),
        (4, "that is their sum (or E squared)."),
        (0, "each micro-batch by itself has collapsed: f and P are 1 for one expert."),
    ],
    because="Each alone has collapsed, E * 1 * 1; the loss of the batch is 1: it is not linear.",
)


register(ROUTER, DROPPED, CHOICES, COLLAPSED, MICRO_BATCHES)
