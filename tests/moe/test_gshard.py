"""GShard's gate: algorithm 1, worked by hand on a group of five tokens."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.moe import gshard_gate, gshard_loss, in_groups, switch_gate, switch_loss
from tests.moe.cutting import random

# Five tokens, three experts, capacity 2; the probabilities of each row, chosen to be exact.
PROBABILITIES = [
    [0.6, 0.3, 0.1],  # token 0: first 0, second 1; weights 2/3, 1/3
    [0.5, 0.1, 0.4],  # token 1: first 0, second 2; weights 5/9, 4/9
    [0.7, 0.2, 0.1],  # token 2: first 0, second 1; weights 7/9, 2/9
    [0.1, 0.6, 0.3],  # token 3: first 1, second 2; weights 2/3, 1/3
    [0.3, 0.6, 0.1],  # token 4: first 1, second 0; weights 2/3, 1/3
]
LOGITS = torch.tensor(PROBABILITIES, dtype=torch.float64).log()

# First pass (lines 7 to 13). c counts on although a buffer is full:
#   expert 0: tokens 0, 1, 2 -> places 0, 1, 2, the last of which is dropped;  c = 3
#   expert 1: tokens 3, 4    -> places 0, 1;                                   c = 2
# Second pass (lines 14 to 21), with what is left:
#   token 0 -> expert 1 at place 2: full     c = 3     token 3 -> expert 2 at place 1: room  c = 2
#   token 1 -> expert 2 at place 0: room     c = 1     token 4 -> expert 0 at place 3: full  c = 4
#   token 2 -> expert 1 at place 3: full     c = 4     token 2 overflows: neither has room
PLACES = [[0, 2], [1, 0], [2, 3], [0, 1], [1, 3]]
ROOM = [[True, False], [True, True], [False, False], [True, True], [True, False]]
# By chance: kept where 2 g2 > U(0, 1); 2 g2 is 2/3, 8/9, 4/9, 2/3, 2/3.
TWICE_G2 = [2 / 3, 8 / 9, 4 / 9, 2 / 3, 2 / 3]
# Loss: (1/3) sum_e (c_e / 5) m_e with c = (3, 2, 0) of the first pass and
#   m = (2.2, 1.8, 1.0) / 5:  (3 * 2.2 + 2 * 1.8) / (3 * 25) = 10.2 / 75
LOSS = 10.2 / 75


def drawn(seed, count):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)).tolist()


def test_a_group_is_routed_as_algorithm_1_does_by_hand():
    wanted_seen = set()
    for seed in range(12):
        routing = gshard_gate(LOGITS, 2, torch.Generator().manual_seed(seed))
        assert routing.experts.tolist() == [[0, 1], [0, 2], [0, 1], [1, 2], [1, 0]]
        assert routing.places.tolist() == PLACES
        wanted = [twice > u for twice, u in zip(TWICE_G2, drawn(seed, 5), strict=True)]
        wanted_seen |= {(wanted[1], wanted[3])}
        expected = [[one, two and w] for (one, two), w in zip(ROOM, wanted, strict=True)]
        assert routing.kept.tolist() == expected
        firsts = [2 / 3, 5 / 9, 7 / 9, 2 / 3, 2 / 3]
        assert routing.weights[:, 0].tolist() == pytest.approx(firsts)
        torch.testing.assert_close(routing.weights.sum(1), torch.ones(5, dtype=torch.float64))
        assert gshard_loss(routing).item() == pytest.approx(LOSS)
        assert routing.gates[2].tolist() == [0, 0, 0]  # token 2 overflows, whatever is drawn
    assert len(wanted_seen) >= 2  # the draws did differ


def test_a_second_choice_is_kept_as_often_as_twice_its_weight():
    logits = torch.tensor([[0.0, math.log(3.0)]] * 20_000)  # weights 3/4 and 1/4
    kept = gshard_gate(logits, None, torch.Generator().manual_seed(0)).kept
    assert kept[:, 0].all()
    assert kept[:, 1].double().mean().item() == pytest.approx(0.5, abs=4 * 0.5 / 20_000**0.5)


def test_the_balanced_loss_is_switchs_over_the_square_of_the_experts():
    routing = gshard_gate(torch.eye(4).repeat(3, 1) * 1e-6, None)
    assert gshard_loss(routing).item() == pytest.approx(1 / 4**2, rel=1e-4)
    uneven = gshard_gate(random(0, 20, 4), None)
    switch = switch_loss(uneven.probabilities, uneven.experts[:, 0])
    assert gshard_loss(uneven).item() == pytest.approx(switch.item() / 4**2)


def test_without_tokens_the_loss_is_0_and_not_nan():
    assert gshard_loss(gshard_gate(torch.zeros(0, 3), 2)).item() == 0


def test_one_expert_is_too_few():
    with pytest.raises(ValueError, match="1 experts; GShard's gate chooses 2"):
        gshard_gate(torch.zeros(3, 1), 2)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 12), st.integers(2, 5), st.integers(0, 5), st.integers(0, 1000))
def test_no_buffer_holds_more_than_its_capacity(tokens, num_experts, capacity, seed):
    generator = torch.Generator().manual_seed(seed)
    routing = gshard_gate(random(seed, tokens, num_experts), capacity, generator)
    for expert in range(num_experts):
        here = routing.experts == expert
        assert int((routing.kept & here).sum()) <= capacity
        first = here[:, 0]
        assert int((routing.kept[:, 0] & first).sum()) == min(capacity, int(first.sum()))
    assert (routing.gates.sum(1) <= 1 + 1e-12).all()


def test_groups_are_routed_by_themselves_each_with_its_own_places():
    logits = torch.tensor([[1.0, 0.0]] * 6)
    routing = in_groups(lambda z: switch_gate(z, 1.0), 3)(logits)  # ceil(3 / 2) = 2 a group
    assert routing.kept.flatten().tolist() == [True, True, False] * 2
    places = routing.places.flatten().tolist()
    assert len(set(places)) == 6  # no two tokens of an expert share a place
    whole = switch_gate(logits, 1.0)
    assert whole.kept.flatten().tolist() == [True] * 3 + [False] * 3
    assert len(in_groups(lambda z: switch_gate(z, 1.0), 3)(torch.zeros(0, 2)).experts) == 0
    with pytest.raises(ValueError, match="6 tokens in groups of 4"):
        in_groups(lambda z: switch_gate(z, 1.0), 4)(logits)
