"""The models: against PyTorch's own layers, and by what they must not do."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from pedagogy.workloads import GPT, MLP, Attention, ConvNet, digits, digits_batch, text_batch


def test_attention_equals_pytorchs_fused_attention():
    torch.manual_seed(0)
    attention = Attention(hidden=24, heads=3, sequence=10).double()
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    q, k, v = (
        f(x).unflatten(-1, (3, 8)).transpose(1, 2)
        for f in (attention.query, attention.key, attention.value)
    )
    fused = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = attention.project(fused.transpose(1, 2).reshape(2, 7, 24))
    torch.testing.assert_close(attention(x), expected, rtol=1e-12, atol=1e-12)


def test_gpt_equals_pytorchs_transformer_encoder():
    torch.manual_seed(0)
    model = GPT(layers=2, hidden=16, heads=2, sequence=12).double()
    ids = torch.randint(256, (3, 12))
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(
            16, 2, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ),
        num_layers=2,
        norm=torch.nn.LayerNorm(16),
        enable_nested_tensor=False,
    ).double()
    for ours, theirs in zip(model.blocks, encoder.layers, strict=True):
        parts = (ours.attention.query, ours.attention.key, ours.attention.value)
        theirs.self_attn.in_proj_weight.data = torch.cat([p.weight.data for p in parts])
        theirs.self_attn.in_proj_bias.data = torch.cat([p.bias.data for p in parts])
        theirs.self_attn.out_proj = ours.attention.project
        theirs.linear1, theirs.linear2 = ours.feed_forward.expand, ours.feed_forward.project
        theirs.norm1, theirs.norm2 = ours.attention_norm, ours.feed_forward_norm
    mask = torch.nn.Transformer.generate_square_subsequent_mask(12, dtype=torch.float64)
    hidden = encoder(model.embed(ids), mask=mask, is_causal=True)
    torch.testing.assert_close(model(ids), hidden @ model.token.weight.T, rtol=1e-10, atol=1e-12)


def test_no_position_sees_a_later_one():
    torch.manual_seed(0)
    model = GPT()
    ids = torch.randint(256, (1, 32))
    changed = ids.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 256
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.equal(before[:, 20:], after[:, 20:])


def test_tied_embeddings_are_one_parameter():
    tied, untied = GPT(), GPT(tied=False)
    assert tied.head.weight is tied.token.weight
    assert untied.head.weight is not untied.token.weight
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert count[1] - count[0] == 256 * 64


def test_a_fresh_gpt_knows_nothing_and_learns_from_text():
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = model.loss(*text_batch(8, 64)).item()
    assert abs(first - math.log(256)) < 0.1  # nearly uniform over 256 bytes
    for step in range(40):
        optimizer.zero_grad()
        model.loss(*text_batch(8, 64, step=step)).backward()
        optimizer.step()
    assert model.loss(*text_batch(8, 64, step=1000)).item() < 3.5


@pytest.mark.parametrize("make", [GPT, MLP, ConvNet])
def test_equal_seeds_give_equal_models(make):
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(torch.cat([p.detach().flatten() for p in make().parameters()]))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model = GPT(dropout=0.5)
    ids = torch.randint(256, (2, 8))
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


@pytest.mark.parametrize("make", [MLP, ConvNet])
def test_the_digit_nets_learn_to_read(make):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(80):
        optimizer.zero_grad()
        model.loss(*digits_batch(32, step=step)).backward()
        optimizer.step()
    model.eval()
    _, _, images, labels = digits()
    assert float((model(images).argmax(1) == labels).float().mean()) > 0.9


def test_the_mlp_is_lenet_300_100_and_the_convnet_has_batchnorm():
    weights = [p.numel() for p in MLP((784, 300, 100, 10)).parameters() if p.dim() == 2]
    assert sum(weights) == 266_200  # Han et al. 2015, LeNet-300-100
    assert sum(isinstance(m, torch.nn.BatchNorm2d) for m in ConvNet().modules()) == 3


def test_impossible_models_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match="hidden 64 is not divisible by heads 5"):
        GPT(heads=5)
    with pytest.raises(ValueError, match="65 tokens: this GPT has 64 positions"):
        GPT()(torch.zeros(1, 65, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(64,\)"):
        MLP((64,))
