"""Noisy top-k, importance and load against the paper's equations, written out token by token."""

import math
from statistics import NormalDist

import pytest
import torch

from pedagogy.moe import (
    expected_load,
    importance_loss,
    load_loss,
    noisy_top_k_gate,
    squared_cv,
    top_k,
)
from tests.moe.cutting import random


def equation_3_to_5(logits, k):
    """G(x) = softmax(KeepTopK(H(x), k)): the others at minus infinity."""
    rows = []
    for row in logits.tolist():
        border = sorted(row, reverse=True)[k - 1]
        kept = [math.exp(h) if h >= border else 0.0 for h in row]
        rows.append([value / sum(kept) for value in kept])
    return torch.tensor(rows, dtype=torch.float64)


def cv_squared(values):
    """(standard deviation / mean)^2, in plain numbers."""
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values) / len(values) / mean**2


def equation_8_to_10(logits, noisy, std, k):
    """Load_i = sum_x Phi((x W_g)_i - kth_excluding(H(x), k, i)) / Softplus((x W_noise)_i)."""
    loads = []
    for i in range(logits.size(1)):
        load = 0.0
        for clean, row, scale in zip(logits.tolist(), noisy.tolist(), std.tolist(), strict=True):
            others = sorted(row[:i] + row[i + 1 :], reverse=True)
            load += NormalDist().cdf((clean[i] - others[k - 1]) / scale[i])
        loads.append(load)
    return loads


@pytest.mark.parametrize(("k", "num_experts"), [(1, 1), (1, 4), (2, 5), (4, 4)])
def test_gates_are_those_of_equations_3_to_5(k, num_experts):
    logits, std = random(0, 20, num_experts), random(1, 20, num_experts).abs()
    found = noisy_top_k_gate(logits, k, std, generator=torch.Generator().manual_seed(5)).gates
    noisy = logits + std * random(5, 20, num_experts)
    torch.testing.assert_close(found, equation_3_to_5(noisy, k), rtol=1e-12, atol=1e-12)
    quiet = noisy_top_k_gate(logits, k).gates
    torch.testing.assert_close(quiet, equation_3_to_5(logits, k), rtol=1e-12, atol=1e-12)


def test_losses_are_those_of_equations_6_to_11():
    logits, std = random(0, 12, 5), random(1, 12, 5).abs() + 0.1
    noisy = logits + std * random(2, 12, 5)
    gates = top_k(noisy, 2).gates
    expected = cv_squared(gates.sum(0).tolist())
    assert importance_loss(gates).item() == pytest.approx(expected, rel=1e-12)
    for k in (1, 2, 4):
        loads = equation_8_to_10(logits, noisy, std, k)
        assert expected_load(logits, noisy, std, k).tolist() == pytest.approx(loads, rel=1e-9)
        found = load_loss(logits, noisy, std, k).item()
        assert found == pytest.approx(cv_squared(loads), rel=1e-9)


def test_the_load_of_tied_experts_is_that_of_the_equations_too():
    noisy = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    ones = torch.ones_like(noisy)
    for k in (1, 2, 3):
        found = expected_load(noisy, noisy, ones, k).tolist()
        assert found == pytest.approx(equation_8_to_10(noisy, noisy, ones, k), rel=1e-9)


def test_expected_load_is_the_mean_of_the_counts_over_the_noise():
    """Redraw the noise of one expert at a time; count how often it is among the k."""
    logits, std, k = random(1, 1, 5), torch.full((1, 5), 0.7, dtype=torch.float64), 2
    noisy = logits + std * random(2, 1, 5)
    load = expected_load(logits, noisy, std, k)
    for expert in range(5):
        again = noisy.repeat(20_000, 1)
        again[:, expert] = logits[0, expert] + 0.7 * random(3 + expert, 20_000)
        chosen = again.topk(k, dim=-1).indices == expert
        share = chosen.any(-1).double().mean().item()
        assert load[expert].item() == pytest.approx(share, abs=4 * 0.5 / 20_000**0.5)


def test_both_losses_push_the_gate_towards_the_idle_expert():
    """Expert 0 is chosen by all; a step down the gradient takes from it."""
    logits = torch.tensor([[1.0, 0.0, -0.5]] * 6, dtype=torch.float64, requires_grad=True)
    std = torch.ones_like(logits)
    for loss in (importance_loss(top_k(logits, 2).gates), load_loss(logits, logits, std, 1)):
        (gradient,) = torch.autograd.grad(loss, logits)
        assert (gradient[:, 0] > 0).all()  # descending lowers it


def test_equal_experts_cost_nothing_and_no_tokens_neither():
    assert importance_loss(torch.full((6, 3), 1 / 3)).item() == pytest.approx(0, abs=1e-12)
    nothing = torch.zeros(0, 3, requires_grad=True)
    loss = squared_cv(top_k(nothing, 2).gates.sum(0))
    loss = loss + load_loss(nothing, nothing, nothing, 2)
    loss.backward()
    assert loss.item() == 0
    assert nothing.grad.isfinite().all()
    assert squared_cv(torch.tensor([2.0, 4.0])).item() == pytest.approx(1 / 9)  # (1 / 3)^2


def test_ties_go_to_the_lower_expert_and_drops_take_the_weight():
    assert top_k(torch.zeros(1, 4), 2).experts.tolist() == [[0, 1]]
    routing = top_k(torch.zeros(3, 4), 2, capacity=2)
    assert routing.kept.tolist() == [[True, True], [True, True], [False, False]]
    assert routing.gates.sum(1).tolist() == [1, 1, 0]


def test_with_one_choice_the_weight_is_1_and_has_no_gradient():
    """The reason that k >= 2 was thought necessary; Switch's softmax goes over all experts."""
    logits = random(0, 6, 4).requires_grad_()
    routing = top_k(logits, 1)
    assert (routing.weights == 1).all()
    routing.weights.sum().backward()
    assert (logits.grad == 0).all()


def test_a_k_that_cannot_be_is_refused():
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"k is {k}; with 4 experts it can be 1 to 4"):
            noisy_top_k_gate(torch.zeros(2, 4), k)
    with pytest.raises(ValueError, match="k is 4; the load of 4 experts needs 1 to 3"):
        expected_load(*[torch.ones(2, 4)] * 3, 4)
