"""Places, capacities and what a Routing says of itself."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.moe import Routing, expert_capacity, keep_within, places_of, switch_gate, top_k
from pedagogy.moe.routing import widened
from tests.moe.cutting import random


@st.composite
def choices(draw):
    """(tokens, k) experts, none twice in a row of one token, and how many experts there are."""
    num_experts = draw(st.integers(1, 5))
    k = draw(st.integers(1, num_experts))
    row = st.permutations(range(num_experts)).map(lambda order: order[:k])
    rows = draw(st.lists(row, max_size=12))
    return torch.tensor(rows, dtype=torch.long).view(-1, k), num_experts


def counted_one_by_one(experts, num_experts):
    """The places that a loop gives: first choices of all tokens, then second ones."""
    taken, places = [0] * num_experts, torch.zeros_like(experts)
    for choice in range(experts.size(1)):
        for token in range(len(experts)):
            expert = int(experts[token, choice])
            places[token, choice] = taken[expert]
            taken[expert] += 1
    return places


@settings(max_examples=60, deadline=None)
@given(choices(), st.integers(0, 6))
def test_each_place_is_given_once_and_a_buffer_is_filled_up_to_its_capacity(drawn, capacity):
    experts, num_experts = drawn
    places = places_of(experts, num_experts)
    assert torch.equal(places, counted_one_by_one(experts, num_experts))
    kept = keep_within(places, capacity)
    for expert in range(num_experts):
        chosen = experts == expert
        assert sorted(places[chosen].tolist()) == list(range(int(chosen.sum())))
        assert int((kept & chosen).sum()) == min(capacity, int(chosen.sum()))
    assert keep_within(places, None).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 40), st.integers(1, 3))
def test_the_capacity_is_the_smallest_that_the_factor_allows(tokens, num_experts, tenths, k):
    capacity = expert_capacity(tokens, num_experts, tenths / 10, k)
    # in whole numbers: capacity * experts * 10 >= tenths * tokens * k, and one less would not be
    wanted = tenths * tokens * k
    assert capacity == tokens or capacity * num_experts * 10 >= wanted
    assert capacity == 0 or (capacity - 1) * num_experts * 10 < wanted
    assert capacity <= tokens


def test_an_infinite_factor_leaves_room_for_all_tokens():
    assert expert_capacity(7, 3, math.inf) == 7
    assert expert_capacity(0, 3, math.inf) == 0
    assert switch_gate(torch.zeros(5, 2), math.inf).kept.all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [((4, 0, 1.0), "0 experts"), ((4, 2, 1.0, 0), "k = 0"), ((-1, 2, 1.0), "-1 tokens"),
     ((4, 2, -1.0), "factor of -1.0"), ((4, 2, math.nan), "factor of nan")],
)  # fmt: skip
def test_a_capacity_of_nothing_sensible_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        expert_capacity(*arguments)


def test_a_capacity_of_0_drops_all_and_one_below_is_refused():
    assert not keep_within(torch.tensor([[0], [1]]), 0).any()
    with pytest.raises(ValueError, match="capacity of -1"):
        keep_within(torch.tensor([[0]]), -1)


def test_a_routing_counts_dropped_choices_but_gives_them_no_weight():
    routing = Routing(
        experts=torch.tensor([[0, 2], [0, 1], [2, 0]]),
        weights=torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.625, 0.375]]),
        places=torch.tensor([[0, 1], [1, 0], [0, 2]]),
        kept=torch.tensor([[True, True], [False, True], [True, False]]),
        probabilities=torch.full((3, 3), 1 / 3),
    )
    assert routing.counts.tolist() == [3, 1, 2]
    assert routing.num_dropped == 2
    assert routing.gates.tolist() == [[0.75, 0, 0.25], [0, 0.5, 0], [0, 0, 0.625]]


def test_logits_are_widened_and_must_be_a_matrix():
    for narrow in (torch.float16, torch.bfloat16, torch.float32):
        assert widened(torch.zeros(2, 3, dtype=narrow)).dtype == torch.float32
    assert widened(random(0, 2, 3)).dtype == torch.float64
    for gate in (lambda z: top_k(z, 2), lambda z: switch_gate(z, None)):
        with pytest.raises(ValueError, match=r"shape \(2, 3, 4\)"):
            gate(torch.zeros(2, 3, 4))
