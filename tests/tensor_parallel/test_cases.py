"""Cases that real projects got wrong, each by its name."""

import math
import sys

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.collectives import copy_to
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import (
    ParallelGPT,
    RowParallelLinear,
    SequenceParallelBlock,
    VocabParallelEmbedding,
    check_divides,
    clip_grad_norm,
    padded_vocabulary,
    sum_replicated_gradients,
    vocab_parallel_cross_entropy,
)
from pedagogy.workloads import GPT
from tests.tensor_parallel.cutting import TIED, batch, random

cloudpickle.register_pickle_by_value(sys.modules[__name__])


# --- C09: the norm counts every parameter once ----------------------------------------------------


def c09(group, max_norm):
    """A row-parallel layer: its bias is replicated, its weight cut."""
    layer = RowParallelLinear(group, 2, 2)
    layer.bias.grad = torch.tensor([3.0, 0.0])
    layer.weight.grad = torch.tensor([[2.0], [2.0]])  # squares: 8 on each rank
    norm = clip_grad_norm(group, layer, max_norm)
    everything = torch.stack([layer.bias.grad.square().sum(), layer.weight.grad.square().sum()])
    return norm.item(), everything, layer.bias.grad, layer.weight.grad


def test_C09_the_norm_of_replicated_and_cut_gradients_is_5_on_every_rank():
    for norm, squares, _, _ in launch(c09, 2, 100.0):
        assert norm == pytest.approx(5.0, rel=1e-7)
        replicated, cut = squares.tolist()
        assert math.sqrt(2 * (replicated + cut)) == pytest.approx(5.8310, abs=5e-5)  # all summed
        assert math.sqrt(replicated + cut) == pytest.approx(4.1231, abs=5e-5)  # none summed


def test_C09_all_ranks_clip_by_the_same_factor():
    for norm, _, bias, weight in launch(c09, 2, 2.5):
        assert norm == pytest.approx(5.0, rel=1e-7)
        torch.testing.assert_close(bias, torch.tensor([1.5, 0.0]), rtol=1e-6, atol=0)
        torch.testing.assert_close(weight, torch.ones(2, 1), rtol=1e-6, atol=0)


# --- C14, C15: the row-parallel bias --------------------------------------------------------------


def c14(group):
    """W = [1, 2, 3, 4], x = ones, b = 10: the output, and the gradients of bias and weight."""
    whole = nn.Linear(4, 1)
    with torch.no_grad():
        whole.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        whole.bias.fill_(10.0)
    layer = RowParallelLinear.from_linear(group, whole)
    y = layer(torch.ones(1, 4 // group.size))
    y.sum().backward()
    return y.item(), layer.bias.grad.item(), layer.weight.grad


@pytest.mark.parametrize("p", [1, 2, 4])
def test_C14_the_bias_is_added_once(p):
    for y, bias_gradient, weight_gradient in launch(c14, p):
        assert y == 20.0  # added on every rank: 10 + 10 p, which is 50 on four
        assert bias_gradient == 1.0
        assert torch.equal(weight_gradient, torch.ones(1, 4 // p))


def c15(group):
    """Three tokens, a gradient of 1 everywhere."""
    layer = RowParallelLinear(group, 4, 2)
    layer(torch.ones(3, 4 // group.size)).sum().backward()
    return layer.bias.grad


def test_C15_the_bias_has_its_whole_gradient_on_every_rank():
    for gradient in launch(c15, 4):
        assert gradient.tolist() == [3.0, 3.0]  # with bias / p: 0.75


# --- C16: gradients of norms are summed -----------------------------------------------------------


def c16(group):
    """A norm's weight, whose halves of the sequence give 1.5 and 2.5."""
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.tensor([(1.5, 2.5)[group.rank]])
    sum_replicated_gradients(group, [weight])
    return weight.grad.item()


def test_C16_the_halves_gradients_are_summed_not_averaged():
    assert list(launch(c16, 2)) == [4.0, 4.0]


def c16_drift(group):
    """Five steps: what is replicated."""
    model = ParallelGPT(group, TIED.model(group.rank), SequenceParallelBlock)
    optimizer = TIED.make_optimizer(model.parameters())
    for step in range(5):
        model.loss(*batch(step)).backward()
        model.finish_backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters() if p.dim() == 1}


def test_C16_copies_stay_bit_equal_over_five_steps_and_equal_to_one_process():
    model = TIED.model()
    optimizer = TIED.make_optimizer(model.parameters())
    for step in range(5):
        inputs, targets = batch(step)
        TIED.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    first, second = launch(c16_drift, 2)
    replicated = [name for name in first if "norm" in name or name.endswith("project.bias")]
    assert len(replicated) == 2 * 2 * 3 + 2
    for name in replicated:
        assert torch.equal(first[name], second[name])
        expected = model.get_parameter(name).detach()
        torch.testing.assert_close(first[name], expected, rtol=1e-10, atol=1e-12)


# --- C18: sizes that do not divide ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "sizes", "says"),
    [
        (3, {"hidden": 64, "heads": 8}, "hidden is 64, which 3 ranks do not divide; 63 or 66"),
        (3, {"heads": 8, "hidden": 64}, "heads is 8, which 3 ranks do not divide; 6 or 9"),
        (4, {"kv_heads": 2}, "kv_heads is 2, which 4 ranks do not divide; 4 would do"),
    ],
)
def test_C18_a_size_is_refused_by_name_before_any_process_starts(ranks, sizes, says):
    with pytest.raises(ValueError, match=says):
        check_divides(ranks, **sizes)


def test_C18_gpt2s_vocabulary_is_padded_to_50304_and_50432():
    assert padded_vocabulary(50257, 1, 128) == 50304
    assert padded_vocabulary(50257, 2, 128) == 50432


def c18(group):
    """GPT-2's vocabulary on two ranks: its rows, and the loss of some labels."""
    torch.manual_seed(0)
    whole = nn.Embedding(50257, 4).double()
    layer = VocabParallelEmbedding.from_embedding(group, whole, multiple=128)
    x = random(1, 3, 4).requires_grad_()
    labels = torch.tensor([0, 30_000, 50_256])
    logits = layer.logits(copy_to(group, x))
    loss = vocab_parallel_cross_entropy(group, logits, labels, vocabulary=50257)
    loss.backward()
    y = random(1, 3, 4).requires_grad_()
    expected = functional.cross_entropy(y @ whole.weight.t(), labels)
    expected.backward()
    rows = layer.last - layer.first
    return rows, layer.num_real, logits, loss - expected, x.grad - y.grad


def test_C18_rank_1_has_25041_real_rows_of_25216_and_the_loss_is_the_unpadded_one():
    run = launch(c18, 2)
    assert [(rows, real) for rows, real, *_ in run] == [(25216, 25216), (25216, 25041)]
    for _, real, logits, loss, gradient in run:
        assert logits[:, :real].isfinite().all()
        assert (logits[:, real:] == -torch.inf).all()
        assert abs(loss) < 1e-12
        assert gradient.abs().max() < 1e-12


# --- K10: norms are whole on every rank -----------------------------------------------------------


def k10(group):
    """Elements of norms on this rank."""
    model = ParallelGPT(group, GPT(layers=3, hidden=16, heads=4, sequence=8))
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    return len(norms), sum(norm.weight.numel() for norm in norms)


def test_K10_every_rank_holds_all_norms_two_a_layer_and_one_at_the_end():
    for t in (1, 2):
        assert list(launch(k10, t)) == [(2 * 3 + 1, (2 * 3 + 1) * 16)] * t
