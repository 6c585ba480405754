"""The modules that hold a gate's weights."""

import copy
import pickle

import pytest
import torch

from pedagogy.moe import MoELayer, NoisyTopKGate, Router, importance_loss, load_loss, top_k
from tests.moe.cutting import random, unlimited


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_logits_are_computed_in_float32_or_better(dtype):
    router = Router(4, 3, unlimited).to(dtype)
    tokens = random(0, 5, 4).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    expected = tokens.to(wide) @ router.weight.to(wide).T
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = router.logits(tokens)
        assert found.dtype == wide
        torch.testing.assert_close(found, expected)


def test_the_first_router_is_almost_indifferent():
    torch.manual_seed(0)
    probabilities = Router(64, 8, unlimited)(torch.randn(200, 64)).probabilities
    assert (probabilities - 1 / 8).abs().max() < 1 / 16
    assert probabilities.var() > 0


def test_tokens_that_are_no_matrix_and_routers_without_experts_are_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 5, 3\)"):
        Router(4, 3, unlimited)(torch.zeros(2, 5, 4))
    with pytest.raises(ValueError, match="0 experts"):
        Router(4, 0, unlimited)


def test_shazeers_gate_begins_with_equal_experts_and_noise_tries_them_all():
    torch.manual_seed(0)
    gate = NoisyTopKGate(4, 5, 2)
    assert all((p == 0).all() for p in gate.parameters())
    assert (gate(torch.randn(200, 4)).counts > 0).all()
    assert gate.eval()(torch.randn(200, 4)).counts.tolist() == [200, 200, 0, 0, 0]
    assert gate.loss == 0


def noisy_gate(capacity=None):
    gate = NoisyTopKGate(4, 5, 2, capacity).double()
    torch.manual_seed(3)
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter)
    return gate


def test_its_noise_is_scaled_by_softplus_and_its_loss_is_importance_plus_load():
    gate, tokens = noisy_gate(), random(1, 30, 4)
    torch.manual_seed(4)
    routing = gate(tokens)
    torch.manual_seed(4)
    clean, std = tokens @ gate.gate.T, (1 + (tokens @ gate.noise.T).exp()).log()
    noisy = clean + std * torch.randn_like(clean)
    expected = top_k(noisy, 2)
    torch.testing.assert_close(routing.gates, expected.gates)
    both = importance_loss(expected.gates) + load_loss(clean, noisy, std, 2)
    torch.testing.assert_close(gate.loss, both)
    gate.loss.backward()
    assert all((p.grad != 0).any() for p in gate.parameters())


def test_its_loss_sees_what_a_capacity_dropped():
    """Clipped to the capacity, a collapsed gate would look balanced."""
    losses = []
    for capacity in (None, 2):
        gate = noisy_gate(capacity)
        gate.gate.data[0] = 3.0  # expert 0 for every token
        torch.manual_seed(4)
        gate(random(1, 30, 4).abs())
        losses.append(gate.loss.item())
    assert losses[0] == losses[1] > 1


def test_a_gate_that_has_no_load_is_refused():
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"k is {k}; with 5 experts it can be 1 to 4"):
            NoisyTopKGate(4, 5, k)


def test_a_layer_can_be_copied_and_pickled_after_a_forward():
    layer = MoELayer(4, 5, noisy_gate())
    layer.experts.double()
    layer(random(0, 3, 4)).sum().backward()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.last is None
        assert other.router.loss == 0
        assert torch.equal(other.eval()(random(1, 3, 4)), layer.eval()(random(1, 3, 4)))
        layer.train()
