"""To the experts and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pedagogy.moe import combine, dispatch, gshard_gate, in_groups, run_experts, switch_gate, top_k
from tests.moe.cutting import random


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 12), st.integers(2, 5), st.integers(0, 1000), st.booleans())
def test_with_experts_that_change_nothing_tokens_come_back_as_they_were(
    tokens, num_experts, seed, in_pairs
):
    x = random(seed, tokens, 3)
    routing = top_k(random(seed + 1, tokens, num_experts), 2 if in_pairs else 1)
    sent = dispatch(x, routing)
    outputs = run_experts(sent.rows, sent.counts, [nn.Identity()] * num_experts)
    torch.testing.assert_close(combine(outputs, sent, tokens), x)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 12), st.integers(2, 5), st.integers(0, 4), st.integers(0, 1000))
def test_rows_are_the_kept_choices_by_expert_then_by_place(tokens, num_experts, capacity, seed):
    generator = torch.Generator().manual_seed(seed)
    routing = gshard_gate(random(seed, tokens, num_experts), capacity, generator)
    x = torch.arange(tokens, dtype=torch.float64).view(-1, 1)
    sent = dispatch(x, routing)
    wanted = sorted(
        (int(routing.experts[t, c]), int(routing.places[t, c]), t, c)
        for t, c in routing.kept.nonzero().tolist()
    )
    assert sent.rows.flatten().tolist() == sent.tokens.tolist() == [row[2] for row in wanted]
    assert sent.weights.tolist() == [float(routing.weights[t, c]) for _, _, t, c in wanted]
    assert sent.counts == [sum(row[0] == e for row in wanted) for e in range(num_experts)]


def test_each_row_meets_its_expert_and_its_weight():
    routing = top_k(torch.tensor([[1.0, 3, 0], [0, 1, 3]]).log(), 2)
    x, scales = torch.tensor([[1.0], [10.0]]), [2.0, 3.0, 5.0]
    sent = dispatch(x, routing)
    outputs = run_experts(sent.rows, sent.counts, [lambda r, s=s: s * r for s in scales])
    # token 0: 3/4 of expert 1 and 1/4 of expert 0; token 1: 3/4 of expert 2 and 1/4 of expert 1
    expected = [[0.75 * 3 + 0.25 * 2], [10 * (0.75 * 5 + 0.25 * 3)]]
    torch.testing.assert_close(combine(outputs, sent, 2), torch.tensor(expected))


def test_groups_do_not_lose_a_token_on_the_way():
    routing = in_groups(lambda z: switch_gate(z, 1.0), 4)(random(0, 12, 3))
    x = random(1, 12, 2)
    sent = dispatch(x, routing)
    outputs = run_experts(sent.rows, sent.counts, [nn.Identity()] * 3)
    weight = (routing.weights * routing.kept).sum(1, keepdim=True)
    torch.testing.assert_close(combine(outputs, sent, 12), weight * x)


def test_an_expert_without_tokens_has_gradients_of_zero():
    experts = [nn.Linear(2, 2) for _ in range(3)]
    rows = torch.randn(4, 2)
    run_experts(rows, [4, 0, 0], experts).sum().backward()
    assert all((p.grad == 0).all() for expert in experts[1:] for p in expert.parameters())
    run_experts(rows[:0], [0, 0, 0], experts).sum().backward()  # nor without any token


def test_a_router_of_other_experts_is_refused():
    with pytest.raises(ValueError, match="chooses among 2 experts; there are 3"):
        run_experts(torch.zeros(4, 2), [2, 2], [nn.Identity()] * 3)
