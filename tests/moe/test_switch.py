"""Switch's gate and its loss, also over micro-batches."""

import pytest
import torch

from pedagogy.moe import chosen_shares, loss_with_shares, switch_gate, switch_loss
from tests.moe.cutting import random


def test_a_token_goes_to_the_most_probable_expert_with_its_probability_among_all():
    logits = torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.float64).log()
    routing = switch_gate(logits, None)
    assert routing.experts.tolist() == [[1]]
    assert routing.weights.item() == pytest.approx(3 / 6)
    assert switch_gate(torch.zeros(1, 3), None).experts.item() == 0  # a tie: the lower expert


def test_the_weight_has_a_gradient_although_one_expert_is_chosen():
    logits = random(0, 6, 4).requires_grad_()
    switch_gate(logits, None).weights.sum().backward()
    assert (logits.grad.abs().sum(1) > 0).all()


def test_the_loss_is_worked_by_hand():
    # f = (2/3, 1/3), P = (1.7, 1.3) / 3:  2 * (2 * 1.7 + 1 * 1.3) / 9
    probabilities = torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.9, 0.1]], dtype=torch.float64)
    loss = switch_loss(probabilities, torch.tensor([0, 1, 0]))
    assert loss.item() == pytest.approx(2 * (2 * 1.7 + 1.3) / 9)


def test_dropped_tokens_count_in_the_loss():
    logits = torch.tensor([[2.0, 0.0]] * 4)
    dropping, whole = switch_gate(logits, 1.0), switch_gate(logits, None)
    assert dropping.num_dropped == 2
    losses = [switch_loss(r.probabilities, r.experts) for r in (dropping, whole)]
    assert losses[0] == losses[1] > 1.7


def test_micro_batches_add_up_where_the_shares_of_the_batch_are_given():
    logits = random(1, 12, 3)
    whole = logits.clone().requires_grad_()
    routing = switch_gate(whole, None)
    loss = switch_loss(routing.probabilities, routing.experts)
    loss.backward()
    shares = chosen_shares(routing.experts, 3)
    for num_microbatches in (2, 3, 4):
        parts = logits.clone().requires_grad_()
        total = 0.0
        for part in parts.chunk(num_microbatches):
            probabilities = switch_gate(part, None).probabilities
            mean = loss_with_shares(probabilities, shares) / num_microbatches
            mean.backward()
            total += mean.item()
        assert total == pytest.approx(loss.item(), rel=1e-12)
        torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-12, atol=1e-12)


def test_shares_are_exact_where_thirds_are_counted():
    """Rounded to 32 bits they would make float64 runs differ by 1e-8."""
    assert chosen_shares(torch.tensor([0, 1, 1]), 3).tolist() == [1 / 3, 2 / 3, 0]
    half = switch_loss(torch.full((3, 2), 0.5), torch.tensor([0, 1, 1]))
    assert half.dtype == torch.float32


def test_without_tokens_the_loss_is_0_with_a_gradient_of_0():
    probabilities = torch.zeros(0, 3, requires_grad=True)
    loss = switch_loss(probabilities, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="4 tokens, but 3 choices"):
        switch_loss(torch.zeros(4, 2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"probabilities of shape \(2, 3, 4\)"):
        switch_loss(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long))
