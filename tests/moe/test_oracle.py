"""Switch's gate, loss and layer against those of Hugging Face's Switch Transformers.

PyTorch itself has no mixture of experts. The library routes each sequence by itself (a capacity a
sequence), so each is given to our gate alone; it drops, weights and counts as we do. One default
differs from the paper: its coefficient of the balancing loss is 0.001, the paper's 0.01.
"""

import pytest
import torch

from pedagogy.moe import MoELayer, expert_capacity, in_groups, switch_gate, switch_loss

switch = pytest.importorskip("transformers.models.switch_transformers")
oracle = pytest.importorskip("transformers.models.switch_transformers.modeling_switch_transformers")

BATCH, SEQUENCE, HIDDEN, EXPERTS, FACTOR = 3, 10, 8, 4, 1.0
CAPACITY = expert_capacity(SEQUENCE, EXPERTS, FACTOR)


def config():
    return switch.SwitchTransformersConfig(
        d_model=HIDDEN, d_ff=16, num_experts=EXPERTS, expert_capacity=CAPACITY, dropout_rate=0.0
    )


@pytest.fixture
def theirs():
    """Their layer, its router scaled so that experts fill up, and a batch."""
    torch.manual_seed(0)
    layer = oracle.SwitchTransformersSparseMLP(config()).eval()  # in training it adds jitter
    torch.nn.init.normal_(layer.router.classifier.weight)
    return layer, torch.randn(BATCH, SEQUENCE, HIDDEN)


def test_experts_weights_and_dropped_tokens_are_those_of_the_library(theirs):
    layer, x = theirs
    masks, weights, logits = layer.router(x)
    dropped = 0
    for mask, weight, scores in zip(masks, weights, logits, strict=True):
        routing = switch_gate(scores, FACTOR)
        chosen = torch.nn.functional.one_hot(routing.experts[:, 0], EXPERTS)
        assert torch.equal(mask, chosen * routing.kept)
        torch.testing.assert_close(routing.weights, weight)
        dropped += routing.num_dropped
    assert dropped > 0


def test_the_balancing_loss_is_the_librarys_over_each_sequence(theirs):
    layer, x = theirs
    _, _, logits = layer.router(x)
    probabilities, index = logits.softmax(-1), logits.argmax(-1)
    ours = torch.stack([switch_loss(p, i) for p, i in zip(probabilities, index, strict=True)])
    torch.testing.assert_close(oracle.load_balancing_loss_func(probabilities, index), ours.mean())
    flat = switch_loss(probabilities.flatten(0, 1), index.flatten())
    assert abs(flat - ours.mean()) > 1e-3  # pooled over sequences it is another number


def test_the_whole_layer_gives_what_the_librarys_gives(theirs):
    layer, x = theirs
    route = in_groups(lambda logits: switch_gate(logits, FACTOR), SEQUENCE)
    each = iter(layer.experts.values())
    ours = MoELayer(HIDDEN, EXPERTS, route, lambda hidden: next(each))
    ours.router.weight = layer.router.classifier.weight
    torch.testing.assert_close(ours(x), layer(x))
    assert (ours(x) == 0).all(-1).any()  # a dropped token: the residual alone carries it on


def test_the_librarys_coefficient_is_a_tenth_of_the_papers():
    assert config().router_aux_loss_coef == 0.001
    assert config().router_dtype == "float32"
